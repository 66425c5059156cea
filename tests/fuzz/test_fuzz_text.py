"""Configurations: YAML files, complete ones and parts, and --set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import yaml
from fuzzing import GIGABYTE, SPECIAL, damaged, edited, fuzz, peak_in_a_child, survives, values
from hypothesis import given

from debgcd import config as configuration

pytestmark = pytest.mark.tries("damaged and hostile JSON, YAML and logs", "refused")

SMALL = configuration.compose("small")
COMPLETE = configuration.to_dict(SMALL)
LEAVES = sorted(configuration.leaves(COMPLETE))
TEXTS = [
    configuration.dump(SMALL).encode(),
    b"a: &a [1, 2]\nb: *a\nc: {<<: {x: 1}}\n? [x, y]\n: !!set {1, 2}\n",
    b"k: 3\nviews: {size: 64}\ndate: 2024-02-03T04:05:06Z\nn: 0x1F\nt: 1:30:00\nb: !!binary aGVsbG8=\n",
    b"- [&a {x: *a}]\n--- \nk: |\n  text\n  more\n...\n",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "c.yaml"


def read(place: Path) -> None:
    survives(lambda: configuration.override(SMALL, configuration.read_yaml(place), where=str(place)))
    survives(lambda: configuration.load(place))


@fuzz
@given(content=damaged(TEXTS))
def test_damaged_yaml(place: Path, content: bytes) -> None:
    place.write_bytes(content)
    read(place)


@fuzz
@given(content=edited(COMPLETE))
def test_yaml_with_other_values(place: Path, content: Any) -> None:
    place.write_bytes(yaml.safe_dump(content).encode("utf-8", "surrogatepass"))
    read(place)
    if isinstance(content, dict):
        survives(lambda: configuration.override(SMALL, content, where="here"))
        survives(lambda: configuration.from_dict(content, where="here"))


@fuzz
@given(
    key=st.sampled_from([*LEAVES, "method", "options", "options.heads", "heads", "", ".", "k.", ".k"]) | st.text(),
    value=st.text(max_size=40)
    | values.map(str)
    | st.sampled_from(["[" * 3000, "&a [*a]", "!!bool x", "0x" + "f" * 5000]),
)
def test_set(key: str, value: str) -> None:
    survives(lambda: configuration.override(SMALL, configuration.assignment(f"{key}={value}"), where="--set"))


def test_special_values_of_every_key_take_no_gigabyte() -> None:
    def work() -> None:
        for key in LEAVES:
            for value in SPECIAL:
                survives(lambda key=key, value=value: configuration.override(SMALL, nested(key, value), where="here"))

    assert peak_in_a_child(work) < GIGABYTE


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value
