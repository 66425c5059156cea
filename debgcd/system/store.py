"""Large files that are computed once and cached: computation is resumable, and a store is renamed only when complete.

    KEY/{facts.json, records, ends}    what it holds; the records, concatenated; the byte offset at which each record ends
    KEY.partial/                       the same, incomplete; `ends` lists only records that have been flushed to disk

KEY is a hash of the facts, which name everything that the bytes depend on. If a process is killed, the next one continues
after the last flushed record. If two processes need the same store, the second waits and uses what the first computed. The
ranks of one job compute it together, a batch each in turn, and write into the same file; the bytes do not depend on how many.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd import __version__
from debgcd.errors import DataError
from debgcd.system import distributed
from debgcd.system.files import FULL, amount, read_json, turn, write_bytes, write_json
from debgcd.system.progress import say, waiting

FACTS, RECORDS, ENDS = "facts.json", "records", "ends"
SAFE_EVERY = 64_000_000  # bytes between two flushes to disk: the most work that a kill can lose


@dataclass(frozen=True)
class Store:
    """A complete store."""

    folder: Path
    ends: NDArray[np.int64]  # (N,)

    @property
    def records(self) -> Path:
        return self.folder / RECORDS

    def read(self, number: int) -> NDArray[np.uint8] | None:
        """The bytes of one record; None if the file was deleted or truncated."""
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

    what: str  # name used in messages, e.g. "view bank"
    facts: dict[str, Any]  # plain JSON
    count: int  # of records
    size: int  # approximate total in bytes
    # Yields batches of records from this index on, which is 0 or the end of an earlier batch; of several ranks, each yields
    # the batches that are its turn. The last bits of a result may depend on its batch, and a resumed store must equal one
    # that was never interrupted.
    compute: Callable[[int], Generator[Sequence[NDArray[Any]]]]
    check: Callable[[Store], bool]  # recompute a few records and compare them with the store
    otherwise: str  # the setting that turns it off, e.g. "views.bank: off"

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.facts).encode()).hexdigest()[:32]

    def sample(self, size: int) -> list[int]:
        """Indices of a few records for `check`, the same on every call."""
        return [int(self.key[8 * i : 8 * i + 8], 16) % self.count for i in range(size)]


def exists(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder holds this store, judged by its facts and file sizes."""
    return _read(folder / recipe.key, recipe) is not None


def missing_bytes(folder: Path, recipe: Recipe) -> int:
    """About how much is still to be written until the folder holds this store."""
    if exists(folder, recipe):
        return 0
    return max(0, recipe.size - _last(_look((folder / recipe.key).with_suffix(".partial"), recipe)[0]))


def open_store(folder: Path, recipe: Recipe) -> Store:
    """Open the store of this recipe in a folder of stores; compute it if it is missing or damaged."""
    place = folder / recipe.key
    if not _sound(place, recipe):  # no lock until then: the folder may be read-only for this process
        with _turn(folder, recipe):
            while not _sound(place, recipe):
                if distributed.rank() == 0 and place.exists():
                    say(f"{recipe.what}: {place} is damaged or does not match its name; computing it again")
                    shutil.rmtree(place)
                if not _compute(place, recipe):
                    break
    kept = _read(place, recipe)
    if kept is None:
        raise _unreadable(f"{place} was written but")
    return kept


def _unreadable(what: str) -> DataError:
    if distributed.rank() == 0:
        return DataError(f"{what} cannot be read back; check the disk, or choose another cache folder", setting="cache")
    return DataError(
        f"{what} cannot be read here; choose another cache folder",
        setting="cache",
        then=", on a disk that all ranks share",
    )


@contextmanager
def _turn(folder: Path, recipe: Recipe) -> Iterator[None]:
    """Rank 0 keeps other jobs out."""
    if distributed.rank():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with turn(folder, recipe.key, waiting(f"{recipe.what}: another run is computing it; waiting")):
        yield


def _sound(place: Path, recipe: Recipe) -> bool:
    """Whether the store is there and what it should be; rank 0 looks."""

    def look() -> bool:
        kept = _read(place, recipe)
        return kept is not None and recipe.check(kept)

    return distributed.from_rank0(look)


def _read(place: Path, recipe: Recipe) -> Store | None:
    ends, size = _look(place, recipe)
    return Store(place, ends) if len(ends) == recipe.count and size == _last(ends) else None


def _look(folder: Path, recipe: Recipe) -> tuple[NDArray[np.int64], int]:
    """The end of each record and the size of the records file; empty and 0 if the folder is not of this recipe or inconsistent."""
    nothing = np.empty(0, np.int64), 0
    try:
        if read_json(folder / FACTS)["facts"] != recipe.facts:
            return nothing
        ends = np.frombuffer((folder / ENDS).read_bytes(), "<i8").astype(np.int64)
        size = (folder / RECORDS).stat().st_size
    except (OSError, ValueError, KeyError, TypeError):
        return nothing
    return (ends, size) if (np.diff(ends, prepend=0, append=size + 1) > 0).all() else nothing


def _last(ends: NDArray[np.int64] | list[int]) -> int:
    return int(ends[-1]) if len(ends) else 0


def _compute(place: Path, recipe: Recipe) -> int:
    """Write all records and rename the folder; returns the number of records that an earlier, killed process had written."""
    partial = place.with_suffix(".partial")
    try:
        first = distributed.from_rank0(lambda: _prepare(partial, recipe))
        if not (partial / FACTS).is_file():
            raise _unreadable(str(partial))
        ends: list[int] = _look(partial, recipe)[0].tolist()
        safe = _last(ends)
        with open(partial / RECORDS, "r+b") as file, closing(recipe.compute(first)) as batches:
            while len(ends) < recipe.count:
                batch = next(batches, ())  # at the end some ranks have one more than others
                rounds = distributed.all_gather([record.nbytes for record in batch])
                assert any(rounds)
                file.seek(_last(ends) + sum(map(sum, rounds[: distributed.rank()])))
                for record in batch:
                    file.write(record.data)
                for size in itertools.chain(*rounds):
                    ends.append(_last(ends) + size)
                if _last(ends) - safe >= SAFE_EVERY or len(ends) == recipe.count:
                    file.flush()
                    os.fsync(file.fileno())  # the records must be on disk before the list that names them
                    distributed.barrier()
                    if distributed.rank() == 0:
                        write_bytes(partial / ENDS, np.array(ends, "<i8").tobytes())
                    safe = _last(ends)
            assert next(batches, None) is None  # lets it end, and report its last batch
        if distributed.rank() == 0:
            os.replace(partial, place)
        distributed.barrier()
    except OSError as error:
        if error.errno not in FULL:
            raise
        if distributed.rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)  # leaving it would keep the disk full for everything else
        free = shutil.disk_usage(place.parent).free
        raise _no_room(
            recipe,
            f"cannot be written to {place.parent} ({error.strerror}): it needs {amount(recipe.size)}, and {amount(free)} is free",
        ) from error
    return first


def _prepare(partial: Path, recipe: Recipe) -> int:
    """Make sure that there is room and a folder to go on with; returns how many records it holds."""
    ends = _look(partial, recipe)[0]
    free, missing = shutil.disk_usage(partial.parent).free, recipe.size - _last(ends)
    if missing > free:
        raise _no_room(recipe, f"needs {amount(missing)} in {partial.parent} but only {amount(free)} is free")
    if not len(ends):
        _begin(partial, recipe)
    os.truncate(partial / RECORDS, _last(ends))
    return len(ends)


def _begin(partial: Path, recipe: Recipe) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_json(partial / FACTS, {"what": recipe.what, "debgcd": __version__, "facts": recipe.facts})
    (partial / RECORDS).touch()


def _no_room(recipe: Recipe, why: str) -> DataError:
    return DataError(
        f"the {recipe.what} {why}; free some space, choose another cache folder",
        setting="cache",
        then=f", or do without it ({recipe.otherwise})",
    )
