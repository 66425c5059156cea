"""What is in image files, as one hash; and whether they still are what they were when it was taken."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from debgcd.errors import DataError

READERS = 8  # files read at once: a disk far away takes its time for each

Stamp = tuple[int, int]  # size and time of the last change


@dataclass(frozen=True)
class Contents:
    """The bytes of image files at one moment; what the files are called does not matter."""

    paths: Sequence[Path]
    sha256: str  # of all of them, in order
    stamps: list[Stamp]

    def require_unchanged(self, numbers: Iterable[int]) -> None:
        """Refuse if one of these files was changed since: what was decoded from it may not be what was hashed."""
        for number in numbers:
            if _stamp(self.paths[number]) != self.stamps[number]:
                raise DataError(
                    f"{self.paths[number]} was changed while it was in use; begin again, with files at rest"
                )


def read_contents(paths: Sequence[Path]) -> Contents:
    """Hash all files."""
    with ThreadPoolExecutor(READERS) as pool:
        stamps = [_stamp(path) for path in paths]  # before the bytes are read, so that no change in between is missed
        total = hashlib.sha256()
        for digest in pool.map(_digest, paths):
            total.update(digest)
    return Contents(paths, total.hexdigest(), stamps)


def _digest(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise _gone(path, error) from error


def _stamp(path: Path) -> Stamp:
    try:
        found = os.stat(path)
    except OSError as error:
        raise _gone(path, error) from error
    return found.st_size, found.st_mtime_ns


def _gone(path: Path, error: OSError) -> DataError:
    return gone(path, error.strerror)


def gone(path: Path, why: object) -> DataError:
    """An image that was there when the run began."""
    return DataError(f"{path} could be read when the run began but not now ({why}); put the file back and resume")
