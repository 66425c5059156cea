"""Atomic file writes: write to a temporary sibling, flush it to disk, rename it. JSON is read with limits."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from debgcd.errors import DataError, DebgcdError, UsageError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FORMULA = re.compile(r"'*[=+\-@\t\r]")  # after quotes, so that a text that begins with some can be read back
SPECIAL = re.compile(r'[,"\r\n]')
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
MAX_JSON = 16_000_000  # bytes: parsed, a text can take twenty times its size
SEAL = 32  # bytes of a sha256
MAX_DEPTH = 20  # levels of nesting; code that walks through the values recurses as deep


# What reading or parsing a file that was damaged or edited can raise.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error)


@contextmanager
def readable(what: object, advice: str, *also: type[Exception], missing: bool = True) -> Iterator[None]:
    """Turn errors of reading a file into a DataError: "WHAT cannot be read (the reason); ADVICE".

    also: further errors to turn into it. missing: whether a file that does not exist is one of them; else FileNotFoundError
    passes. Errors that are shown to the user as they are pass too.
    """
    caught: tuple[type[Exception], ...] = (*UNREADABLE, *also)
    try:
        yield
    except caught as error:
        own = isinstance(error, DebgcdError) and not isinstance(error, also)
        if own or (isinstance(error, FileNotFoundError) and not missing):
            raise
        raise DataError(f"{what} cannot be read ({error}); {advice}") from error


def write_text(path: Path, text: str) -> None:
    """Replace a file's content atomically. Symbolic links are followed; pipes and devices are written to directly."""
    # file names are valid UTF-8 by this point; if one is not, an escaped name is better than no file
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file's content atomically, as `write_text` does."""
    with replacing(path, len(content)) as file:
        file.write(content)


def write_sealed(path: Path, content: bytes) -> None:
    """Replace a file's content atomically; before it comes its sha256, by which `read_sealed` knows it."""
    write_bytes(path, hashlib.sha256(content).digest() + content)


def read_sealed(path: Path) -> bytes:
    """What `write_sealed` wrote; a ValueError if the file holds something else."""
    whole = path.read_bytes()
    digest, content = whole[:SEAL], whole[SEAL:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{path} is damaged")
    return content


@contextmanager
def replacing(path: Path, size: int | None = None) -> Iterator[IO[bytes]]:
    """A file to fill; when the block ends it is flushed to disk and renamed to `path`. size: of the content, for errors."""
    path = Path(os.path.realpath(path))
    special = path.exists() and not path.is_file() and not path.is_dir()  # a pipe or a device cannot be replaced
    temporary = path if special else path.with_name(f".{path.name}.tmp")
    try:
        with named_errors(path, size):
            with open(temporary, "wb") as file:
                yield file
                if not special:
                    file.flush()
                    os.fsync(file.fileno())
            if not special:
                os.replace(temporary, path)
    finally:
        if not special:
            temporary.unlink(missing_ok=True)


class Full(OSError):
    """A disk that is full: its message says how much was to be written and how much is free."""


@contextmanager
def named_errors(path: Path, size: int | None = None) -> Iterator[None]:
    """Let errors of writing name the file, and those of a full disk the amounts; the system's own often do neither."""
    try:
        yield
    except OSError as error:
        if isinstance(error, Full) or (error.errno not in FULL and error.filename is not None):
            raise
        if error.errno not in FULL:
            raise OSError(error.errno, error.strerror, str(path)) from error
        needed = [] if size is None else [f"{amount(size)} needed"]
        free = [f"{amount(free_bytes(path))} free"] if error.errno == errno.ENOSPC else []  # a quota is not the disk's
        amounts = f" ({', '.join(needed + free)})" if needed + free else ""
        raise Full(error.errno, f"{error.strerror}{amounts}", str(path)) from error


def free_bytes(path: Path) -> int:
    """What is free on the disk of a file or folder that need not be there yet."""
    return shutil.disk_usage(existing(path)).free


def bytes_in(path: Path) -> int:
    """The size of a file, or of all files below a folder; 0 if it is not there."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if file.is_file())


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    path = Path(os.path.abspath(path))
    return next((place for place in (path, *path.parents) if place.exists()), Path(path.anchor))


def amount(size: int) -> str:
    """Bytes in readable form: 2 kB, 35 MB, 16.2 GB."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV; None becomes an empty field, and text that a spreadsheet would compute gets a quote before it.

    `csv_field` gives the text back.
    """
    # not csv.writer: in Python 3.11 it does not quote a carriage return, which would be read back as the end of a row
    lines = ([csv_cell("" if value is None else str(value)) for value in row] for row in (header, *rows))
    return "".join(",".join(line) + "\n" for line in lines)


def csv_cell(text: str) -> str:
    """One field of a row as `csv_text` writes it."""
    text = f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text
    return '"' + text.replace('"', '""') + '"' if SPECIAL.search(text) else text


def csv_field(text: str) -> str:
    """A field of a table that `csv_text` wrote, as it was."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def write_json(path: Path, value: Any) -> None:
    """Replace a file with this value as JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, largest: int = MAX_JSON) -> Any:
    """A JSON file's value, of at most `largest` bytes; a ValueError says what is wrong with its text."""
    with open(path, "rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it is larger than {largest // 10**6} MB")
    return parse_json(content.decode("utf-8"))


def parse_json(content: str | bytes) -> Any:
    """A JSON text's value; a ValueError says what is wrong with it. The only reader of JSON in the package."""
    deep = f"it is nested more than {MAX_DEPTH} levels deep"
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise ValueError(deep) from error
    level, depth = [value], 0
    while level := [inner for item in level if isinstance(item, dict | list) for inner in _values(item)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(deep)
    return value


def _values(item: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return item.values() if isinstance(item, dict) else item


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; when the block ends it is renamed to `path` and replaces any existing folder.

    A process killed between the deletion and the rename leaves no folder at all; a resumed run writes it again.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(temporary, path)
    except OSError:
        with named_errors(path):
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def lock(folder: Path, doing: str = "working on the run") -> Iterator[None]:
    """Keep a second process out of a folder; the lock is released when the process ends, however it ends."""

    def refuse(first: bool) -> None:
        raise UsageError(f"another process is {doing} in {folder}; wait for it or stop it")

    with turn(folder, None, refuse):
        yield


@contextmanager
def turn(folder: Path, key: str | None, on_wait: Callable[[bool], None]) -> Iterator[None]:
    """Let one process at a time work on `key` (hexadecimal), or on the whole folder.

    While another process holds it, `on_wait` is called again and again, with True the first time; it may raise.

    All keys share one lock file and lock one byte each, so lock files do not pile up.
    """
    place = os.path.realpath(folder), key
    with _alone(place, on_wait), _turn_of_process(folder, key, on_wait):
        yield


_held: set[tuple[str, str | None]] = set()  # by threads of this process
_changing = threading.Lock()


@contextmanager
def _alone(place: tuple[str, str | None], on_wait: Callable[[bool], None]) -> Iterator[None]:
    """One thread at a time: the system's locks are of a process, and the first to close the lock file would end them all."""
    first = True
    while True:
        with _changing:
            if place not in _held:
                _held.add(place)
                break
        on_wait(first)
        first = False
        time.sleep(0.05)
    try:
        yield
    finally:
        with _changing:
            _held.discard(place)


@contextmanager
def _turn_of_process(folder: Path, key: str | None, on_wait: Callable[[bool], None]) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # this system has no such locks
        yield
        return
    with open(folder / ".lock", "a") as file:
        place, first = (0, 0) if key is None else (1, int(key[:15], 16)), True
        while True:
            try:
                # not flock: loader workers inherit it and would hold it for seconds after the main process is killed
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, *place)
                break
            except BlockingIOError:
                on_wait(first)
                first = False
                time.sleep(0.05)
        yield
