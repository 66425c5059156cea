"""Files that are either whole or not there: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from debgcd.errors import UsageError


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text at one instant."""
    beside = path.with_name(f".{path.name}.tmp")
    with open(beside, "w", encoding="utf-8", newline="", errors="surrogateescape") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def write_json(path: Path, value: Any) -> None:
    """Replace a file by this value at one instant."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it appears under its name when the block ends, replacing an older one, or not at all."""
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
def lock(folder: Path) -> Iterator[None]:
    """Keep a second process out of a folder; the lock goes with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another process is working on the run in {folder}; wait for it, or stop it") from error
        yield
