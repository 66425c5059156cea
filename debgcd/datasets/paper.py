"""Every number of the paper's eighteen tables; the data is `datasets/paper.json`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from debgcd.system.files import parse_json


@dataclass(frozen=True)
class Number:
    """A number as printed, in percent or in classes, with its deviation where the table has one."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Table:
    """A table of results: the measures, and per row the numbers of each set ("average" is one of them)."""

    number: int
    title: str
    measures: tuple[str, ...]
    rows: dict[str, dict[str, dict[str, Number]]]  # row -> set -> measure; only what is printed


def data_sets() -> dict[str, dict[str, Any]]:
    """Table 1: one row per data set, numbers of images as printed ("1.5K")."""
    found: dict[str, dict[str, Any]] = _read()["1"]["rows"]
    return found


@cache
def table(number: int) -> Table:
    """Tables 2 to 18."""
    data = _read()[str(number)]
    rows = {
        row: {
            name: {measure: _number(value) for measure, value in zip(data["measures"], values, strict=False)}
            for name, values in sets.items()
        }
        for row, sets in data["rows"].items()
    }
    return Table(number, data["title"], tuple(data["measures"]), rows)


def _number(value: float | list[float]) -> Number:
    return Number(*value) if isinstance(value, list) else Number(value)


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = parse_json((resources.files("debgcd.datasets") / "paper.json").read_text("utf-8"))
    return found
