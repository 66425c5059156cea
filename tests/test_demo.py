"""`debgcd demo --quick`: one method on the digits, from nothing to the report."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import sklearn.datasets
from tiers import SOAK

from debgcd.system.files import read_json

DIGITS = 1797 if SOAK else 120


def test_the_quick_demo_ends_with_a_report_and_can_be_called_again(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = sklearn.datasets.load_digits()
    every.images, every.target = every.images[:DIGITS], every.target[:DIGITS]
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: every)
    out = tmp_path / "demo run"
    said = command("demo", "--quick", "-o", out)
    assert said.code == 0, said.err
    assert said.err.splitlines()[-1].startswith("report: ") or "report: " in said.out
    assert (out / "pim" / "report.html").stat().st_size > 20_000 and (out / "categories.png").exists()
    assert not (out / "debgcd").exists()
    (entry,) = read_json(out / "summary.json")
    with open(out / "pim" / "predictions.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    known = sum(digit < 5 for digit in every.target)
    assert len(rows) == DIGITS - known // 2
    assert entry["all"] > 0.5  # ten categories by chance: 0.1

    # a file that would change if anything were computed again
    before = (out / "pim" / "predictions.csv").stat().st_mtime_ns
    again = command("demo", "--quick", "-o", out)
    assert again.code == 0, again.err
    assert (out / "pim" / "predictions.csv").stat().st_mtime_ns == before
    assert read_json(out / "summary.json") == [entry]
