"""How a run is told to stop: Ctrl-C, and the signal of a batch system or of torchrun."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from debgcd.system import distributed


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; it was saved and can be resumed."""


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a termination signal sets, so that a step is never cut in two; a second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread can handle signals
        return

    def request(number: int, frame: object) -> None:
        if stop.is_set() and not distributed.launched():  # a launcher may pass a signal on that arrived here, too
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
