"""What the cache folder holds: all of it is read once, and what is damaged or old is deleted."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from debgcd.data import fingerprints, thumbnails
from debgcd.grow import features
from debgcd.report import untuned
from debgcd.review.page import pictures, similar
from debgcd.system.files import bytes_in, read_sealed
from debgcd.system.progress import progress
from debgcd.system.store import free_unusable
from debgcd.tokens import bank, image_cache

STORES = {"view bank": (bank.FOLDER, bank.FORMAT), "image cache": (image_cache.FOLDER, image_cache.FORMAT)}
STORE = re.compile(r"[0-9a-f]{32}(\.partial)?")  # nothing else is touched
FEATURES = re.compile(r"[0-9a-f]{32}\.(npy|features-\d+)")
KEPT_FEATURES = {
    "features of a review": (similar.FOLDER, similar.SUFFIX),
    "features of a run": (features.FOLDER, features.SUFFIX),
    "structure of a run": (untuned.FOLDER, untuned.SUFFIX),
}
TABLES = {fingerprints.FILE, *(thumbnails.NAME.format(side) for side in (thumbnails.SIDE, pictures.SIDE))}
FREED = ("damaged", "old")


@dataclass(frozen=True)
class Entry:
    """A part of the cache, and what became of it."""

    what: str
    path: Path
    bytes: int
    state: str  # whole, half (a run that was stopped goes on with it), in use; damaged or old: deleted


def check_cache(cache: Path) -> list[Entry]:
    """Read all that the cache holds and delete what no run would use."""
    found = []
    with progress("reading the cache") as report:
        works = list(_entries(cache))
        for done, (what, path) in enumerate(works, 1):
            size = bytes_in(path)
            found.append(Entry(what, path, size, _checked(what, path)))
            report(done, len(works))
    return found


def _entries(cache: Path) -> Iterator[tuple[str, Path]]:
    for what, (folder, _) in STORES.items():
        yield from ((what, path) for path in sorted((cache / folder).glob("*")) if STORE.fullmatch(path.name))
    for what, (folder, _) in KEPT_FEATURES.items():
        inside = sorted((cache / folder).glob("*"))
        yield from ((what, path) for path in inside if FEATURES.fullmatch(path.name))
    for name in (fingerprints.FILE, "thumbnails-*-*.sqlite"):
        yield from (("table", path) for path in sorted(cache.glob(name)))


def _checked(what: str, path: Path) -> str:
    if what in STORES:
        return free_unusable(path.parent, path.name, STORES[what][1])
    state = _table(path) if what == "table" else _features(path, KEPT_FEATURES[what][1])
    if state in FREED:
        path.unlink()
    return state


def _features(path: Path, suffix: str) -> str:
    if path.suffix != suffix:
        return "old"
    try:
        read_sealed(path)
    except (OSError, ValueError):
        return "damaged"
    return "whole"


def _table(path: Path) -> str:
    if path.name not in TABLES:
        return "old"
    try:
        with closing(sqlite3.connect(path, timeout=60)) as table:
            return "whole" if table.execute("PRAGMA quick_check").fetchone() == ("ok",) else "damaged"
    except sqlite3.OperationalError:  # in use, or it may not be read
        return "in use"
    except sqlite3.Error:
        return "damaged"
