"""Large files that are computed once and cached: computation is resumable, and a store is renamed only when complete.

    KEY/{facts.json, records, index}   what it holds; the records, concatenated; where each record ends, and its checksums
    KEY.partial/                       the same, incomplete; `index` lists only records that have been flushed to disk

KEY is a hash of the facts, which name everything that the bytes depend on. If a process is killed, the next one continues
after the last flushed record. If two processes need the same store, the second waits and uses what the first computed. The
ranks of one job compute it together, a batch each in turn, and write into the same file; the bytes do not depend on how many.

A record consists of one or more pieces of equal size. Each has a CRC-32, which is compared the first time that a process reads
the piece; the index is sealed as a whole. So bytes that changed on the disk are noticed before they are used.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from debgcd import __version__
from debgcd.errors import DataError
from debgcd.system import distributed
from debgcd.system.files import FULL, UNREADABLE, amount, read_json, read_sealed, turn, write_json, write_sealed
from debgcd.system.progress import Report, say, waiting

FACTS, RECORDS, INDEX = "facts.json", "records", "index"
SAFE_EVERY = 64_000_000  # bytes between two flushes to disk: the most work that a kill can lose


@dataclass(frozen=True)
class Index:
    """Where records end in their file, in bytes, and the checksums of their pieces."""

    ends: NDArray[np.int64]  # (N,)
    sums: NDArray[np.uint32]  # (N, pieces)

    def to_bytes(self) -> bytes:
        table = np.concatenate([self.ends[:, None], self.sums], axis=1, dtype="<i8")
        return np.append(self.sums.shape[1], table).astype("<i8").tobytes()

    @staticmethod
    def from_bytes(content: bytes) -> Index:
        pieces, *_ = table = np.frombuffer(content, "<i8")
        table = table[1:].reshape(-1, 1 + int(pieces))
        return Index(table[:, 0].astype(np.int64), table[:, 1:].astype(np.uint32))

    @property
    def size(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def extent(self, number: int) -> tuple[int, int]:
        """Where a record begins and ends."""
        return (int(self.ends[number - 1]) if number else 0), int(self.ends[number])


class Store:
    """A complete store. What it returns is what was written."""

    def __init__(self, folder: Path, index: Index):
        self.folder, self.index = folder, index
        self._verified = np.zeros(index.sums.shape, bool)  # the pieces that this process has compared
        self._file: IO[bytes] | None = None

    @property
    def records(self) -> Path:
        return self.folder / RECORDS

    @property
    def pieces(self) -> int:
        return self.index.sums.shape[1]

    def read(self, number: int, piece: int = 0) -> NDArray[np.uint8] | None:
        """The bytes of a piece of a record; None if they cannot be read or are not what was written."""
        begin, end = self.index.extent(number)
        size = (end - begin) // self.pieces
        found = np.empty(size, np.uint8)
        try:
            if self._file is None:
                self._file = open(self.records, "rb", buffering=0)  # noqa: SIM115 (for as long as the store is in use)
            # not mapped into memory: a disk that fails or a file that was cut would end the process without a word
            count = os.preadv(self._file.fileno(), [found.data], begin + piece * size)
        except OSError:
            return None
        if count != size:
            return None
        if not self._verified[number, piece]:
            if zlib.crc32(found.data) != self.index.sums[number, piece]:
                return None
            self._verified[number, piece] = True
        return found

    def restore(self, number: int, record: NDArray[Any]) -> bool:
        """Write a record that was computed again, if it is what was stored before and this process may write it."""
        begin, end = self.index.extent(number)
        content = record.reshape(-1).view(np.uint8)
        if len(content) != end - begin or (_checksums(content, self.pieces) != self.index.sums[number]).any():
            return False
        try:
            with open(self.records, "r+b") as file:
                file.seek(begin)
                file.write(content.data)
        except OSError:
            return False
        return True

    def damaged(self) -> list[int]:
        """The records that cannot be read or are not what was written; all are read."""
        self._verified[:] = False
        return [i for i in range(len(self.index.ends)) if any(self.read(i, p) is None for p in range(self.pieces))]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_file": None}  # each process opens its own


def _checksums(content: NDArray[np.uint8], pieces: int) -> NDArray[np.uint32]:
    return np.array([zlib.crc32(piece.data) for piece in content.reshape(pieces, -1)], np.uint32)


@dataclass(frozen=True)
class Recipe:
    """What a store holds and how it is computed."""

    what: str  # name used in messages, e.g. "view bank"
    facts: dict[str, Any]  # plain JSON
    count: int  # of records
    size: int  # approximate total in bytes
    # Yields the records of each of these batches of record numbers. The last bits of a result may depend on its batch, and a
    # resumed or repaired store must equal one that was never interrupted.
    compute: Callable[[Sequence[range]], Generator[Sequence[NDArray[Any]]]]
    check: Callable[[Store], bool]  # recompute a few records and compare them with the store
    otherwise: str  # the setting that turns it off, e.g. "views.bank: off"
    batch: int = 1  # records that are computed together
    pieces: int = 1  # of a record, all of one size

    @property
    def key(self) -> str:
        return key_of(self.facts)

    def sample(self, size: int) -> list[int]:
        """Indices of a few records for `check`, the same on every call."""
        return [int(self.key[8 * i : 8 * i + 8], 16) % self.count for i in range(size)]

    def batches(self, first: int = 0) -> list[range]:
        """The batches from record `first` on, which is 0 or the end of an earlier batch."""
        return [range(i, min(i + self.batch, self.count)) for i in range(first, self.count, self.batch)]


def key_of(facts: dict[str, Any]) -> str:
    """The name of the store with these facts."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def missing_bytes(folder: Path, recipe: Recipe) -> int:
    """About how much is still to be written until the folder holds this store, by its facts and file sizes; 0 if it does."""
    if _read(folder / recipe.key, recipe) is not None:
        return 0
    return max(0, recipe.size - _look((folder / recipe.key).with_suffix(".partial"), recipe)[0].size)


def open_store(folder: Path, recipe: Recipe, on_progress: Report | None = None) -> Store:
    """Open the store of this recipe in a folder of stores; compute it if it is missing or damaged."""
    place = folder / recipe.key
    if not _sound(place, recipe):  # no lock until then: the folder may be read-only for this process
        with _turn(folder, recipe):
            while not _sound(place, recipe):
                if distributed.rank() == 0 and place.exists():
                    say(f"{recipe.what}: {place} is damaged or does not match its name; computing it again")
                    shutil.rmtree(place)
                if not _compute(place, recipe, on_progress):
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
    index, size = _look(place, recipe)
    return Store(place, index) if len(index.ends) == recipe.count and size == index.size else None


def _look(folder: Path, recipe: Recipe) -> tuple[Index, int]:
    """The index and the size of the records file; empty and 0 if the folder is not of this recipe or inconsistent."""
    try:
        if read_json(folder / FACTS)["facts"] == recipe.facts:
            return _consistent(folder)
    except UNREADABLE:
        pass
    return Index(np.empty(0, np.int64), np.empty((0, recipe.pieces), np.uint32)), 0


def _consistent(folder: Path) -> tuple[Index, int]:
    """The index and the size of the records file; a ValueError if one does not fit the other."""
    index = Index.from_bytes(read_sealed(folder / INDEX))
    size = (folder / RECORDS).stat().st_size
    if (np.diff(index.ends, prepend=0, append=size + 1) <= 0).any():
        raise ValueError("the index lists records that are not there")
    return index, size


def free_unusable(folder: Path, name: str, form: int) -> str:
    """Read all of a store, whole or half, and delete it if no run can use it; returns its state in a word or two.

    form: the `format` that stores of this kind have now.
    """
    place, key = folder / name, name.removesuffix(".partial")

    def busy(first: bool) -> None:
        raise Busy

    try:
        with turn(folder, key, busy):
            try:
                facts = read_json(place / FACTS)["facts"]
                state = "old" if facts["format"] != form else "half" if key != name else "whole"
                index, size = _consistent(place)
                if key_of(facts) != key or (state == "whole" and size != index.size) or Store(place, index).damaged():
                    state = "damaged"
            except UNREADABLE:
                state = "damaged"
            if state in ("old", "damaged"):
                shutil.rmtree(place)
    except Busy:
        return "in use"
    return state


class Busy(Exception):
    """Another process is computing a store."""


def _compute(place: Path, recipe: Recipe, on_progress: Report | None) -> int:
    """Write all records and rename the folder; returns the number of records that an earlier, killed process had written."""
    partial = place.with_suffix(".partial")
    report = on_progress or (lambda done, total, note="": None)
    try:
        first = distributed.from_rank0(lambda: _prepare(partial, recipe))
        if not (partial / FACTS).is_file():
            raise _unreadable(str(partial))
        before = _look(partial, recipe)[0]
        ends: list[int] = before.ends.tolist()
        sums: list[NDArray[np.uint32]] = list(before.sums)
        end = safe = before.size
        own = recipe.batches(first)[distributed.rank() :: distributed.count()]
        report(first, recipe.count)
        with open(partial / RECORDS, "r+b") as file, closing(recipe.compute(own)) as batches:
            while len(ends) < recipe.count:
                batch = [record.reshape(-1).view(np.uint8) for record in next(batches, ())]  # some ranks have one more
                facts = [[len(record), _checksums(record, recipe.pieces).tolist()] for record in batch]
                rounds = distributed.all_gather(facts)
                assert any(rounds)
                file.seek(end + sum(size for size, _ in itertools.chain(*rounds[: distributed.rank()])))
                for record in batch:
                    file.write(record.data)
                for size, checksums in itertools.chain(*rounds):
                    end += size
                    ends.append(end)
                    sums.append(np.array(checksums, np.uint32))
                if end - safe >= SAFE_EVERY or len(ends) == recipe.count:
                    file.flush()
                    os.fsync(file.fileno())  # the records must be on disk before the index that names them
                    distributed.barrier()
                    if distributed.rank() == 0:
                        write_sealed(partial / INDEX, Index(np.array(ends), np.array(sums)).to_bytes())
                    safe = end
                report(len(ends), recipe.count)
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
    index = _look(partial, recipe)[0]
    free, missing = shutil.disk_usage(partial.parent).free, recipe.size - index.size
    if missing > free:
        raise _no_room(recipe, f"needs {amount(missing)} in {partial.parent} but only {amount(free)} is free")
    if not len(index.ends):
        _begin(partial, recipe)
    os.truncate(partial / RECORDS, index.size)
    return len(index.ends)


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
