"""The settled answer: a head beside the trained classifier, filled before the first step and again at the end."""

from __future__ import annotations

import csv
import itertools
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import at_call, debgcd, result
from little import KNOWN, WIDTH, K, Little, batch, config, context, made, method_of, random_labels, random_output, says
from little import at as at_progress
from shared_runs import SharedRuns
from torch import Tensor

from debgcd import config as configuration
from debgcd.cluster.settle import Answer
from debgcd.methods import METHODS, create, shared
from debgcd.methods.base import TEMPERATURE, Sizes
from debgcd.methods.settled import SETTLED
from debgcd.model.heads import Settled
from debgcd.model.network import Output
from debgcd.run.predictions import COLUMNS
from debgcd.train import setup
from debgcd.train.setup import build

Train = Callable[..., Any]
Command = Callable[..., Any]
IMAGES = 60


def clear() -> tuple[Tensor, Tensor, Tensor]:
    """Features of K clear classes, their truth, and the labels of half of the known ones."""
    truth = torch.arange(IMAGES) % K
    features = 4 * torch.eye(WIDTH)[truth] + 0.1 * torch.randn(
        IMAGES, WIDTH, generator=torch.Generator().manual_seed(0)
    )
    return features, truth, torch.where((truth < KNOWN) & (torch.arange(IMAGES) % 4 < 2), truth, -1)


def settled_config(**values: Any) -> Any:
    return config("paper", answer="settled", **values)


@pytest.mark.parametrize("name", list(METHODS))
def test_only_a_method_that_trains_a_classifier_is_settled(name: str) -> None:
    method = METHODS[name]
    if method.about.needs_vit:
        pytest.skip("in tests/model/test_prompts.py")
    chosen = configuration.compose("paper", method=name)
    made_method = method_of(configuration.override(chosen, {"k": K, "answer": "settled"}, "test"))
    changed = method.trains and not method.clusters
    assert (made_method.final_answers == (SETTLED,)) == changed
    assert made_method.answers == method.answers
    assert isinstance(made_method.heads()[SETTLED] if changed else None, Settled if changed else type(None))


def test_the_settled_answer_comes_first_and_the_trained_one_beside_it() -> None:
    method, plain = method_of(settled_config()), method_of(config("paper"))
    output = random_output(4)
    logits = torch.randn(8, K, generator=torch.Generator().manual_seed(9))
    both = method.scores(Output(output.feature, {**output.heads, SETTLED: logits}))
    trained = plain.scores(output)
    assert list(both) == ["gcd", "trained", *[name for name in trained if name != "gcd"]]
    assert torch.equal(both["gcd"], (logits / TEMPERATURE).softmax(1))
    assert torch.equal(both["trained"], trained["gcd"])
    for name in set(trained) - {"gcd"}:
        assert torch.equal(both[name], trained[name])
    # in training only the trained heads are asked, at the end perhaps the settled one alone
    assert method.scores(output).keys() == trained.keys()
    assert list(method.scores(Output(output.feature, {SETTLED: logits}))) == ["gcd"]


def test_training_is_what_it_is_without() -> None:
    output, label = random_output(12), random_labels(12)
    losses = [
        method_of(chosen).loss(says(output), batch(label), at_progress(0.5)) for chosen in (settled_config(), config())
    ]
    assert losses[0].total.item() == losses[1].total.item()


@pytest.mark.parametrize("guides_start", [True, False])
def test_the_head_has_the_frozen_answer_before_the_first_step(guides_start: bool) -> None:
    features, truth, label = clear()
    chosen = settled_config(
        detector={"kind": "vote", "guides_start": guides_start}, heads={"hidden": 6, "warm_start": True}
    )
    network, method = made(chosen, IMAGES)
    with torch.no_grad():
        method.before_training(context(network, lambda: features, label))
        p = method.scores(network.from_feature(features, method.final_answers))["gcd"]
    assert torch.equal(p.argmax(1)[truth < KNOWN], truth[truth < KNOWN])
    assert len({(a, b) for a, b in zip(p.argmax(1).tolist(), truth.tolist(), strict=True)}) == K


@pytest.mark.parametrize("new", list(itertools.permutations(range(KNOWN, K))))
def test_new_categories_have_the_numbers_of_the_trained_classifier(new: tuple[int, ...]) -> None:
    """Also where the trained classifier takes a known class for another category."""
    features, truth, label = clear()
    network, method = made(settled_config(), IMAGES)
    for wrong in (False, True):
        order = [*range(KNOWN), *new]
        if wrong:
            order[KNOWN - 1] = new[0]  # the classifier has the last known class in a new category
        weight = torch.zeros(K, WIDTH)
        for c, number in enumerate(order):
            weight[number] += torch.eye(WIDTH)[c]
        with torch.no_grad():
            network.heads["classifier"].weight.copy_(weight + 1e-3)
            method.finalise(context(network, lambda: features, label))
            category = method.scores(network.from_feature(features, [SETTLED]))["gcd"].argmax(1)
        assert category.tolist() == [[*range(KNOWN), *new][c] for c in truth.tolist()], wrong


def test_no_new_category_is_no_trouble() -> None:
    truth = torch.arange(IMAGES) % KNOWN
    features = 4 * torch.eye(WIDTH)[truth] + 0.1 * torch.randn(
        IMAGES, WIDTH, generator=torch.Generator().manual_seed(0)
    )
    label = torch.where(torch.arange(IMAGES) % 4 < 2, truth, -1)
    method = create(replace(settled_config(), k=KNOWN), Sizes(WIDTH, KNOWN, KNOWN, IMAGES))
    network = build(method, Little())
    with torch.no_grad():
        method.finalise(context(network, lambda: features, label))
        category = method.scores(network.from_feature(features, [SETTLED]))["gcd"].argmax(1)
    assert torch.equal(category, truth)


# Whole runs.


@pytest.mark.parametrize("method", ["debgcd", "simgcd", "uno"])
def test_the_evaluation_has_the_settled_the_trained_and_the_frozen_answer(shared_runs: SharedRuns, method: str) -> None:
    run = shared_runs.whole(method)
    assert "answer: settled" in (run / "config.yaml").read_text("utf-8")
    scores = json.loads((run / "evaluation.json").read_text("utf-8"))
    assert {"gcd", "trained", "start"} <= set(scores["unlabelled"])
    assert {"gcd", "trained"} <= set(scores["test"]) and "start" not in scores["test"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    during = [line["evaluation"]["unlabelled"] for line in lines if "evaluation" in line]
    assert len(during) > 2
    for each in during[:-1]:
        assert "gcd" in each and not {"trained", "start"} & set(each)
    assert during[-1] == scores["unlabelled"]


def test_without_the_key_the_trained_classifier_answers(train: Train, shared_csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = train(shared_csv, run, answer="classifier", schedule__steps=2)
    assert said.code == 0, said.err
    assert not (run / "start.csv").exists() and "first answer" not in said.err
    assert not {"trained", "start"} & set(json.loads((run / "evaluation.json").read_text("utf-8"))["unlabelled"])


def start_rows(run: Path) -> list[list[str]]:
    with open(run / "start.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_the_first_answer_is_there_before_the_first_step_and_stays(
    command: Command, shared_csv: Path, tmp_path: Path, arguments: Callable[..., list[str]]
) -> None:
    words = arguments(shared_csv, tmp_path / "run")
    log = tmp_path / "log"
    assert debgcd(words, log, at_call("debgcd.train.loop.step", 1)) == -signal.SIGKILL, log.read_text("utf-8")
    first = start_rows(tmp_path / "run")
    assert first[0] == list(COLUMNS) and len(first) == 1 + 14
    assert not (tmp_path / "run" / "predictions.csv").exists()
    assert debgcd(["resume", tmp_path / "run", "--no-report"], log) == 0, log.read_text("utf-8")
    assert start_rows(tmp_path / "run") == first
    whole = tmp_path / "whole"
    assert debgcd(arguments(shared_csv, whole), log) == 0
    assert start_rows(whole) == first and result(whole) == result(tmp_path / "run")
    killed = tmp_path / "killed"
    assert debgcd(arguments(shared_csv, killed), log, at_call("debgcd.train.loop.step", 8)) == -signal.SIGKILL
    before = (killed / "start.csv").read_bytes()
    assert debgcd(["resume", killed, "--no-report"], log) == 0, log.read_text("utf-8")
    assert (killed / "start.csv").read_bytes() == before == (whole / "start.csv").read_bytes()
    assert result(killed) == result(whole)
    assert (killed / "evaluation.json").read_bytes() == (whole / "evaluation.json").read_bytes()


def test_evaluate_measures_a_settled_run_as_its_end_did(
    command: Command, train: Train, shared_csv: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(shared_csv, run, schedule__steps=3).code == 0
    before = (run / "evaluation.json").read_text("utf-8")
    said = command("evaluate", run)
    assert said.code == 0, said.err
    assert (run / "evaluation.json").read_text("utf-8") == before


def test_at_the_end_only_labels_that_were_held_out_calibrate_the_confidence(
    train: Train, shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start no step has learned from any label; at the end the labels that training saw prove nothing."""
    monkeypatch.setattr(setup, "FEWEST_LABELS", 2)
    monkeypatch.setattr(setup, "FEWEST_HELD_OUT", 1)
    asked: list[tuple[Tensor, Tensor | None]] = []

    def settle(feature: Tensor, label: Tensor, *given: Any, **more: Any) -> Answer:
        asked.append((label, more["unlearned"]))
        return usual(feature, label, *given, **more)

    usual = shared.settle
    monkeypatch.setattr(shared, "settle", settle)
    said = train(shared_csv, tmp_path / "run", "--k", 4, schedule__steps=2, answer="settled", run__held_out=0.4)
    assert said.code == 0, said.err
    (start, nothing), (end, unlearned) = asked[0], asked[-1]
    assert nothing is None and unlearned is not None
    held = (end >= 0) & (start < 0)
    assert int(held.sum()) == 4 and torch.equal(unlearned, held)


def test_answers_are_fitted_to_features_averaged_over_the_banks_views(
    train: Train, shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Tensor] = []
    averages: list[Tensor] = []

    def settle(feature: Tensor, *given: Any, **more: Any) -> Answer:
        asked.append(feature)
        return usual(feature, *given, **more)

    def averaged(self: setup.Setup) -> Tensor:
        averages.append(mean(self))
        assert averages[-1].shape == self.features().shape
        assert not torch.allclose(averages[-1], self.features(), rtol=1e-2, atol=1e-2)
        return averages[-1]

    usual, mean = shared.settle, setup.Setup.averaged_features
    monkeypatch.setattr(shared, "settle", settle)
    monkeypatch.setattr(setup.Setup, "averaged_features", averaged)
    words = ("--k", 4, "--bank", "on", "--cache", tmp_path / "cache")
    said = train(shared_csv, tmp_path / "run", *words, schedule__steps=2, answer="settled")
    assert said.code == 0, said.err
    assert len(asked) == len(averages) == 2  # before the first step and at the end
    assert all(torch.equal(one, other) for one, other in zip(asked, averages, strict=True))
