"""The page's table comes from the results' file, and from nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from debgcd.reproduce.bench.session import Line

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from performance import ROOT, markdown


def results() -> dict[str, Any]:
    lines = [
        Line("step", "a", "s", 1.0, 2.5, at_least=2.0),
        Line("memory", "b", "GiB", 1.0, note="made up"),
        Line("memory", "c", "GiB", 2.0, note="made up"),
    ]
    facts = {"date": "2026-01-02", "processor": "Abacus", "cores": 2, "threads": 2, "trunk": "float32", "repeats": 3}
    return {**facts, "versions": {"torch": "9.9"}, "lines": [line.to_json() for line in lines]}


def test_the_table_has_every_line_and_where_it_is_from() -> None:
    text = markdown(results())
    assert "| step   | a     |   1 s | 2.5 s | 2.50× | ≥ 2×: met |" in text
    assert "| memory | b [1] | 1 GiB |     – |     – |           |" in text
    assert text.count("made up") == 1
    for fact in ("2026-01-02", "Abacus", "2 cores", "2 threads", "float32", "median of 3", "torch 9.9"):
        assert fact in text


def test_the_documentation_shows_what_was_measured() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "performance.json").read_text("utf-8"))
    assert f" -->\n{markdown(measured)}\n<!-- end" in (ROOT / "docs" / "performance.md").read_text("utf-8")
