"""categories.json: answers are looked up by position, so an entry that is not what a run wrote is refused by its number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debgcd.errors import DataError
from debgcd.run.categories import categories, read_categories

Entries = list[dict[str, Any]]
KNOWN = 2


def entries() -> Entries:
    return [category.to_json() for category in categories(["ant", "cat"], 4)]


def change(number: int, **values: Any) -> Callable[[Entries], Any]:
    return lambda found: found[number].update(values)


WRONG: dict[str, tuple[Callable[[Entries], Any], str]] = {
    "sorted by name": (lambda found: found.reverse(), "entry 0 has category 3, expected 0"),
    "two swapped": (lambda found: found.insert(0, found.pop(1)), "entry 0 has category 1, expected 0"),
    "one removed": (lambda found: found.pop(0), "entry 0 has category 1, expected 0"),
    "cut short": (lambda found: found.__delitem__(slice(1, None)), "has 1 entries, but config.json counts 2"),
    "a known class too few": (change(1, known=False), "entry 1 is not a known class"),
    "a known class too many": (change(2, known=True), "entry 2 is a known class"),
    "an id twice": (change(1, id="ant"), "entry 1 has the id 'ant' of entry 0"),
    "a new id of a known class": (change(3, id="cat"), "entry 3 has the id 'cat' of the known class in entry 1"),
    "an empty id": (change(2, id=" "), "entry 2 has an empty id"),
    "a number as id": (change(0, id=7), "entry 0 has, as id, something other than text"),
    "a text as category": (change(0, category="0"), "entry 0 has, as category, something other than a whole number"),
    "true as category": (change(1, category=True), "entry 1 has, as category, something other than a whole number"),
    "a number as known": (change(0, known=1), "entry 0 has, as known, something other than true or false"),
    "half a character": (change(3, name="\ud800"), "entry 3 has a name that is not valid Unicode"),
    "an unknown key": (change(3, colour="red"), "entry 3 must have the keys category, id, name, known"),
    "a missing key": (lambda found: found[1].pop("name"), "entry 1 must have the keys"),
    "no mapping": (lambda found: found.__setitem__(2, 5), "entry 2 must have the keys"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_entry_is_named(tmp_path: Path, case: str) -> None:
    damage, says = WRONG[case]
    found = entries()
    damage(found)
    (tmp_path / "categories.json").write_text(json.dumps(found))
    with pytest.raises(DataError) as error:
        read_categories(tmp_path, KNOWN)
    assert says in str(error.value)
    assert str(tmp_path / "categories.json") in str(error.value)


def test_a_name_may_be_edited(tmp_path: Path) -> None:
    found = entries()
    found[3]["name"] = "beetle"
    (tmp_path / "categories.json").write_text(json.dumps(found))
    assert [category.name for category in read_categories(tmp_path, KNOWN)] == ["ant", "cat", "new-01", "beetle"]


@pytest.mark.parametrize("content", [b"{}", b"3", b"\xff", b"[" * 100_000, b'[{"category": 0'])
def test_what_is_no_list_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "categories.json").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        read_categories(tmp_path, KNOWN)
