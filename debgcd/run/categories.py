"""The categories of a model: the known classes, then the discovered ones, with ids that never change their meaning."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from debgcd.errors import DataError, UsageError, suggest
from debgcd.system.files import read_json, readable

RESTORE = "restore the file or train again"


@dataclass(frozen=True)
class Category:
    """One category of a model; `id` is the class's name or new-01, ...; `name` is what people call it.

    merged_into: a reviewer made it a part of the category with this id, whose name it has.
    """

    category: int
    id: str
    name: str
    known: bool
    merged_into: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def categories(classes: Sequence[str], k: int) -> list[Category]:
    """Categories 0..M-1 for the known classes in this order, M..k-1 as new-01, new-02, ..."""
    found = [Category(i, name, name, True) for i, name in enumerate(classes)]
    digits = max(2, len(str(k - len(classes))))
    ids = (f"new-{number:0{digits}d}" for number in itertools.count(1))
    free = (new for new in ids if new not in set(classes))  # a class may be called new-01: one found and kept before
    found += [Category(i, new, new, False) for i, new in zip(range(len(classes), k), free, strict=False)]
    return found


def living(categories: Sequence[Category]) -> list[int]:
    """The number of the category that each one is by now; of several that became one without a number, the first."""
    number = {one.id: one.category for one in categories if one.merged_into is None}
    for one in categories:
        number.setdefault(one.merged_into or one.id, one.category)
    return [number[one.merged_into or one.id] for one in categories]


def find(categories: Sequence[Category], which: int | str) -> str:
    """The id of a category by its number, its id, or its name."""
    if not isinstance(which, str):
        if which not in range(len(categories)):
            raise UsageError(f"there is no category {which!r:.80}; they are numbered from 0 to {len(categories) - 1}")
        return categories[int(which)].id
    texts = {one.name: one.id for one in categories if one.merged_into is None} | {one.id: one.id for one in categories}
    if which not in texts:
        raise UsageError(f"there is no category {which!r:.80}{suggest(which, list(texts))}")
    return texts[which]


def read_categories(folder: Path, known: int) -> list[Category]:
    """The categories of a model folder; a DataError names the first entry that is wrong. known: how many come first.

    Answers are looked up by position, so an entry that moved would turn one class into another.
    """
    place = folder / "categories.json"
    with readable(place, RESTORE, missing=False):
        entries = read_json(place)
        if not isinstance(entries, list):
            raise ValueError("it does not hold a list")
    found: list[Category] = []
    ids: dict[str, int] = {}
    for i, entry in enumerate(entries):
        problem = _problem(entry, i, known, ids)
        if problem:
            raise DataError(f"{place}: entry {i} {problem}; {RESTORE}")
        found.append(Category(**entry))
        ids[entry["id"]] = i
    if len(found) < known:
        raise DataError(f"{place} has {len(found)} entries, but config.json counts {known} known classes; {RESTORE}")
    return found


def _problem(entry: Any, i: int, known: int, ids: Mapping[str, int]) -> str:
    """What is wrong with entry number i, empty if nothing; ids: those of the entries before it."""
    kinds = {"category": int, "id": str, "name": str, "known": bool}
    if not isinstance(entry, dict) or set(entry) - {"merged_into"} != set(kinds):
        return f"must have the keys {', '.join(kinds)}"
    kinds |= {"merged_into": str} if "merged_into" in entry else {}
    for key, kind in kinds.items():
        if type(entry[key]) is not kind:
            words = {int: "a whole number", str: "text", bool: "true or false"}[kind]
            return f"has, as {key}, something other than {words}"
    for key in ("id", "name", "merged_into"):
        if any("\ud800" <= letter <= "\udfff" for letter in entry.get(key, "")):
            return f"has a {key} that is not valid Unicode"
    if entry["category"] != i:
        return f"has category {entry['category']}, expected {i}: the order must not change"
    if entry["known"] != (i < known):
        is_known = "is a known class" if entry["known"] else "is not a known class"
        return f"{is_known}, but config.json says that the first {known} are the known ones"
    if not entry["id"].strip():
        return "has an empty id"
    if entry["id"] in ids:
        of = "the known class in entry" if ids[entry["id"]] < known <= i else "entry"
        return f"has the id {entry['id']!r} of {of} {ids[entry['id']]}; ids must be unique"
    return ""
