"""Large files that are computed once and kept: resumable while they grow, and under their final name whole or not there.

    KEY/{facts.json, records, ends}    what it is; the records, one after the other; the byte at which each of them ends
    KEY.partial/                       the same while it grows; `ends` lists only records that are safely on the disk

KEY is a hash of the facts, and they say all that the bytes depend on. Killed at any instant, the next process goes on after
the last safe record. Two processes that want the same one take turns: the second waits, and uses what the first has made.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd import __version__
from debgcd.errors import DataError
from debgcd.files import turn, write_bytes, write_json
from debgcd.progress import say

FACTS, RECORDS, ENDS = "facts.json", "records", "ends"
SAFE_EVERY = 64_000_000  # bytes between two waits for the disk; a kill loses no more work than this
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Store:
    """A complete store."""

    folder: Path
    ends: NDArray[np.int64]  # (N,)

    @property
    def records(self) -> Path:
        return self.folder / RECORDS

    def read(self, number: int) -> NDArray[np.uint8] | None:
        """One record's bytes; None if somebody has deleted or cut the file."""
        start = int(self.ends[number - 1]) if number else 0
        count = int(self.ends[number]) - start
        try:
            found = np.fromfile(self.records, np.uint8, count, offset=start)
        except OSError:
            return None
        return found if len(found) == count else None


@dataclass(frozen=True)
class Recipe:
    """What a store holds and how it is computed."""

    what: str  # in messages, e.g. "view bank"
    facts: dict[str, Any]  # plain JSON
    count: int  # of records
    size: int  # bytes in all, about
    # Batches of records from this number on, which is 0 or the end of an earlier batch: what is computed together may
    # depend on its company in the last bits, and a resumed store must equal one that was never interrupted.
    compute: Callable[[int], Generator[Sequence[NDArray[Any]]]]
    check: Callable[[Store], bool]  # do a few records, computed again, agree with what the store holds?
    otherwise: str  # how to do without it, e.g. "--bank off"

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.facts).encode()).hexdigest()[:32]

    def sample(self, size: int) -> list[int]:
        """Numbers of a few records, the same each time, for `check`."""
        return [int(self.key[8 * i : 8 * i + 8], 16) % self.count for i in range(size)]


def exists(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder holds this store, by its facts and sizes."""
    return _read(folder / recipe.key, recipe) is not None


def open_store(folder: Path, recipe: Recipe) -> Store:
    """The store of this recipe in a folder of stores; computed if it is not there, and again if it is not sound."""
    place = folder / recipe.key
    kept = _sound(place, recipe)
    if kept is not None:  # without a lock: it may lie where this process cannot write
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with turn(folder, recipe.key, lambda: say(f"{recipe.what}: another run is computing it; waiting for that")):
        while (kept := _sound(place, recipe)) is None:
            if place.exists():
                say(f"{recipe.what}: {place} is damaged or not what its name says; computing it again")
                shutil.rmtree(place)
            if not _compute(place, recipe):
                kept = _read(place, recipe)
                break
    if kept is None:
        raise DataError(f"{place} was written but cannot be read back; is the disk sound? Use --cache on another disk")
    return kept


def _sound(place: Path, recipe: Recipe) -> Store | None:
    kept = _read(place, recipe)
    return kept if kept is not None and recipe.check(kept) else None


def _read(place: Path, recipe: Recipe) -> Store | None:
    ends, size = _look(place, recipe)
    return Store(place, ends) if len(ends) == recipe.count and size == _last(ends) else None


def _look(folder: Path, recipe: Recipe) -> tuple[NDArray[np.int64], int]:
    """Where the records in a folder end, and the size of their file; nothing if they are not all there or not of this recipe."""
    nothing = np.empty(0, np.int64), 0
    try:
        if json.loads((folder / FACTS).read_text("utf-8"))["facts"] != recipe.facts:
            return nothing
        ends = np.frombuffer((folder / ENDS).read_bytes(), "<i8").astype(np.int64)
        size = (folder / RECORDS).stat().st_size
    except (OSError, ValueError, KeyError, TypeError):
        return nothing
    return (ends, size) if (np.diff(ends, prepend=0, append=size + 1) > 0).all() else nothing


def _last(ends: NDArray[np.int64] | list[int]) -> int:
    return int(ends[-1]) if len(ends) else 0


def _compute(place: Path, recipe: Recipe) -> int:
    """Write all records and give them their name; returns how many an earlier process had written before it was killed."""
    partial = place.with_suffix(".partial")
    ends: list[int] = _look(partial, recipe)[0].tolist()
    first, safe = len(ends), _last(ends)
    free = shutil.disk_usage(place.parent).free
    if recipe.size - safe > free:
        raise DataError(
            f"the {recipe.what} needs {amount(recipe.size - safe)} in {place.parent} but only {amount(free)} are free; "
            f"{_advice(recipe)}"
        )
    try:
        if not first:
            _begin(partial, recipe)
        with open(partial / RECORDS, "r+b") as file, closing(recipe.compute(first)) as batches:
            file.truncate(safe)
            file.seek(safe)
            for batch in batches:
                for record in batch:
                    file.write(record.data)
                    ends.append(_last(ends) + record.nbytes)
                if _last(ends) - safe >= SAFE_EVERY or len(ends) == recipe.count:
                    file.flush()
                    os.fsync(file.fileno())  # first the records, then the list that says they are there
                    write_bytes(partial / ENDS, np.array(ends, "<i8").tobytes())
                    safe = _last(ends)
        assert len(ends) == recipe.count
        os.replace(partial, place)
    except OSError as error:
        if error.errno not in FULL:
            raise
        shutil.rmtree(partial, ignore_errors=True)  # a full disk would stop everything else too
        free = shutil.disk_usage(place.parent).free
        raise DataError(
            f"the {recipe.what} cannot be written to {place.parent} ({error.strerror}): it needs {amount(recipe.size)}, and "
            f"{amount(free)} are free; {_advice(recipe)}"
        ) from error
    return first


def _begin(partial: Path, recipe: Recipe) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_json(partial / FACTS, {"what": recipe.what, "debgcd": __version__, "facts": recipe.facts})
    (partial / RECORDS).touch()


def _advice(recipe: Recipe) -> str:
    return f"make room, use --cache on another disk, or {recipe.otherwise}"


def amount(size: int) -> str:
    """Bytes as people say it: 2 kB, 35 MB, 16.2 GB."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
