"""Files that are either whole or not there: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from debgcd.errors import UsageError


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text at one instant; a link is followed, and a pipe or device is written to as it is."""
    # names are valid UTF-8 by now; should one not be, a mangled name is better than no file
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by these bytes, likewise."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    beside = path.with_name(f".{path.name}.tmp")
    try:
        _write_through(beside, content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _write_through(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV; None is empty."""
    table = [["" if value is None else str(value) for value in row] for row in rows]
    # Python 3.11 leaves a carriage return unquoted, and it would come back as the end of a row.
    returns = any("\r" in value for row in table for value in row)
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(table)
    return text.getvalue()


def write_json(path: Path, value: Any) -> None:
    """Replace a file by this value at one instant."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it appears under its name, whole, when the block ends, in place of an older one.

    Killed between the older one's end and the new one's appearance there is none: a resumed run writes it again.
    """
    beside = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        for file in beside.iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def lock(folder: Path, doing: str = "working on the run") -> Iterator[None]:
    """Keep a second process out of a folder; the lock goes with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with open(folder / ".lock", "w") as file:
        try:
            # not flock: loader workers would inherit it, and hold it for seconds after a kill of the process itself
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another process is {doing} in {folder}; wait for it, or stop it") from error
        yield


@contextmanager
def turn(folder: Path, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
    """Let one process after the other work on what `key`, hexadecimal, names; `on_wait` is called if another one is at it.

    All keys share one file, each with a byte of its own to lock, so that no lock files pile up.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with open(folder / ".lock", "a") as file:
        place = int(key[:15], 16)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except BlockingIOError:
            on_wait()
            fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
        yield
