"""Work in a process of its own, watched: what it returns, and the most memory it had.

Counted is RssAnon: pages that the process has filled itself. Pages of a mapped file do not count, since the system takes them
back when it needs them.
"""

from __future__ import annotations

import multiprocessing
import re
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from debgcd.errors import DebgcdError

SECONDS = 0.01  # between two looks
STATUS = Path("/proc/self/status")


def anonymous_bytes() -> int | None:
    """The memory that this process has filled itself; None where the system does not tell."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


class Peak:
    """The most that `anonymous_bytes` said while the block ran, looked at by a thread."""

    bytes: int | None = None

    def __enter__(self) -> Peak:
        self._stop = threading.Event()
        self._look()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._stop.wait(SECONDS):
            self._look()

    def _look(self) -> None:
        now = anonymous_bytes()
        if now is not None:
            self.bytes = max(now, self.bytes or 0)


def apart(work: Callable[..., Any], *arguments: Any) -> tuple[Any, int | None]:
    """What `work` (a module's function) returns in a fresh process, and that process's peak."""
    context = multiprocessing.get_context("spawn")  # a fork would begin with the memory of this process
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_watched, args=(sender, work, arguments))
    # Ctrl-C reaches the whole group; this process answers it and ends the other one, which need not speak as well
    answer = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.start()
    signal.signal(signal.SIGINT, answer)
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        raise DebgcdError(
            f"the process that measures {work.__name__} ended with code {process.exitcode} before it was done; "
            "what it said is above (nothing: the system stopped it, most often for want of memory)"
        ) from None
    finally:
        process.kill()
        process.join()
        receiver.close()


def _watched(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with Peak() as peak:
        result = work(*arguments)
    sender.send((result, peak.bytes))
