"""What is in image files, as hashes; and whether they still are what they were when these were taken.

Reading a million files takes an hour, so that the cache keeps their hashes. A file is read again only where its size, time
or inode is not the one that its hash was taken with.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from debgcd.errors import DataError
from debgcd.files import write_bytes

READERS = 8  # files read at once: a disk far away takes its time for each
FOLDER = "contents"
SETTLED = 2 * 10**9  # nanoseconds: a file hashed sooner after a change could change again and keep its time
STAMP = ("size", "time", "inode")  # what tells that a file was changed, without reading it
ENTRY = np.dtype([("size", "<i8"), ("time", "<i8"), ("inode", "<i8"), ("sha256", "V32")])


@dataclass(frozen=True)
class Contents:
    """The bytes of image files at one moment; what the files are called does not matter."""

    paths: Sequence[Path]
    sha256: str  # of all of them, in order
    entries: NDArray[np.void]  # (N,) ENTRY

    def require_unchanged(self, numbers: Iterable[int]) -> None:
        """Refuse if one of these files was changed since: what was decoded from it may not be what was hashed."""
        for number in numbers:
            if _stamp(self.paths[number]) != tuple(self.entries[number][list(STAMP)].item()):
                raise DataError(
                    f"{self.paths[number]} was changed while it was in use; start again when nothing writes to it"
                )


def read_contents(paths: Sequence[Path], cache: Path) -> Contents:
    """The hashes of all files: those that the cache knows, and of the others by reading them."""
    place = _place(paths, cache)
    known, begun = _known(place, len(paths)), time.time_ns()
    with ThreadPoolExecutor(READERS) as pool:
        # stamps first, so that no change between the two is missed
        entries = np.array([(*stamp, b"") for stamp in pool.map(_stamp, paths)], ENTRY)
        unread = np.flatnonzero(np.any([known[part] != entries[part] for part in STAMP], axis=0)).tolist()
        entries["sha256"] = known["sha256"]
        for i, digest in zip(unread, pool.map(lambda i: _digest(paths[i]), unread), strict=True):
            entries[i]["sha256"] = digest
    if unread:
        kept = entries.copy()
        kept["size"][kept["time"] > begun - SETTLED] = -1  # never equal: read again next time
        buffer = io.BytesIO()
        np.save(buffer, kept, allow_pickle=False)
        with suppress(OSError):  # a cache that cannot be written to costs time, not the run
            place.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(place, buffer.getvalue())
    return Contents(paths, hashlib.sha256(entries["sha256"].tobytes()).hexdigest(), entries)


def forget_contents(paths: Sequence[Path], cache: Path) -> None:
    """Have `read_contents` read every one of these files again."""
    _place(paths, cache).unlink(missing_ok=True)


def _place(paths: Sequence[Path], cache: Path) -> Path:
    names = b"\0".join(os.fsencode(os.path.abspath(path)) for path in paths)
    return cache / FOLDER / f"{hashlib.sha256(names).hexdigest()[:32]}.npy"


def _known(place: Path, count: int) -> NDArray[np.void]:
    """What the cache knows of so many files; entries of size -1 where it knows nothing."""
    nothing = np.zeros(count, ENTRY)
    nothing["size"] = -1
    try:
        with open(place, "rb") as file:
            found = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):  # not there, or damaged
        return nothing
    return found if found.dtype == ENTRY and found.shape == (count,) else nothing


def _digest(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise gone(path, error.strerror) from error


def _stamp(path: Path) -> tuple[int, int, int]:
    """Size, time of the last change, inode."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise gone(path, error.strerror) from error
    return found.st_size, found.st_mtime_ns, found.st_ino & 2**63 - 1


def gone(path: Path, why: object) -> DataError:
    """An image that was there when the run began."""
    return DataError(f"{path} could be read when the run began but not now ({why}); put the file back and resume")
