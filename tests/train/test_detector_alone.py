"""A run without L_gcd, the paper's "L_sdl" alone: it trains to the end, and its categories and novelty mean something."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[..., Any]
ALONE = ["--method", "detector"]


def test_the_detector_alone_from_the_first_step_to_predictions(
    train: Command, command: Command, tmp_path: Path, shared_csv: Path
) -> None:
    run = tmp_path / "run"
    settings = {"detector__weight": 1.0, "schedule__steps": 30, "schedule__lr": 0.3, "run__eval_every": 5}
    settings |= {"heads__detector_depth": 1}
    assert train(shared_csv, run, *ALONE, **settings).code == 0
    scores = json.loads((run / "evaluation.json").read_text())["unlabelled"]
    assert set(scores) == {"gcd", "auroc"} and 0 <= scores["auroc"] <= 1
    assert (
        scores["gcd"]["accuracy"]["all"] > 0.9
    )  # three colours; of a classifier that nobody trained it would be chance
    with open(run / "predictions.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"] for row in rows} == {"cat", "dog", "new-01"} and all(row["novelty"] for row in rows)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 30 and all({"detector_labelled", "detector_entropy"} <= set(line) for line in steps)
    assert steps[-1]["detector_labelled"] < 0.7 * steps[0]["detector_labelled"]  # which is what trains
    assert not any("distillation" in line or "used" in line for line in steps)
    assert len(lines) > len(steps) + 1  # evaluated between, too
    before = (run / "evaluation.json").read_text()
    assert command("evaluate", run).code == 0  # the saved model is the whole model
    assert json.loads((run / "evaluation.json").read_text())["unlabelled"] == json.loads(before)["unlabelled"]


def test_too_many_categories_are_pruned(train: Command, tmp_path: Path, shared_csv: Path) -> None:
    run = tmp_path / "run"
    said = train(shared_csv, run, *ALONE, "--k", 24, prune="true")
    assert said.code == 0 and "categories: " in said.err
    left = json.loads((run / "model" / "categories.json").read_text())
    assert len(left) <= 16, "two known classes, and fourteen unlabelled images"


def test_a_run_of_no_steps_is_the_frozen_answer_all_the_same(
    train: Command, command: Command, tmp_path: Path, shared_csv: Path
) -> None:
    run = tmp_path / "run"
    assert train(shared_csv, run, *ALONE, "--epochs", 0, schedule__steps=0).code == 0
    assert json.loads((run / "evaluation.json").read_text())["method"] == "pim"
    assert command("evaluate", run).code == 0  # its config.yaml is read again
