"""What worker processes do first: leave signals to their parent, and end when it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

GRACE = 30  # seconds that a worker goes on after a termination signal


def begin_worker() -> None:
    """Ignore Ctrl-C, which reaches the whole group, because the parent decides when to stop; end if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def begin_patient_worker() -> None:
    """As `begin_worker`, and go on for a while after a termination signal, which may reach the whole group, too.

    Without the worker, the parent could not finish the step that it is in.
    """
    begin_worker()
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(GRACE))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # waits for a pipe that the system closes, however the parent ends
        os._exit(1)
