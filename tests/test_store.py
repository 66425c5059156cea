"""Stores: killed at any instant they go on and end in the same bytes; broken, foreign or half ones are never used."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from debgcd.errors import DataError
from debgcd.system import store
from debgcd.system.files import read_sealed
from debgcd.system.store import Index, Recipe, Store, missing_bytes, open_store

pytestmark = pytest.mark.tries("a store killed, damaged or full", "survived")

FORK = multiprocessing.get_context("fork")
COUNT, BATCH, PIECES = 23, 3, 4


def record(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 2**15, (PIECES, 5 + 7 * number % 32), dtype=np.int16)


def piece(number: int, place: int) -> bytes:
    return record(number)[place].tobytes()


@dataclass
class Work:
    """A recipe, and what was asked of it."""

    facts: dict[str, Any] = field(default_factory=lambda: {"of": "test"})
    starts: list[int] = field(default_factory=list)
    checks: int = 0
    sound: bool = True
    on_batch: Callable[[int], None] = lambda start: None

    def compute(self, batches: Sequence[range]) -> Generator[list[np.ndarray]]:
        self.starts.append(batches[0].start if batches else COUNT)
        for batch in batches:
            self.on_batch(batch.start)
            yield [record(number) for number in batch]

    def check(self, kept: Store) -> bool:
        self.checks += 1
        return self.sound

    @property
    def recipe(self) -> Recipe:
        size = sum(record(number).nbytes for number in range(COUNT))
        return Recipe("view bank", self.facts, COUNT, size, self.compute, self.check, "views.bank: off", BATCH, PIECES)


@pytest.fixture(autouse=True)
def _often_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SAFE_EVERY", 400)


def content(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """What an uninterrupted computation leaves."""
    return content(open_store(tmp_path / "whole", Work().recipe).folder)


def listed(index: Path) -> Index:
    return Index.from_bytes(read_sealed(index))


def in_a_process(work: Callable[[], object]) -> int | None:
    process = FORK.Process(target=work, daemon=True)  # ends with the tests, should it hang
    process.start()
    process.join(60)
    return process.exitcode


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_store_holds_its_records_and_says_what_it_is(tmp_path: Path) -> None:
    kept = open_store(tmp_path, Work({"of": "test", "shape": [1, 2]}).recipe)
    for number in (0, 1, 11, COUNT - 1):
        for place in range(PIECES):
            found = kept.read(number, place)
            assert found is not None and found.tobytes() == piece(number, place)
    assert kept.records.read_bytes() == b"".join(record(number).tobytes() for number in range(COUNT))
    told = json.loads((kept.folder / "facts.json").read_text())
    assert told["what"] == "view bank" and told["facts"] == {"of": "test", "shape": [1, 2]} and told["debgcd"]
    assert left(tmp_path) == [kept.folder.name]


def test_it_is_computed_once_and_by_its_facts(tmp_path: Path) -> None:
    first, again, other = Work(), Work(), Work({"of": "another"})
    assert missing_bytes(tmp_path, first.recipe) == first.recipe.size
    place = open_store(tmp_path, first.recipe).folder
    assert not missing_bytes(tmp_path, first.recipe)
    assert open_store(tmp_path, again.recipe).folder == place and open_store(tmp_path, other.recipe).folder != place
    assert (first.starts, again.starts, other.starts) == ([0], [], [0])
    assert (first.checks, again.checks) == (0, 1)  # what was computed just now need not be checked


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often an uninterrupted computation waits for the disk, and how often it renames."""
    counts = {"fsync": 0, "replace": 0}
    for name in counts:
        original = getattr(os, name)

        def counted(*words: Any, name: str = name, original: Callable[..., Any] = original) -> Any:
            counts[name] += 1
            return original(*words)

        monkeypatch.setattr(os, name, counted)
    open_store(tmp_path / "counted", Work().recipe)
    monkeypatch.undo()
    return counts


def dying_at(name: str, number: int, after: bool) -> None:
    original, count = getattr(os, name), 0

    def replacement(*words: Any) -> Any:
        nonlocal count
        count += 1
        if count == number and not after:
            die()
        result = original(*words)
        if count == number:
            die()
        return result

    setattr(os, name, replacement)


def test_killed_at_every_instant(
    tmp_path: Path, whole: dict[str, bytes], calls: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Around every wait for the disk and every rename; what came after the last safe record is lost, or is rubbish."""
    monkeypatch.setattr(store, "SAFE_EVERY", 400)  # `calls` undid it
    assert calls["fsync"] >= 8 and calls["replace"] >= 5
    resumed = set()
    for name, count in calls.items():
        for number in range(1, count + 1):
            for after in (False, True):
                folder = tmp_path / f"{name}-{number}-{after}"

                def work(name: str = name, number: int = number, after: bool = after, folder: Path = folder) -> None:
                    dying_at(name, number, after)
                    open_store(folder, Work().recipe)

                assert in_a_process(work) == -signal.SIGKILL
                again = Work()
                partial = folder / f"{again.recipe.key}.partial"
                done = not partial.exists()
                assert done == (name == "replace" and number == count and after)
                index = partial / "index"
                safe = listed(index).ends if index.exists() else np.empty(0, np.int64)
                if (partial / "records").exists():
                    with open(partial / "records", "r+b") as file:
                        file.truncate(safe[-1] if len(safe) else 0)
                        file.seek(0, os.SEEK_END)
                        file.write(b"rubbish" * 40)
                kept = open_store(folder, again.recipe)
                assert content(kept.folder) == whole and left(folder) == [kept.folder.name]
                assert again.starts == ([] if done else [len(safe)])
                assert again.checks == (1 if done or len(safe) else 0)
                resumed.update(again.starts)
    assert len(resumed) >= 4 and all(start % BATCH == 0 or start == COUNT for start in resumed)


def test_what_is_called_safe_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the power fail, the index must not be ahead of the records."""
    fsync, replace, synced, sizes = os.fsync, os.replace, {}, []

    def watched_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    def watched_replace(source: Path, target: Path) -> None:
        assert source.is_dir() or synced[source.stat().st_ino] == source.stat().st_size
        if target.name == "index":
            sizes.append(listed(source).size)
            assert sizes[-1] <= synced[target.with_name("records").stat().st_ino]
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    kept = open_store(tmp_path, Work().recipe)
    assert len(sizes) > 3 and sizes[-1] == kept.index.size == kept.records.stat().st_size


def test_killed_again_and_again_while_computing(tmp_path: Path, whole: dict[str, bytes]) -> None:
    for stop in (3, 9, 9, 15, 21):

        def work(stop: int = stop) -> None:
            open_store(tmp_path / "new", Work(on_batch=lambda start: die() if start == stop else None).recipe)

        assert in_a_process(work) == -signal.SIGKILL
    last = Work()
    assert content(open_store(tmp_path / "new", last.recipe).folder) == whole
    assert last.starts[0] >= 15


def test_an_error_while_computing_keeps_what_is_safe(tmp_path: Path, whole: dict[str, bytes]) -> None:
    def fail(start: int) -> None:
        if start == 18:
            raise DataError("gone")

    with pytest.raises(DataError, match="gone"):
        open_store(tmp_path / "new", Work(on_batch=fail).recipe)
    again = Work()
    assert content(open_store(tmp_path / "new", again.recipe).folder) == whole and again.starts[0] >= 12


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", [1, 2, 6])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, number: int) -> None:
    original, count = os.fsync, 0

    def fsync(descriptor: int) -> None:  # where a disk that promised room says that there is none
        nonlocal count
        count += 1
        if count == call:
            raise OSError(number, os.strerror(number))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DataError) as caught:
        open_store(tmp_path, Work().recipe)
    said = str(caught.value)
    assert os.strerror(number) in said and str(tmp_path) in said and "is free" in said
    assert "free some space, choose another cache folder, or do without it (views.bank: off)" in said
    assert left(tmp_path) == []


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The system's own limit, in the middle of a write."""

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        with pytest.raises(DataError, match=os.strerror(errno.EFBIG)):
            open_store(tmp_path, Work().recipe)

    assert in_a_process(work) == 0
    assert left(tmp_path) == []


def test_another_failure_of_the_disk_is_not_hidden(tmp_path: Path) -> None:
    def refuse(start: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        open_store(tmp_path, Work(on_batch=refuse).recipe)


def room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))


def test_no_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    room(monkeypatch, work.recipe.size - 1)
    with pytest.raises(
        DataError, match=r"needs 4 kB in .* but only 4 kB is free; free some space, choose another cache"
    ):
        open_store(tmp_path, work.recipe)
    assert work.starts == [] and left(tmp_path) == []
    room(monkeypatch, work.recipe.size)
    open_store(tmp_path, work.recipe)


def test_what_is_there_already_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        open_store(tmp_path, Work(on_batch=lambda start: die() if start == 15 else None).recipe)

    assert in_a_process(work) == -signal.SIGKILL
    again = Work()
    safe = listed(tmp_path / f"{again.recipe.key}.partial" / "index").size
    room(monkeypatch, again.recipe.size - safe - 1)
    with pytest.raises(DataError, match="free some space"):
        open_store(tmp_path, again.recipe)
    room(monkeypatch, again.recipe.size - safe)
    open_store(tmp_path, again.recipe)
    assert len(again.starts) == 1 and again.starts[0] > 0
    room(monkeypatch, 0)
    open_store(tmp_path, again.recipe)


def resized(name: str, by: int) -> Callable[[Path], None]:
    def work(place: Path) -> None:
        os.truncate(place / name, (place / name).stat().st_size + by)

    return work


def flipped(name: str, at: int) -> Callable[[Path], None]:
    """One bit of a file is another."""

    def work(place: Path) -> None:
        content = bytearray((place / name).read_bytes())
        content[at] ^= 4
        (place / name).write_bytes(content)

    return work


def rewritten(name: str, old: str, new: str) -> Callable[[Path], None]:
    def work(place: Path) -> None:
        text = (place / name).read_text()
        assert old in text
        (place / name).write_text(text.replace(old, new))

    return work


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut": resized("records", -1),
    "longer": resized("records", 1),
    "empty": lambda place: os.truncate(place / "records", 0),
    "no records": lambda place: (place / "records").unlink(),
    "shorter index": resized("index", -8),
    "longer index": resized("index", 8),
    "torn index": resized("index", -3),
    "no index": lambda place: (place / "index").unlink(),
    "another bit of the index": flipped("index", 40),
    "another seal of the index": flipped("index", 3),
    "no facts": lambda place: (place / "facts.json").unlink(),
    "other facts": rewritten("facts.json", '"test"', '"another"'),
    "facts that are no JSON": rewritten("facts.json", "{", "["),
    "facts of another form": rewritten("facts.json", '"facts"', '"words"'),
    "nothing": lambda place: [path.unlink() for path in place.iterdir()] and None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_is_computed_again(
    tmp_path: Path, whole: dict[str, bytes], damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = open_store(tmp_path / "new", Work().recipe).folder
    DAMAGE[damage](place)
    again = Work()
    assert missing_bytes(tmp_path / "new", again.recipe) == again.recipe.size
    capsys.readouterr()
    assert content(open_store(tmp_path / "new", again.recipe).folder) == whole and again.starts == [0]
    said = capsys.readouterr().err.splitlines()
    assert said == [f"view bank: {place} is damaged or does not match its name; computing it again"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_beginning_is_begun_again(tmp_path: Path, whole: dict[str, bytes], damage: str) -> None:
    """Unless what is left is still the beginning of the store."""
    place = open_store(tmp_path / "new", Work().recipe).folder
    partial = place.rename(place.with_suffix(".partial"))
    DAMAGE[damage](partial)
    again = Work()
    assert content(open_store(tmp_path / "new", again.recipe).folder) == whole
    assert again.starts == [{"longer": COUNT}.get(damage, 0)]


def test_records_of_another_content_are_computed_again(
    tmp_path: Path, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    place = open_store(tmp_path / "new", Work().recipe).folder
    (place / "records").write_bytes(whole["records"][::-1])
    again = Work(sound=False)
    assert content(open_store(tmp_path / "new", again.recipe).folder) == whole and again.starts == [0]
    assert "computing it again" in capsys.readouterr().err


def test_a_beginning_that_is_not_right_is_begun_again(tmp_path: Path, whole: dict[str, bytes]) -> None:
    def work() -> None:
        open_store(tmp_path / "new", Work(on_batch=lambda start: die() if start == 15 else None).recipe)

    assert in_a_process(work) == -signal.SIGKILL
    again = Work(sound=False)
    with open(tmp_path / "new" / f"{again.recipe.key}.partial" / "records", "r+b") as file:
        file.write(b"rubbish")
    assert content(open_store(tmp_path / "new", again.recipe).folder) == whole
    assert len(again.starts) == 2 and again.starts[0] > 0 and again.starts[1] == 0


class Pair:
    """Two processes that want the same store; the first stops in the middle until it is told to go on, or to die."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder, self.orders, self.news = folder, FORK.Pipe(), FORK.Pipe()
        self.first = FORK.Process(target=self.compute, daemon=True)
        self.first.start()
        assert self.hear() == "computing"
        monkeypatch.setattr("debgcd.system.progress.say", lambda text: self.news[1].send(text))
        self.second = FORK.Process(target=self.want, daemon=True)
        self.second.start()
        assert self.hear() == "view bank: another run is computing it; waiting"

    def compute(self) -> None:
        def on_batch(start: int) -> None:
            if start == 15:
                self.news[1].send("computing")
                if self.orders[0].recv() == "die":
                    die()

        open_store(self.folder, Work(on_batch=on_batch).recipe)

    def want(self) -> None:
        work = Work()
        open_store(self.folder, work.recipe)
        self.news[1].send(work.starts)

    def hear(self) -> Any:
        assert self.news[0].poll(60)
        return self.news[0].recv()

    def end(self) -> tuple[int | None, int | None]:
        self.first.join(60)
        self.second.join(60)
        return self.first.exitcode, self.second.exitcode


def test_the_second_of_two_waits_and_uses_what_the_first_made(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path / "new", monkeypatch)
    pair.orders[1].send("go on")
    assert pair.hear() == []
    assert pair.end() == (0, 0)
    assert content(tmp_path / "new" / Work().recipe.key) == whole


def test_the_second_of_two_takes_over_when_the_first_dies(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path / "new", monkeypatch)
    pair.orders[1].send("die")
    (start,) = pair.hear()
    assert 0 < start <= 15
    assert pair.end() == (-signal.SIGKILL, 0)
    assert content(tmp_path / "new" / Work().recipe.key) == whole


def test_another_store_need_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, monkeypatch)
    assert in_a_process(lambda: open_store(tmp_path, Work({"of": "another"}).recipe)) == 0
    pair.orders[1].send("go on")
    assert pair.hear() == [] and pair.end() == (0, 0)


def test_deleted_under_a_reader(tmp_path: Path) -> None:
    kept = open_store(tmp_path, Work().recipe)
    os.truncate(kept.records, int(kept.index.ends[5]) - 1)
    assert kept.read(4) is not None and kept.read(5, PIECES - 1) is None and kept.read(6) is None
    shutil.rmtree(kept.folder)
    assert kept.read(0) is not None  # what a process has open stays readable
    assert Store(kept.folder, kept.index).read(0) is None


@pytest.mark.parametrize("damage", [b"\0", b"\xff"])
def test_pieces_that_changed_on_the_disk_are_not_returned(tmp_path: Path, damage: bytes) -> None:
    """Wherever it is and whatever is there now; the others are still read."""
    place = open_store(tmp_path, Work().recipe)
    whole = place.records.read_bytes()
    size = len(record(9)[0]) * 2
    begin = int(place.index.ends[8]) + 2 * size
    with open(place.records, "r+b") as file:
        file.seek(begin + 3)
        file.write(damage)
    if place.records.read_bytes() == whole:
        pytest.skip("that byte was the same before")
    kept = open_store(tmp_path, Work().recipe)
    bad = [(i, p) for i in range(COUNT) for p in range(PIECES) if kept.read(i, p) is None]
    assert bad == [(9, 2)] and kept.damaged() == [9]
    assert not kept.restore(9, record(8)) and not kept.restore(9, record(9) + 1) and kept.read(9, 2) is None
    assert kept.restore(9, record(9)) and kept.damaged() == []
    assert place.records.read_bytes() == whole


def test_a_piece_is_compared_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = open_store(tmp_path, Work().recipe)
    sums, original = [], store.zlib.crc32
    monkeypatch.setattr(store.zlib, "crc32", lambda content: sums.append(len(content)) or original(content))
    for _ in range(3):
        kept.read(4, 1)
        kept.read(4, 3)
    assert len(sums) == 2


def test_a_whole_store_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(tmp_path, Work().recipe)

    def refuse(*words: object, **named: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(store, "turn", refuse)
    open_store(tmp_path, Work().recipe)
