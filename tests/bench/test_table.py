"""The page's table comes from the results' file, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from debgcd.errors import UsageError
from debgcd.reproduce.bench.session import BEGIN, END, Line, markdown, write_table

ROOT = Path(__file__).parents[2]


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


def test_writing_it_again_changes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Above\n\n{BEGIN}\nold\n{END}\n\nbelow\n", "utf-8")
    write_table(page, results())
    once = page.read_text("utf-8")
    assert once.startswith("# Above\n") and once.endswith("\nbelow\n")
    assert "old" not in once and "Abacus" in once
    write_table(page, results())
    assert page.read_text("utf-8") == once


@pytest.mark.parametrize("text", ["no markers", f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", BEGIN])
def test_a_page_without_a_place_for_it_is_refused(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    with pytest.raises(UsageError, match="no place for the table"):
        write_table(page, results())
    assert page.read_text("utf-8") == text


def test_the_documentation_shows_what_was_measured() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "performance.json").read_text("utf-8"))
    assert f"{BEGIN}\n{markdown(measured)}\n{END}" in (ROOT / "docs" / "performance.md").read_text("utf-8")
