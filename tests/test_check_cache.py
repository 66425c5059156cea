"""`debgcd check --cache`: all is read, and what no run would use is deleted; nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from debgcd.cache import check_cache
from debgcd.review.page import similar
from debgcd.system.files import turn, write_sealed
from debgcd.system.store import Recipe, open_store
from debgcd.tokens import bank, image_cache

pytestmark = pytest.mark.tries("a damaged cache", "survived")

Command = Callable[..., Any]


def recipe(form: int, of: str) -> Recipe:
    def compute(batches: Sequence[range]) -> Any:
        for batch in batches:
            yield [np.full((2, 40), number, np.uint8) for number in batch]

    return Recipe("test", {"format": form, "of": of}, 5, 400, compute, lambda store: True, "", 1, 2)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A bank, an image cache, features and two tables, all whole; and files of others."""
    place = tmp_path / "cache"
    open_store(place / bank.FOLDER, recipe(bank.FORMAT, "bank"))
    open_store(place / image_cache.FOLDER, recipe(image_cache.FORMAT, "images"))
    (place / similar.FOLDER).mkdir()
    write_sealed(place / similar.FOLDER / f"{'a' * 32}{similar.SUFFIX}", b"features")
    for name in ("contents.sqlite", "thumbnails-80-55.sqlite"):
        with sqlite3.connect(place / name) as table:
            table.execute("CREATE TABLE t (a)")
            table.executemany("INSERT INTO t VALUES (?)", [("x" * 900,)] * 40)
        table.close()
    for name in ("hub/model.bin", "images/photo.jpg", "banks/mine/records", "review/notes.txt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"not ours")
    return place


def states(cache: Path) -> dict[str, str]:
    return {entry.what: entry.state for entry in check_cache(cache)}


def files(cache: Path) -> set[Path]:
    return {path for path in cache.rglob("*") if path.is_file() and path.name != ".lock"}


def the(cache: Path, pattern: str) -> Path:
    (found,) = cache.glob(pattern)
    return found


def overwritten(pattern: str, at: int) -> Callable[[Path], object]:
    def work(cache: Path) -> None:
        with open(the(cache, pattern), "r+b") as file:
            file.seek(at)
            file.write(b"rubbish")

    return work


def test_a_whole_cache_is_kept(cache: Path, command: Command) -> None:
    before = files(cache)
    said = command("check", "--cache", cache)
    assert said.code == 0 and "5 entries; 0 were damaged or old and are deleted, 0 kB" in said.out
    assert files(cache) == before
    assert [entry["state"] for entry in json.loads(command("check", "--cache", cache, "--json").out)] == ["whole"] * 5


BANK = "banks/" + "[0-9a-f]" * 32
DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a view": ("view bank", overwritten(f"{BANK}/records", 170)),
    "the index": ("view bank", overwritten(f"{BANK}/index", 50)),
    "a cut bank": ("view bank", lambda cache: os.truncate(the(cache, f"{BANK}/records"), 399)),
    "no facts": ("view bank", lambda cache: the(cache, f"{BANK}/facts.json").unlink()),
    "an image": ("image cache", overwritten("images/" + "[0-9a-f]" * 32 + "/records", 0)),
    "features": ("features of a review", overwritten("review/*.features-*", 35)),
    "a table": ("table", overwritten("thumbnails-80-55.sqlite", 0)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_deleted(cache: Path, damage: str, command: Command) -> None:
    what, work = DAMAGE[damage]
    work(cache)
    foreign = {path for path in files(cache) if path.read_bytes() == b"not ours"}
    said = command("check", "--cache", cache)
    assert "5 entries; 1 were damaged or old and are deleted" in said.out
    assert [line.split()[-1] for line in said.out.splitlines() if "damaged" in line][:-1] == ["damaged"]
    left = [entry.what for entry in check_cache(cache)]
    assert len(left) == 4 and left.count(what) == (what == "table")
    assert foreign <= files(cache)


def test_what_is_old_is_deleted_and_what_is_half_is_kept(cache: Path) -> None:
    folder = cache / bank.FOLDER
    old = open_store(folder, recipe(bank.FORMAT - 1, "bank")).folder
    half = open_store(folder, recipe(bank.FORMAT, "half")).folder
    half = half.rename(half.with_suffix(".partial"))
    features = cache / similar.FOLDER / f"{'b' * 32}.npy"
    features.write_bytes(b"as they were")
    said = {entry.path: entry.state for entry in check_cache(cache)}
    assert (said[old], said[half], said[features]) == ("old", "half", "old")
    assert not old.exists() and half.exists() and not features.exists()


def test_the_store_of_something_else_is_damaged(cache: Path) -> None:
    place = the(cache, BANK)
    shutil.copytree(place, place.with_name("0" * 32))
    assert {entry.path.name: entry.state for entry in check_cache(cache)}["0" * 32] == "damaged"


def test_what_another_process_computes_is_left_alone(cache: Path) -> None:
    overwritten(f"{BANK}/records", 170)(cache)
    (heard, tells), (waits, ends) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:  # locks are of a process, so another one must hold it
        with turn(cache / bank.FOLDER, the(cache, BANK).name, lambda first: None):
            os.write(tells, b"held")
            os.close(ends)
            os.read(waits, 1)
        os._exit(0)
    os.read(heard, 4)
    try:
        assert states(cache)["view bank"] == "in use" and the(cache, BANK).exists()
    finally:
        os.close(ends)
        os.waitpid(child, 0)
    assert states(cache)["view bank"] == "damaged" and not list(cache.glob(BANK))
