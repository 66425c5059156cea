"""docs/paper.md is complete and true: every equation, table and figure is there, and all that it names exists."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from debgcd import config as configuration
from debgcd.cli import _parser
from debgcd.config.schema import Config
from debgcd.datasets import facts_of
from debgcd.methods import METHODS, require_method

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "paper.md").read_text("utf-8")
CODE = re.findall(r"`([^`\n]+)`", TEXT)
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")]


def named(pattern: str) -> list[str]:
    return sorted({code for code in CODE if re.fullmatch(pattern, code)})


FUNCTIONS = named(r"debgcd(\.\w+)+")
TESTS = named(r"tests/.+")
COMMANDS = named(r"debgcd .+")
SECTIONS = list(configuration.to_dict(configuration.compose("paper")))
KEYS = named(rf"({'|'.join(SECTIONS)})\.\w+") + named(r"model_kept|answer")
LINES = named(rf"({'|'.join(SECTIONS)}): .+")
OTHERS = {"used_old", "used_new", "hard_labels", "evaluation", "--set"}  # names in metrics.jsonl, an option


def rows_of(first: str) -> list[list[str]]:
    """The rows of the table whose head begins with these cells."""
    start = next(i for i, row in enumerate(ROWS) if " | ".join(row).startswith(first))
    body = ROWS[start + 2 :]
    end = next((i for i, row in enumerate(body) if set("".join(row)) <= set("-")), len(body) + 1)
    return body[: end - 1]


def value_of(config: Config, key: str) -> Any:
    value: Any = config if hasattr(config, key.split(".")[0]) else config.options
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_every_equation_has_a_function_and_a_test() -> None:
    rows = {row[0]: row for row in rows_of("paper | what | function | test")}
    assert {f"Eq. {number}" for number in range(1, 16)} | {"Algorithm 1"} <= set(rows)
    for name, (_, _, function, test, _) in rows.items():
        assert "`debgcd." in function, name
        assert "`tests/" in test, name


def test_every_table_and_figure_is_there() -> None:
    names = {re.sub(r" \(\d\)", "", row[0]) for row in ROWS}
    assert {f"Table {number}" for number in range(1, 19)} <= names
    assert {f"Figure {number}" for number in range(1, 9)} <= names
    rows = {row[0] for row in ROWS}
    assert {f"Table 4 ({row})" for row in range(1, 7)} | {f"Table 5 ({row})" for row in range(1, 5)} <= rows


def test_every_piece_of_code_is_of_a_kind_that_is_checked() -> None:
    assert set(CODE) - set(FUNCTIONS) - set(TESTS) - set(COMMANDS) - set(KEYS) - set(LINES) == OTHERS
    assert min(map(len, (FUNCTIONS, TESTS, COMMANDS, KEYS, LINES))) > 3


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_exists(name: str) -> None:
    parts, found = name.split("."), None
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
            break
        except ModuleNotFoundError:
            continue
    assert found is not None
    for part in parts[length:]:
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.parametrize("name", TESTS)
def test_every_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_exists(key: str) -> None:
    value_of(configuration.compose("paper"), key)


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_a_configuration(line: str) -> None:
    changed = configuration.override(configuration.compose("paper"), yaml.safe_load(line), where="docs/paper.md")
    require_method(changed.method)


@pytest.mark.parametrize("text", COMMANDS)
def test_every_command_exists(text: str) -> None:
    options = _parser().parse_args(shlex.split(text)[1:])  # an unknown command or option ends in SystemExit
    for assignment in getattr(options, "set", []):
        configuration.override(configuration.compose("paper"), configuration.assignment(assignment), where=text)


def test_open_points_are_those_of_the_presets() -> None:
    rows = rows_of("point | key | paper")
    assert len(rows) > 15
    for point, key, *values in rows:
        for name, written in zip(("paper", "released", "small"), values, strict=True):
            value = value_of(configuration.compose(name), key.strip("`"))
            value = [list(pair) for pair in value] if isinstance(value, tuple) else value
            assert yaml.safe_load(written) == value, f"docs/paper.md, {point}: {name} has {value!r}, not {written}"


def test_values_of_the_public_scripts_are_those_of_the_overlays() -> None:
    head, *_ = (row for row in ROWS if row[0] == "data set")
    keys = [key.strip("`") for key in head[1:]]
    rows = {row[0]: row[1:] for row in rows_of("data set")}
    released = {
        facts_of(name).title: config
        for name in configuration.names("benchmark")
        if (config := configuration.compose("released", name)).preset == "released"
    }
    assert set(rows) == set(released)
    for title, written in rows.items():
        config = released[title]
        if config.backbone.tuned_blocks is None:
            own = METHODS["debgcd"].cut.tuned
            config = configuration.override(config, {"backbone": {"tuned_blocks": own}}, where="test")
        base = configuration.compose("released")
        different = {
            key
            for key in configuration.leaves(configuration.to_dict(config))
            if value_of(config, key) != value_of(base, key)
        } - {"views.upright"}
        assert different <= set(keys)  # nothing that the table does not show
        for key, text in zip(keys, written, strict=True):
            assert yaml.safe_load(text) == value_of(config, key), f"docs/paper.md, {title}: {key}"
