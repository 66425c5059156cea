"""The list of results of benchmarks/methods.py: which runs are done, wherever they were made, and what the page says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from debgcd import config as configuration
from debgcd.reproduce.grid import Cell, ImageList, cell
from debgcd.system.files import read_json
from debgcd.train import setup

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import measured
import methods


def a_cell(place: Path, seed: int = 0, **values: Any) -> Cell:
    config = configuration.override(configuration.compose("small", method="simgcd"), {"k": 10, **values}, "test")
    return cell(
        "SimGCD", seed, ImageList("digits", 1797, f"path\n{place}/a.png\n", place / "images.csv"), config, place
    )


def test_a_run_is_the_same_in_another_folder_and_another_one_with_other_values(tmp_path: Path) -> None:
    here, there = a_cell(tmp_path / "a", run={"cache": "x"}), a_cell(tmp_path / "b", run={"cache": "y"})
    assert here.images.text != there.images.text and methods.key(here) == methods.key(there)
    others = [a_cell(tmp_path / "a", seed=1), a_cell(tmp_path / "a", schedule={"lr": 0.01})]
    others.append(replace(here, images=replace(here.images, count=1000)))
    assert len({methods.key(each) for each in (here, *others)}) == 4


def test_a_run_is_another_one_if_its_first_stage_has_other_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = a_cell(tmp_path, method="mugcd")
    before, first = methods.key(each), methods.first_stage(each.config, "gcd")
    other = configuration.override(first, {"schedule": {"tail_lr": 0.3}}, "test")
    monkeypatch.setattr(methods, "first_stage", lambda config, name: other)
    assert methods.key(each) != before


def test_the_page_has_a_row_per_method_in_the_order_of_what_they_are_over_the_same_seeds(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- written by benchmarks/methods.py -->\nold\n<!-- end of benchmarks/methods.py -->\nafter\n"
    )
    runs: list[dict[str, Any]] = []
    both, digits = ("digits", "pets"), ("digits",)
    for row, all_of, sets, seconds in (
        ("GCD", (70.0, 72.0), both, 50.0),  # the seeds that DebGCD finds easy
        ("DebGCD", (80.0, 82.0, 66.0), both, 40.0),
        ("SimGCD", (79.0, 81.0, 65.0), both, 60.0),
        ("XCon", (90.0,), digits, 10.0),
    ):
        for seed, value in enumerate(all_of):
            for name in sets:
                run = {"run": f"{name}/{row}/{seed}", "row": row, "set": name, "seed": seed, "k": 10, "views": ""}
                run |= {"seconds": seconds, "memory": 1.25 + seed, "machine": "a, AVX2", "auroc": None}
                runs.append({**run, "all": value, "old": value + 1, "new": value - 1})
    of = {(run["row"], run["set"], run["seed"]): run for run in runs}
    of["GCD", "digits", 0] |= {"seconds": 1.0, "machine": "b, AVX512"}  # where DebGCD was not timed
    of["DebGCD", "digits", 0] |= {"seconds": 90.0}  # the machine had other work
    of["DebGCD", "digits", 2] |= {"seconds": 10.0, "machine": "c"}
    of["SimGCD", "digits", 2] |= {"seconds": 30.0, "machine": "c"}
    of["SimGCD", "pets", 2] |= {"seconds": None, "machine": None}
    for run in runs:
        run["auroc"] = run["all"] + 10 if run["row"] == "DebGCD" else None
    methods.write_page(page, runs)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old\n" not in text
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    named = [row for row in rows if not row[0].startswith("-")]
    titles = ["DebGCD", "SimGCD", "GCD", "XCon"]
    first = ["All", *titles, "PromptCAL: unmeasured, needs a ViT"]
    heads = [*first, "Old, New", *titles, "Time / DebGCD's", *titles, "processor"]
    assert [row[0] for row in named[:17]] == heads
    assert named[1] == ["DebGCD", "76.0 ± 8.7", "76.0 ± 8.7", "76.0", "+0.0", "3"]
    assert named[2] == ["SimGCD", "75.0 ± 8.7", "75.0 ± 8.7", "75.0", "−1.0", "3"]
    assert named[3] == ["GCD", "71.0 ± 1.4", "71.0 ± 1.4", "71.0", "−10.0", "2"]
    assert named[4] == ["XCon", "90.0", "–", "–", "–", "0–1"]  # not measured on all sets: after those that are
    assert set(named[5][1:]) == {"–"}
    assert named[7] == ["DebGCD", *["77.0 ± 8.7", "75.0 ± 8.7"] * 2, "86.0"] and named[8][-1] == "–"
    assert named[12:16] == [
        ["DebGCD", "1.00", "1.00", "3.2"],
        ["SimGCD", "2.25", "1.50", "3.2"],  # 60 / 40 on one processor and 30 / 10 on another
        ["GCD", "1.25", "1.25", "2.2"],
        ["XCon", "0.25", "–", "1.2"],
    ]
    assert named[17:] == [["a, AVX2", "40", "40"], ["b, AVX512", "–", "–"], ["c", "10", "–"]]


@pytest.mark.parametrize("name", ["digits", "cifar10", "pets", "cub"])
def test_no_run_is_in_the_results_twice(name: str) -> None:
    written = [
        run for run in methods.read_json(methods.HERE / "results" / "methods.json")["runs"] if run["set"] == name
    ]
    assert written and len({(run["row"], run["seed"]) for run in written}) == len(written)


def test_the_seconds_of_a_run_leave_out_its_view_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run = [10.0], tmp_path / "run"

    def takes(seconds: float, answer: object) -> object:
        clock[0] += seconds
        return answer

    monkeypatch.setattr(measured, "used", lambda: (clock[0], 2.0))
    monkeypatch.setattr(setup, "open_bank", lambda *args, **named: takes(60, (args, named)))
    monkeypatch.setattr(
        measured,
        "main",
        lambda: takes(5, 0 if setup.open_bank("a", kinds="b") == (("a",), {"kinds": "b"}) else 1),
    )
    monkeypatch.setattr(sys, "argv", ["measured.py", "train", "-o", str(run)])
    assert measured.run() == 0
    cost = read_json(measured.cost_file(run))
    assert (cost["seconds"], cost["memory"]) == (15.0, 2.0)  # not the bank's 60
