"""JSON and YAML made to exhaust memory or the stack: one sentence, in no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debgcd import config as configuration
from debgcd.config.merge import MAX_YAML, parse_yaml
from debgcd.errors import DataError, UsageError
from debgcd.model.load import read_folder
from debgcd.system.files import MAX_DEPTH, MAX_JSON, parse_json, read_json
from debgcd.train.checkpoint import read

PAPER = configuration.compose("paper")


def laughs(levels: int) -> str:
    """Every level has nine times the one before."""
    lines = ["a0: &a0 [" + ", ".join(["lol"] * 9) + "]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, levels)]
    return "\n".join(lines)


def ladder() -> str:
    """No line is deep, but each continues the one before."""
    return "\n".join(["a0: &a0 [1]"] + [f"a{i}: &a{i} [[[*a{i - 1}]]]" for i in range(1, 60)])


YAML = {
    "billion laughs": (laughs(9), "it has the alias *a0"),
    "a ladder of aliases": (ladder(), "it has the alias *a0"),
    "merged laughs": ("a: &a {x: 1}\nb: &b {<<: [*a, *a]}\n" * 2 + laughs(9), "it has the alias *a"),
    "contains itself": ("k: &k [1, *k]", "it has the alias *k"),
    "deep brackets": ("k: " + "[" * 100_000, "nested more than 20"),
    "deep dashes": ("- " * 100_000, "nested more than 20"),
    "deep mappings": ("{a: " * 100_000, "nested more than 20"),
    "long": ("k: " + "9" * MAX_YAML, "longer than 1 million"),
    "a very long number": ("k: 0x" + "f" * 5000, "more than 200 digits"),
    "a date that is none": ("k: 2024-99-99", "month"),
    "a tag that does not fit": ("k: !!bool 7", "does not fit its tag"),
    "an empty number": ("k: !!int ''", "does not fit its tag"),
    "an unknown alias": ("k: *nothing", "it has the alias *nothing"),
}


@pytest.mark.parametrize("case", YAML)
def test_yaml_is_refused_in_words(tmp_path: Path, case: str) -> None:
    text, says = YAML[case]
    place = tmp_path / "c.yaml"
    place.write_text(text)
    with pytest.raises(UsageError) as error:
        configuration.read_yaml(place)
    assert says in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("value", ["[" * 1000, "&a [*a]", "!!timestamp x", "\ud800", "0x" + "f" * 5000])
def test_set_is_refused_in_words(value: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        configuration.assignment(f"k={value}")


def test_the_package_may_use_aliases_in_its_own_files() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a", aliases=True) == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1},
    }


@pytest.mark.parametrize(
    "values", [{"k": ["x"] * 10**6}, {"k" * 10**6: 1}, {"debiased": {"utilisation": [[1, 10**400]]}}]
)
def test_an_error_quotes_no_more_than_a_line(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as error:
        configuration.override(PAPER, values, where="here")
    assert len(str(error.value)) < 400


JSON = {
    "brackets": "[" * 100_000,
    "braces": '{"a":' * 100_000,
    "closed": "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2),
    "inside": '{"config": {"views": ' + "[" * 500 + "]" * 500 + "}}",
}


@pytest.mark.parametrize("case", JSON)
def test_deep_json_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match="nested more than 20 levels"):
        parse_json(JSON[case])


def test_json_is_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b" " * MAX_JSON + b"[]")
    with pytest.raises(ValueError, match="larger than 16 MB"):
        read_json(tmp_path / "a.json")


def hub(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    read_folder(folder)


def checkpoint(folder: Path, content: str) -> None:
    (folder / "state.json").write_text(content)
    read(folder)


@pytest.mark.parametrize("reader", [hub, checkpoint])
@pytest.mark.parametrize("case", JSON)
def test_readers_of_deep_json_say_so(tmp_path: Path, reader: Callable[[Path, str], None], case: str) -> None:
    with pytest.raises(DataError, match="nested more than 20"):
        reader(tmp_path, JSON[case])


def test_what_is_ordinary_is_read(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, {"b": ["ä", True]}]}
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert read_json(tmp_path / "a.json") == value
