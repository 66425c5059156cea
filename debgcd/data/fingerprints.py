"""Content hashes of image files, cached by path and stat.

Reading a million files takes an hour, so the cache keeps their hashes by path. A file is read again only if its size, times
or inode have changed since it was hashed.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from debgcd.data.image.crop import Crop, Picture, number_text
from debgcd.data.image.decode import Reason, Unusable, regular_file
from debgcd.errors import DataError
from debgcd.system import distributed
from debgcd.system.progress import Report

READERS = 8  # files read at once: a network disk takes its time for each
FILE = "contents.sqlite"
SETTLED = 2 * 10**9  # nanoseconds: a file hashed sooner after a change could change again and keep its time
PATHS_PER_QUERY = 500
SHOWN = 3  # changed files that an error names

Stamp = tuple[int, int, int, int]  # size, time of the last change of the content, of the inode, and the inode's number


@dataclass(frozen=True)
class Contents:
    """The bytes of image files at one moment."""

    paths: Sequence[Picture]
    digests: list[bytes]  # sha256 of each
    stamps: list[Stamp]

    @property
    def sha256(self) -> str:
        """Of all images in order: the bytes of files and the boxes in them; names do not matter."""
        return hashlib.sha256(b"".join(self.own_digests())).hexdigest()

    def own_digests(self) -> list[bytes]:
        """Of each image: the same for two images only if their files' bytes and their boxes are."""
        return list(map(_with_box, self.paths, self.digests))

    def require_unchanged(self, numbers: Iterable[int]) -> None:
        """Refuse if one of these files was changed since: what was decoded from it may not be what was hashed."""
        for number in numbers:
            if file_stamp(self.paths[number]) != self.stamps[number]:
                raise DataError(
                    f"{self.paths[number]} was changed while it was in use; start again when nothing writes to it"
                )

    def require_same(self, digests: Sequence[str], where: Path) -> None:
        """Refuse if the files are not those of these hashes, which `where` holds."""
        changed = [
            str(p) for p, one, other in zip(self.paths, self.digests, digests, strict=True) if one.hex() != other
        ]
        if changed:
            more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
            raise DataError(
                f"images have changed since the run began: {', '.join(changed[:SHOWN])}{more} (their sha256 is not the one "
                f"in {where}); restore them, or train in a new run directory"
            )


def read_contents(paths: Sequence[Picture], cache: Path, on_progress: Report | None = None) -> Contents:
    """The hashes of all files: those that the cache knows, and of the others by reading them."""
    known, begun = _known(paths, cache), time.time_ns()
    with ThreadPoolExecutor(READERS) as pool:
        stamps = list(pool.map(file_stamp, paths))  # before the bytes are read, so that no change in between is missed
        digests = [known.get((_key(path), stamp), b"") for path, stamp in zip(paths, stamps, strict=True)]
        same: dict[bytes, list[int]] = {}  # a file with many boxes is read once
        for i, digest in enumerate(digests):
            if not digest:
                same.setdefault(_key(paths[i]), []).append(i)
        unread = [rows[0] for rows in same.values()]
        try:
            read = pool.map(lambda i: file_digest(paths[i]), unread)
            for done, (rows, digest) in enumerate(zip(same.values(), read, strict=True), 1):
                for i in rows:
                    digests[i] = digest
                distributed.heartbeat()
                if on_progress is not None:
                    on_progress(done, len(unread))
        finally:  # told to stop: the files that no thread reads yet are not waited for
            pool.shutdown(wait=False, cancel_futures=True)
    settled = [i for i in unread if stamps[i][1] < begun - SETTLED]
    _remember([(_key(paths[i]), *stamps[i], digests[i]) for i in settled], cache)
    return Contents(paths, digests, stamps)


def require_own(path: Picture, sha256: str) -> None:
    """Raise Unusable unless the file has this content: a link, or another file in its place, may show anything."""
    regular_file(path)  # opening a pipe would wait for ever
    try:
        found = file_digest(path)
    except DataError as error:
        raise Unusable(Reason.UNREADABLE, str(error)) from error
    if found.hex() != sha256:
        raise foreign()


def foreign() -> Unusable:
    """An image whose file is not what it was."""
    return Unusable(Reason.CHANGED, "it is not the file that the run was trained on")


def unusable_now(paths: Sequence[Picture], sha256: Sequence[str], cache: Path) -> list[str]:
    """For each image why it cannot be used any more, empty if its file still has this content."""
    reasons = []
    for path in paths:
        try:
            regular_file(path)
            reasons.append("")
        except Unusable as error:
            reasons.append(str(error))
    there = [i for i, reason in enumerate(reasons) if not reason]
    try:
        found = read_contents([paths[i] for i in there], cache).digests
    except DataError:  # one cannot be read; which one, only a look at each can tell
        for i in there:
            try:
                require_own(paths[i], sha256[i])
            except Unusable as error:
                reasons[i] = str(error)
        return reasons
    for i, digest in zip(there, found, strict=True):
        if digest.hex() != sha256[i]:
            reasons[i] = str(foreign())
    return reasons


def forget_contents(paths: Sequence[Picture], cache: Path) -> None:
    """Have `read_contents` read every one of these files again."""
    with suppress(sqlite3.Error), closing(_open(cache)) as table, table:
        table.executemany("DELETE FROM files WHERE path = ?", [(_key(path),) for path in paths])


def _known(paths: Sequence[Picture], cache: Path) -> dict[tuple[bytes, Stamp], bytes]:
    """Hashes by path and stamp; none where the cache cannot be read."""
    known: dict[tuple[bytes, Stamp], bytes] = {}
    if not (cache / FILE).is_file():
        return known
    with suppress(sqlite3.Error, TypeError, ValueError), closing(_open(cache)) as table:
        keys = [_key(path) for path in paths]
        for start in range(0, len(keys), PATHS_PER_QUERY):
            some = keys[start : start + PATHS_PER_QUERY]
            marks = ",".join("?" * len(some))
            for path, size, written, changed, inode, sha256 in table.execute(
                f"SELECT path, size, written, changed, inode, sha256 FROM files WHERE path IN ({marks})", some
            ):
                if isinstance(sha256, bytes) and len(sha256) == 32:
                    known[path, (size, written, changed, inode)] = sha256
    return known


def _remember(rows: list[tuple[bytes, int, int, int, int, bytes]], cache: Path) -> None:
    if rows:
        with suppress(sqlite3.Error, OSError):  # a cache that cannot be written to costs time, not the run
            cache.mkdir(parents=True, exist_ok=True)
            with closing(_open(cache)) as table, table:
                table.execute(
                    "CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, size INTEGER, written INTEGER, "
                    "changed INTEGER, inode INTEGER, sha256 BLOB) WITHOUT ROWID"
                )
                table.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)


def _open(cache: Path) -> sqlite3.Connection:
    return sqlite3.connect(cache / FILE, timeout=60)


def _with_box(path: Picture, digest: bytes) -> bytes:
    """The digest of an image: that of its file, or of the file's and the box."""
    if not isinstance(path, Crop):
        return digest
    return hashlib.sha256(digest + ",".join(map(number_text, path.box)).encode()).digest()


def _key(path: Picture) -> bytes:
    return os.fsencode(os.path.abspath(path))


def file_digest(path: Picture) -> bytes:
    """The sha256 of an image's file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise gone(path, error.strerror) from error


def file_stamp(path: Picture) -> Stamp:
    """Differs after every change of an image's file."""
    try:
        stat = os.stat(path)
    except OSError as error:
        raise gone(path, error.strerror) from error
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino & 2**63 - 1


def gone(path: Picture, why: object) -> DataError:
    """An image that was there when the run began."""
    return DataError(f"{path} could be read when the run began but not now ({why}); put the file back and resume")
