"""The table of faults counts what tests say, and a test that fails has lost its fault."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from fault_table import BEGIN, END, TRIES, faults_of, write_faults


def report(*tried: tuple[str, str], when: str = "call") -> SimpleNamespace:
    return SimpleNamespace(when=when, user_properties=[(TRIES, pair) for pair in tried])


def test_what_was_tried_is_counted_and_written(tmp_path: Path) -> None:
    stats = {
        "passed": [report(("kill", "survived"), ("kill", "refused")), report(("kill", "survived"), when="teardown")],
        "failed": [report(("disk", "survived"))],
        "skipped": [report(("disk", "survived"))],
    }
    found = faults_of(stats)
    assert found is not None
    assert found[1] == [["disk", "1", "0", "0", "1"], ["kill", "2", "1", "1", "0"], ["all", "3", "1", "1", "1"]]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    write_faults(page, *found)
    text = page.read_text("utf-8")
    assert "| kill | 2 | 1 | 1 | 0 |" in text and "old" not in text
    assert text.startswith("before\n") and text.endswith("after\n")
    assert faults_of({"passed": [report()]}) is None
