"""Progress reports: a bar on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from typing import Any, Protocol

from debgcd.system import distributed


class Report(Protocol):
    """Reports progress; the note is a few words such as "loss 2.31 · 410 images/s"."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


# of terminals and lines, of the direction of writing, and halves of characters
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWINGS = 0.2  # of a bar in a notebook
_reporting: ContextVar[bool] = ContextVar("reporting", default=False)  # nested bars would overwrite each other
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_since: ContextVar[float | None] = ContextVar("since", default=None)  # lines begin with the seconds since then


def escaped(value: object) -> str:
    """A name, path or message with control characters escaped: it cannot break a line or colour a terminal."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(value))


def say(text: str, every_rank: bool = False) -> None:
    """Print a line to standard error, escaped, after blank lines if it begins with any; standard output is for results.

    Only rank 0 prints, unless `every_rank`.
    """
    if _quiet.get() or (distributed.rank() and not every_rank):
        return
    line = text.lstrip("\n")
    since = _since.get()
    at = "" if since is None else f"{time.monotonic() - since:8.2f} s  "
    try:
        print("\n" * (len(text) - len(line)) + at + escaped(line), file=sys.stderr, flush=True)
    except OSError:  # a full disk, a closed terminal: not worth losing the work
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)


def waiting(text: str) -> Callable[[bool], None]:
    """For `files.turn`: says what is waited for, and shows other ranks that this one lives."""

    def wait(first: bool) -> None:
        distributed.heartbeat()
        if first:
            say(text)

    return wait


@contextmanager
def speaking(aloud: bool) -> Iterator[None]:
    """With False, `say` and `progress` print nothing inside."""
    before = _quiet.set(not aloud)
    try:
        yield
    finally:
        _quiet.reset(before)


@contextmanager
def timed() -> Iterator[None]:
    """Inside, each line of `say` begins with the seconds since the beginning."""
    before = _since.set(time.monotonic())
    try:
        yield
    finally:
        _since.reset(before)


@contextmanager
def progress(what: str) -> Iterator[Report]:
    """Report long work: `with progress("decoding") as report: report(3, 100)`. Nested work and other ranks are silent.

    A report is also a sign of life for the ranks that wait for this one.
    """
    if _quiet.get() or _reporting.get() or distributed.rank():
        yield lambda done, total, note="": distributed.heartbeat()
        return
    begun = _reporting.set(True)
    try:
        notebook = _notebook()
        yield from (
            _cell(what, notebook) if notebook is not None else _bar(what) if sys.stderr.isatty() else _lines(what)
        )
    finally:
        _reporting.reset(begun)


def _bar(what: str) -> Iterator[Report]:
    # here, because every command imports this module and few show a bar
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None, note="")

        def report(done: int, total: int, note: str = "") -> None:
            distributed.heartbeat()
            bar.update(task, completed=done, total=total, note=note)

        yield report


def _notebook() -> Any:
    """IPython's module `display` in the kernel of a notebook, else None; IPython is never imported for it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.modules.get("IPython.display") if hasattr(shell, "kernel") else None


def _cell(what: str, display: Any) -> Iterator[Report]:
    """A bar under a notebook's cell: plain HTML, which needs no widgets."""
    handle: Any = None
    last = 0.0

    def report(done: int, total: int, note: str = "") -> None:
        nonlocal handle, last
        distributed.heartbeat()
        now = time.monotonic()
        if done < total and now - last < SECONDS_BETWEEN_DRAWINGS:
            return
        last = now
        bar = f'<progress value="{done}" max="{max(1, total)}"></progress>'
        drawn = display.HTML(f"{escape(what)} {bar} {done}/{total} {escape(note)}")
        if handle is None:
            handle = display.display(drawn, display_id=True)
        else:
            handle.update(drawn)

    yield report


def _lines(what: str) -> Iterator[Report]:
    begun = time.monotonic()
    last = begun
    first_done: int | None = None

    def report(done: int, total: int, note: str = "") -> None:
        nonlocal last, first_done
        distributed.heartbeat()
        now = time.monotonic()
        first_done = done if first_done is None else first_done
        if now - last < SECONDS_BETWEEN_LINES and done < total:
            return
        last = now
        pace = (now - begun) / max(1, done - first_done)
        left = f", {duration(pace * (total - done))} left" if first_done < done < total else ""
        say(f"{what}: {done}/{total}{left}{' · ' + note if note else ''}")

    yield report


def duration(seconds: float) -> str:
    """Seconds in readable form: 40 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
