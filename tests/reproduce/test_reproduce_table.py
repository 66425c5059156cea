"""The page: the paper's numbers beside ours, differences, and what was not run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from debgcd.reproduce.experiments import experiment
from debgcd.reproduce.table import Outcome, Result, page


def ran(row: str, name: str, seed: int, values: tuple[float, ...], k: int = 5, named: float | None = None) -> Result:
    measures = dict(zip(("all", "old", "new", "auroc"), values, strict=False))
    test = {} if named is None else {**measures, "named": named}
    return Result(row, name, seed, "folder", "views: fresh", "dino-vitb16", "paper", k, k - 1, 100, measures, test)


def made(name: str, results: list[Result], sets: tuple[str, ...] = (), seeds: int = 1, scale: str = "full") -> Outcome:
    found = experiment(name)
    facts = {"date": "2026-01-01", "processor": "a processor", "cores": 2}
    command, missing = f"debgcd reproduce {name} --set a=b", ("Stanford Cars: not there",)
    return Outcome(found, command, scale, sets or found.sets, {"cub": 200}, seeds, tuple(results), missing, facts)


def row(text: str, first: str) -> list[str]:
    return next(
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith(f"| {first} ")
    )[1:]


def test_mean_deviation_and_difference() -> None:
    text = page(
        made("stability", [ran("DebGCD", "cub", 0, (66, 70, 60)), ran("DebGCD", "cub", 1, (68, 74, 61))], seeds=2)
    )
    # the sample's deviation of 66 and 68 is the square root of two; the paper says 66.4 ± 0.4
    assert row(text, "DebGCD")[:4] == ["66.4 ± 0.4", "72.9 ± 0.6", "63.2 ± 0.4", "67.0 ± 1.4"]
    assert row(text, "DebGCD")[6:] == ["+0.6", "-0.9", "-2.7"]
    assert row(text, "SimGCD")[3:] == ["–"] * 6  # not run, but the paper's numbers are there
    assert "## CUB" in text and "## Stanford" not in text
    assert "- Stanford Cars: not there" in text


def test_figures_are_shown_or_the_reason_is_said() -> None:
    drawn = replace(made("stability", []), figures=(("CUB: k", "x/cub-k.png"), ("CUB: attention", "not drawn: no ViT")))
    text = page(drawn)
    assert "![CUB: k](x/cub-k.png)" in text and "CUB: attention: not drawn: no ViT" in text


def test_the_page_says_what_was_typed_and_where() -> None:
    text = page(made("stability", [ran("DebGCD", "cub", 0, (66, 70, 60))]))
    assert "`debgcd reproduce stability --set a=b`; one seed; 2026-01-01, a processor, 2 cores; preset: paper" in text
    assert "; views: fresh. Per cent of the unlabelled images." in text


def test_a_row_with_some_seeds_missing_says_so() -> None:
    text = page(made("stability", [ran("DebGCD", "cub", 0, (66, 70, 60))], seeds=3))
    assert row(text, r"DebGCD (1 of 3 seeds)")[3] == "66.0"


def test_the_average_needs_every_set() -> None:
    rows = [ran("DebGCD", name, 0, (value, 1, 1)) for name, value in (("cub", 60), ("cars", 70), ("aircraft", 50))]
    average = page(made("ssb", rows)).split("## Average")[1]
    assert row(average, "DebGCD") == ["64.4", "60.0", "-4.4"]
    assert "## Average" not in page(made("ssb", rows[:2]))


def test_methods_that_are_not_here() -> None:
    rows = [ran("DebGCD", "cub", 0, (60, 60, 60))]
    full, small = page(made("ssb", rows)), page(made("ssb", rows, scale="small"))
    assert row(full, "PromptCAL") == ["62.9", "64.4", "62.1", *["–"] * 6]
    assert "does not reproduce" in small and "does not reproduce" not in full
    assert "not run here" not in full
    chosen = made("ssb", rows)
    chosen = replace(chosen, experiment=chosen.experiment.only(["debgcd"]))
    assert "In the paper's table but not run here: k-means, RankStats+, UNO+" in page(chosen)


def test_auroc_is_the_only_measure_of_its_table() -> None:
    text = page(made("auroc", [ran("L_sdl", "cub", 0, (1, 1, 1, 80.0))]))
    assert row(text, "L_sdl") == ["77.5", "80.0", "+2.5"]


def test_k_is_shown_where_it_is_estimated() -> None:
    text = page(made("estimated-k", [ran("DebGCD", "cub", 0, (60, 60, 60), k=214)]))
    assert row(text, "DebGCD")[-3:] == ["200", "231", "214"]  # the truth, Table 10, and what was trained with


@pytest.mark.parametrize("new", [10.0, 99.0])
def test_a_threshold_is_chosen_by_known_classes_of_the_test_split_alone(new: float) -> None:
    rows = [
        ran("0.90", "aircraft", 0, (90, 90, 90), named=50.0),
        ran("0.85", "aircraft", 0, (10, 10, new), named=52.0),
        ran("0.80", "aircraft", 0, (90, 90, 90), named=51.0),
    ]
    outcome = made("threshold", rows)
    assert outcome.chosen("aircraft") == "0.85"
    text = page(outcome)
    assert "0.90: 50.0, 0.85: 52.0, 0.80: 51.0" in text and "**0.85**" in text
    held_out = text.split("test split")[1]
    assert row(held_out, "0.90")[:4] == ["58.9", "61.1", "56.8", "90.0"]
