"""The table of faults counts what tests say, and a test that fails has lost its fault."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from fault_table import BEGIN, END, TRIES, faults_of, joined, table_of, write_faults


def report(*tried: tuple[str, str], when: str = "call", test: str = "a") -> SimpleNamespace:
    return SimpleNamespace(nodeid=test, when=when, user_properties=[(TRIES, pair) for pair in tried])


def test_what_was_tried_is_counted_and_written(tmp_path: Path) -> None:
    stats = {
        "passed": [report(("kill", "survived"), ("kill", "refused")), report(("kill", "survived"), when="teardown")],
        "failed": [report(("disk", "survived"), test="b")],
        "skipped": [report(("disk", "survived"))],
    }
    found = faults_of(stats)
    assert table_of(found)[1] == [
        ["disk", "1", "0", "0", "1"],
        ["kill", "2", "1", "1", "0"],
        ["all", "3", "1", "1", "1"],
    ]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    write_faults(page, found)
    text = page.read_text("utf-8")
    assert "| kill | 2 | 1 | 1 | 0 |" in text and "old" not in text and "again" not in text
    assert text.startswith("before\n") and text.endswith("after\n")
    assert not faults_of({"passed": [report()]})


def test_what_had_failed_is_tried_again_and_counts_once(tmp_path: Path) -> None:
    whole = {"a": [["disk", "survived"]], "b": [["disk", "lost"]], "c": [["kill", "lost"]]}
    found = joined({"tried": whole, "again": []}, {"b": [["disk", "refused"]], "c": [["kill", "lost"]]})
    found = joined(found, {"c": [["kill", "survived"]]})
    assert table_of(found["tried"])[1] == [
        ["disk", "2", "1", "1", "0"],
        ["kill", "1", "1", "0", "0"],
        ["all", "3", "2", "1", "0"],
    ]
    (tmp_path / "page.md").write_text(f"{BEGIN}\n{END}\n", "utf-8")
    write_faults(tmp_path / "page.md", **found)
    assert "2 tests had failed, and were run again" in (tmp_path / "page.md").read_text("utf-8")
