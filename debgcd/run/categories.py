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
    """A category of a model.

    id: the name of a known class, or new-01, ...; it never changes its meaning. name: the id until a reviewer gives a name.
    merged_into: the id of the category that a reviewer merged it into, whose name it then has. begun: a reviewer began it, so the
    network has no output for it; it comes after those of the network.
    """

    category: int
    id: str
    name: str
    known: bool
    merged_into: str | None = None
    begun: bool = False

    def to_json(self) -> dict[str, Any]:
        unused = {"merged_into": None, "begun": False}
        return {key: value for key, value in asdict(self).items() if key not in unused or value != unused[key]}


def categories(classes: Sequence[str], k: int) -> list[Category]:
    """The categories of a new model: 0..M-1 are the known classes in this order, M..k-1 are new-01, new-02, ..."""
    known = [Category(i, name, name, True) for i, name in enumerate(classes)]
    digits = max(2, len(str(k - len(classes))))
    ids = (f"new-{number:0{digits}d}" for number in itertools.count(1))
    # in a run that continues another, a known class may be an earlier run's new-01
    unused = (new for new in ids if new not in set(classes))
    return known + [Category(i, new, new, False) for i, new in zip(range(len(classes), k), unused, strict=False)]


def own_categories(categories: Sequence[Category]) -> list[Category]:
    """Those that the network has an output for."""
    return [one for one in categories if not one.begun]


def merged_numbers(categories: Sequence[Category]) -> list[int]:
    """For each category, the number of the one that it was merged into, or its own.

    The target of a merge may be an id that is none of these categories; the first one merged into it then stands for it.
    """
    number = {each.id: each.category for each in categories if each.merged_into is None}
    for each in categories:
        number.setdefault(each.merged_into or each.id, each.category)
    return [number[each.merged_into or each.id] for each in categories]


def find(categories: Sequence[Category], which: int | str) -> str:
    """The id of a category by its number, its id, or its name."""
    if not isinstance(which, str):
        if which not in range(len(categories)):
            raise UsageError(f"there is no category {which!r:.80}; they are numbered from 0 to {len(categories) - 1}")
        return categories[int(which)].id
    # an id wins over an equal name
    id_of = {each.name: each.id for each in categories if each.merged_into is None}
    id_of |= {each.id: each.id for each in categories}
    if which not in id_of:
        raise UsageError(f"there is no category {which!r:.80}{suggest(which, list(id_of))}")
    return id_of[which]


def read_categories(folder: Path, known: int) -> list[Category]:
    """The categories of a model folder; a DataError names the first wrong entry. known: M, the number of known classes.

    A network's outputs are categories by position, so an entry in another position would turn one class into another.
    """
    path = folder / "categories.json"
    with readable(path, RESTORE, missing=False):
        entries = read_json(path)
        if not isinstance(entries, list):
            raise ValueError("it does not hold a list")
    read: list[Category] = []
    ids: dict[str, int] = {}
    for i, entry in enumerate(entries):
        problem = _problem(entry, i, known, ids)
        if problem:
            raise DataError(f"{path}: entry {i} {problem}; {RESTORE}")
        read.append(Category(**entry))
        ids[entry["id"]] = i
    if len(read) < known:
        raise DataError(f"{path} has {len(read)} entries, but config.json counts {known} known classes; {RESTORE}")
    return read


def _problem(entry: Any, i: int, known: int, ids: Mapping[str, int]) -> str:
    """What is wrong with entry number i; empty if nothing is. ids: id -> position of the entries before it."""
    kinds: dict[str, type] = {"category": int, "id": str, "name": str, "known": bool}
    optional: dict[str, type] = {"merged_into": str, "begun": bool}
    if not isinstance(entry, dict) or set(entry) - set(optional) != set(kinds):
        return f"must have the keys {', '.join(kinds)}"
    kinds |= {key: kind for key, kind in optional.items() if key in entry}
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
