"""Every experiment is a table of the paper, with its rows, its sets and settings that can be run."""

from __future__ import annotations

import pytest

from debgcd import config as configuration
from debgcd.datasets import facts
from debgcd.datasets.facts import Number
from debgcd.errors import UsageError
from debgcd.methods import METHODS
from debgcd.report.plots import FIGURES
from debgcd.reproduce.experiments import experiment, experiments

EXPERIMENTS = experiments()


def test_every_table_of_results_has_one() -> None:
    assert {number for found in EXPERIMENTS.values() for number in found.tables} == set(range(2, 19)) - {10}
    names = "ssb generic ablation loss threshold pets-herbarium dinov2-ssb dinov2-generic estimated-k auroc depth"
    assert set(EXPERIMENTS) == {*names.split(), "lambda-sdl", "lambda-adl", "blocks", "stability"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_and_sets_are_those_of_the_paper(name: str) -> None:
    found = EXPERIMENTS[name]
    printed = {column for number in found.tables for sets in facts.table(number).rows.values() for column in sets}
    assert set(found.sets) == {column for column in printed if column != "average" and "," not in column}
    extra = {"(1), two tuned blocks", "DebGCD, K estimated here"}
    for row in found.rows:
        assert row in extra or all(row in facts.table(number).rows for number in found.tables)
    assert found.others == []


@pytest.mark.parametrize("preset", ["paper", "released"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_can_be_configured_on_every_set(name: str, preset: str) -> None:
    found = EXPERIMENTS[name]
    for benchmark in found.sets:
        base = configuration.compose(preset, benchmark=benchmark, backbone=found.backbone)
        rows = {row: configuration.override(base, values, where=row) for row, values in found.rows.items()}
        assert all(config.method in METHODS for config in rows.values())
        assert len(set(rows.values())) == len(rows) or (name, preset) == ("blocks", "released") or found.estimated_k


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_methods_own_row_is_the_paper_preset(name: str) -> None:
    """One row of each table is DebGCD as it is, or with the value that is the default anyway."""
    base = configuration.compose("paper")
    rows = [configuration.override(base, values, where=row) for row, values in EXPERIMENTS[name].rows.items()]
    if name == "blocks":
        base = configuration.override(base, {"backbone": {"tuned_blocks": 2}}, where="test")
    assert base in rows


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figures_are_drawn_from_rows_that_there_are(name: str) -> None:
    for figure, rows in EXPERIMENTS[name].figures.items():
        assert figure in FIGURES and set(rows) <= set(EXPERIMENTS[name].rows)


def test_every_figure_of_the_paper_belongs_to_an_experiment() -> None:
    assert {figure for found in EXPERIMENTS.values() for figure in found.figures} == set(FIGURES)


def test_where_the_papers_numbers_are_looked_up() -> None:
    ablation = experiment("ablation")
    assert ablation.printed("(5)", "cars")["all"] == Number(60.7)
    assert ablation.printed("(5)", "cub")["new"] == Number(61.9)  # the second table
    assert ablation.printed("(1), two tuned blocks", "cars")["new"] == Number(49.8)  # another table, another row
    assert ablation.printed("(5)", "pets") == {}
    assert experiment("threshold").printed("0.80", "aircraft, test")["old"] == Number(61.6)


def test_a_wrong_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'ablation'"):
        experiment("ablations")


def test_rows_can_be_chosen_by_method() -> None:
    chosen = experiment("ssb").only(["rankstats", "debgcd"])
    assert list(chosen.rows) == ["RankStats+", "DebGCD"] and "XCon" in chosen.others
    with pytest.raises(UsageError, match=r"no method 'sim'.*did you mean 'simgcd'"):
        experiment("ssb").only(["sim"])


def test_a_method_without_a_row_of_the_paper_gets_one_where_methods_are_compared() -> None:
    chosen = experiment("dinov2-ssb").only(["debgcd", "xcon"])
    assert chosen.rows == {"DebGCD": {"method": "debgcd"}, "XCon": {"method": "xcon"}}
    assert chosen.printed("XCon", "cub") == {}
    with pytest.raises(UsageError, match="ablation has no row of method 'xcon'"):
        experiment("ablation").only(["xcon"])
