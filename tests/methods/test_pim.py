"""PIM: the frozen answer as a method of its own, from one pass over the images to a model that others use."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from little import KNOWN, WIDTH, K, at, batch, context, made, random_labels, random_output, says
from PIL import Image
from shared_runs import SharedRuns

from debgcd import config as configuration
from debgcd.cluster.settle import SettleOptions, settle
from debgcd.methods.shared import looks_new
from debgcd.model.heads import classifiers
from debgcd.run.categories import read_categories
from debgcd.run.predictions import COLUMNS

Command = Callable[..., Any]
IMAGES = 60


def config(preset: str = "small") -> configuration.Config:
    return configuration.override(configuration.compose(preset, method="pim"), {"k": K}, "test")


def clear() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of K clear classes, their truth, and the labels of half of the known ones."""
    truth = torch.arange(IMAGES) % K
    noise = torch.randn(IMAGES, WIDTH, generator=torch.Generator().manual_seed(0))
    features = 4 * torch.eye(WIDTH)[truth] + 0.1 * noise + 1
    return features, truth, torch.where((truth < KNOWN) & (torch.arange(IMAGES) % 4 < 2), truth, -1)


@pytest.mark.parametrize("preset", ["small", "paper", "released"])
def test_the_head_says_what_the_procedure_found(preset: str) -> None:
    chosen = configuration.override(config(preset), {"pim": {"steps": 30}}, "test")
    network, method = made(chosen, IMAGES)
    features, truth, label = clear()
    given = context(network, lambda: features, label)
    with torch.no_grad():
        method.finalise(given)
        p = method.scores(network.from_feature(features, method.final_answers))["gcd"]
        new = looks_new(given, features) if chosen.options.pim.guided else None
        found = settle(features, label, K, new, chosen.options.pim, seed=chosen.seed)
    expected = (found.points(features) @ found.weight.T / found.temperature).softmax(1)
    torch.testing.assert_close(p, expected, rtol=1e-3, atol=1e-5)
    assert torch.equal(p.argmax(1)[truth < KNOWN], truth[truth < KNOWN])
    assert len({(a, b) for a, b in zip(p.argmax(1).tolist(), truth.tolist(), strict=True)}) == K
    novelty = method.novelty(network.from_feature(features, ["detector"]))
    unknown = (truth >= KNOWN)[label < 0]
    assert novelty is not None and novelty[label < 0][unknown].mean() > novelty[label < 0][~unknown].mean() + 0.3


def test_nothing_is_trained() -> None:
    network, method = made(config(), IMAGES)
    assert not method.trains and not list(network.heads.parameters())
    assert method.final_answers == method.answers == ("classifier",)
    assert list(classifiers(network.heads)) == ["classifier"]
    with pytest.raises(TypeError, match="nothing to train"):
        method.loss(says(random_output(2)), batch(random_labels(2)), at(0.0))


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_the_published_values(preset: str) -> None:
    """Of the paper and its public code: 1000 steps, temperature 0.04, uniform sizes, λ by the labelled images."""
    published = SettleOptions(
        whiten=False,
        rounds=0,
        guided=False,
        sizes="uniform",
        entropy_weight=None,
        temperature=0.04,
        steps=1000,
        calibrated=False,
    )
    assert config(preset).options.pim == published
    assert config("small").options.pim == SettleOptions()


# Whole runs: `whole` is not to be changed.


@pytest.fixture(scope="module")
def whole(shared_runs: SharedRuns) -> Path:
    return shared_runs.whole("pim")


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_has_categories_novelty_and_scores(whole: Path) -> None:
    found = rows(whole / "predictions.csv")
    assert list(found[0]) == list(COLUMNS) and len(found) == 14
    assert all(row["novelty"] for row in found)
    scores = json.loads((whole / "evaluation.json").read_text("utf-8"))
    assert scores["method"] == "pim" and scores["unlabelled"]["auroc"] is not None
    assert not {"trained", "start"} & set(scores["unlabelled"])
    assert not (whole / "start.csv").exists()


def test_zero_epochs_give_the_frozen_answer_of_debgcd(train: Command, shared_csv: Path, tmp_path: Path) -> None:
    """The categories that DebGCD's run has in start.csv."""
    zero, trained = tmp_path / "zero", tmp_path / "trained"
    words = ("--k", "4", "--set", "run.held_out=0")
    assert train(shared_csv, zero, "--epochs", "0", *words, schedule__steps="null").code == 0
    assert yaml.safe_load((zero / "config.yaml").read_text("utf-8"))["method"] == "pim"
    said = train(shared_csv, trained, *words, schedule__steps=1)
    assert said.code == 0, said.err
    assert f"first answer: {trained / 'start.csv'}" in said.err
    columns = [[row["category"] for row in rows(path)] for path in (zero / "predictions.csv", trained / "start.csv")]
    assert columns[0] == columns[1]


def test_it_predicts_new_images(command: Command, whole: Path, shared_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    said = command("predict", whole, shared_folder / "unlabelled", "-o", out)
    assert said.code == 0, said.err
    again = {Path(row["path"]).name: row["category"] for row in rows(out)}
    assert again == {Path(row["path"]).name: row["category"] for row in rows(whole / "predictions.csv")}


@pytest.mark.parametrize("method", ["pim", "debgcd"])
def test_onnx_says_what_the_run_says(
    command: Command, shared_runs: SharedRuns, shared_folder: Path, tmp_path: Path, method: str
) -> None:
    """Of a frozen and of a settled answer; the file's answer is that of predictions.csv."""
    run, file = shared_runs.whole(method), tmp_path / "model.onnx"
    said = command("export", run, "--to", "onnx", "-o", file)
    assert said.code == 0, said.err
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["preprocessing"])
    side, crop = facts["resize_short_side"], facts["centre_crop"]
    sure = [row for row in rows(run / "predictions.csv") if float(row["top1_p"]) - float(row["top2_p"]) > 0.2]
    assert len(sure) > 3
    for row in sure:
        with Image.open(row["path"]) as image:
            small = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        start = (side - crop) // 2
        pixels = np.asarray(small)[start : start + crop, start : start + crop].transpose(2, 0, 1)[None]
        assert int(session.run(None, {"pixels": pixels})[1].argmax()) == int(row["category"])


def test_a_frozen_answer_is_named_and_trained_from_with_and_without_decisions(
    command: Command, shared_runs: SharedRuns, tmp_path: Path
) -> None:
    run = tmp_path / "pim"
    said = command(*shared_runs.words("pim", run))
    assert said.code == 0, said.err
    steps = [
        f"--set={value}" for value in ("schedule.steps=3", "schedule.batch=8", "heads.hidden=16", "run.watch=warn")
    ]
    said = command("train", "--from", run, "-o", tmp_path / "plain", "--no-report", *steps)
    assert said.code == 0, said.err
    plain = yaml.safe_load((tmp_path / "plain" / "config.yaml").read_text("utf-8"))
    frozen = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    assert (plain["method"], plain["answer"], plain["start"], plain["k"]) == ("debgcd", "settled", None, 4)
    assert (plain["backbone"]["name"], plain["seed"]) == (frozen["backbone"]["name"], frozen["seed"])
    assert plain["views"]["size"] == frozen["views"]["size"]
    assert [row["path"] for row in rows(tmp_path / "plain" / "predictions.csv")] == [
        row["path"] for row in rows(run / "predictions.csv")
    ]
    new = next(row["id"] for row in rows(run / "predictions.csv") if row["known"] == "false")
    assert command("name", run, f"{new}=owl").code == 0
    said = command("train", "--from", run, "-o", tmp_path / "named", "--no-report", *steps)
    assert said.code == 0, said.err
    found = {one.id: one for one in read_categories(tmp_path / "named" / "model", 3)}
    assert found[new].known and found[new].name == "owl"


def test_another_method_without_decisions_is_still_refused(
    command: Command, shared_runs: SharedRuns, tmp_path: Path
) -> None:
    said = command("train", "--from", shared_runs.whole("sskmeans"), "-o", tmp_path / "run", "--no-report")
    assert said.code == 2 and "nothing is accepted, named or rejected" in said.complaint
