"""Every experiment is a table of the paper, with its rows, its sets and settings that can be run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.datasets import facts
from debgcd.datasets.facts import Number
from debgcd.errors import UsageError
from debgcd.methods import METHODS
from debgcd.model.optimiser import set_learning_rate
from debgcd.report.plots import FIGURES
from debgcd.reproduce import run as reproduce_run
from debgcd.reproduce.experiments import experiment, experiments
from debgcd.reproduce.run import Scale, Wish

sys.path.append(str(Path(__file__).parents[1] / "methods"))
from little import TOKENS, K, at, batch, context, made, random_labels

IMAGES = 64

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
    other = {"sizes"}  # of a run without truth
    assert {figure for found in EXPERIMENTS.values() for figure in found.figures} == set(FIGURES) - other


def test_where_the_papers_numbers_are_looked_up() -> None:
    ablation = experiment("ablation")
    assert ablation.printed("(5)", "cars")["all"] == Number(60.7)
    assert ablation.printed("(5)", "cub")["new"] == Number(61.9)  # the second table
    assert ablation.printed("(1), two tuned blocks", "cars")["new"] == Number(49.8)  # another table, another row
    assert ablation.printed("(5)", "pets") == {}
    pets = facts.table(7).rows
    assert experiment("ssb").printed("SimGCD", "pets") == pets["SimGCD"]["pets"] == ablation.printed("(1)", "pets")
    assert experiment("ssb").printed("DebGCD", "pets") == pets["DebGCD"]["pets"]
    assert experiment("ssb").printed("PromptCAL", "pets") == {}  # in no table
    assert experiment("generic").printed("SimGCD", "average") == {}  # that of other sets is another number
    assert experiment("estimated-k").printed("DebGCD", "pets") == {}  # with another K
    assert experiment("dinov2-ssb").printed("DebGCD", "pets") == {}  # with another backbone
    assert experiment("threshold").printed("0.80", "aircraft, test")["old"] == Number(61.6)


def rows_of(name: str, scale: Scale, **more: Any) -> dict[str, Config]:
    """The configurations of a table's rows on its first set."""
    wish = Wish(EXPERIMENTS[name], (), Path("out"), Path("cache"), scale=scale, **more)
    return reproduce_run.rows(wish, wish.chosen_sets[0])


def trained(config: Config) -> list[Tensor]:
    """What three steps from the start of a run make of tail and heads, on a network of two layers."""
    small = {"hidden": 16, "detector_width": 8, "projection_width": 8}
    heads = {key: value for key, value in small.items() if hasattr(config.options.heads, key)}
    network, method = made(configuration.override(config, {"k": K, "seed": 0, "heads": heads}, "test"), IMAGES)
    for i, layer in enumerate(network.backbone.tuned):
        layer.requires_grad_(i >= 2 - (config.backbone.tuned_blocks or method.cut.tuned))
    tokens = torch.randn(2 * IMAGES, TOKENS, generator=torch.Generator().manual_seed(0))
    label = random_labels(IMAGES)
    features = network.backbone.tail(tokens[:IMAGES]).detach()
    with torch.no_grad():
        method.before_training(context(network, lambda: features, label))
    optimiser = method.optimiser(network, config.schedule)
    for share in (0.3, 0.6, 0.9):
        set_learning_rate(optimiser, config.schedule, 128, at(share))
        optimiser.zero_grad()
        method.loss(network, batch(label, tokens), at(share)).total.backward()
        optimiser.step()
        method.after_step(network, at(share))
    return [
        value
        for name, value in sorted(network.state().items())
        if "classifier" in name or "tail" in name or "detector" in name
    ]


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("name", [name for name, found in EXPERIMENTS.items() if found.backbone == "dino"])
def test_each_row_of_a_table_trains_in_another_way_than_every_other(name: str, scale: Scale) -> None:
    """Another method, another K, or another network after three steps: from another start or by another loss."""
    rows = rows_of(name, scale)
    assert len(rows) > 1
    ends: dict[tuple[str, bool], list[tuple[str, list[Tensor]]]] = {}
    for row, config in rows.items():
        kind = config.method, "k" in EXPERIMENTS[name].rows[row]
        for other, end in ends.setdefault(kind, []):
            own = trained(config)
            same = [a.shape == b.shape and torch.equal(a, b) for a, b in zip(own, end, strict=False)]
            assert len(own) != len(end) or not all(same), (other, row)
        if sum((each.method, "k" in EXPERIMENTS[name].rows[r]) == kind for r, each in rows.items()) > 1:
            ends[kind].append((row, trained(config)))


@pytest.mark.parametrize("name", ["ablation", "auroc", "depth", "lambda-sdl"])
def test_tables_about_the_detector_take_the_papers_at_small_scale_too(name: str) -> None:
    paper = configuration.to_dict(configuration.compose("paper"))["detector"]
    for row, config in rows_of(name, "small").items():
        own = configuration.to_dict(config).get("detector")
        if config.method == "simgcd":
            assert own is None
            continue
        changed = EXPERIMENTS[name].rows[row].get("detector", {})
        assert own == {key: changed.get(key, paper[key]) for key in own}
    assert rows_of("blocks", "small")["DebGCD, 2 tuned blocks"].options.detector.kind == "vote"


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        (
            "lambda-sdl",
            {"detector": {"kind": "vote"}},
            "lambda-sdl: rows 0.02 and 0.01 would be the same run: detector.kind is vote, which no loss trains, so "
            "detector.weight changes nothing; omit the --set",
        ),
        ("depth", {"detector": {"kind": "distance"}}, "rows 0 and 1 would be the same run: detector.kind is distance"),
        (
            "depth",
            {"ablation": {"detector": False, "guidance": False}},
            "ablation.detector is off, so heads.detector_depth",
        ),
        (
            "lambda-adl",
            {"ablation": {"debiased": False, "auxiliary": False, "guidance": False}},
            "ablation.debiased is off",
        ),
    ],
)
@pytest.mark.parametrize("scale", ["full", "small"])
def test_a_table_whose_rows_cannot_differ_is_refused(
    name: str, settings: dict[str, Any], told: str, scale: Scale
) -> None:
    with pytest.raises(UsageError) as error:
        rows_of(name, scale, settings=(settings,))
    assert told in str(error.value)


def test_the_row_with_k_estimated_here_is_left_out_where_all_rows_have_that_k() -> None:
    assert "DebGCD, K estimated here" in rows_of("estimated-k", "full")
    assert "DebGCD, K estimated here" not in rows_of("estimated-k", "full", sets=("pets",))
    assert list(rows_of("estimated-k", "small")) == ["GCD", "SimGCD", "μGCD", "DebGCD"]


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
