"""What is observed of a run: evaluations in training; TensorBoard, where it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Command = Callable[..., Any]


def test_tensorboard_shows_what_metrics_jsonl_holds(tmp_path: Path, train: Command, shared_folder: Path) -> None:
    run = tmp_path / "run"
    assert train(shared_folder, run, run__tensorboard="true", schedule__steps=3).code == 0
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert {"loss", "distillation", "lr", "used"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]


def test_heads_without_gradients_are_settled_before_every_evaluation(
    tmp_path: Path, train: Command, shared_csv: Path
) -> None:
    """Where nothing is learned, each evaluation in training says what the last one says."""
    run = tmp_path / "run"
    words = ("--method", "gcd", "--bank", "on")
    assert train(shared_csv, run, *words, schedule__lr=0, run__eval_every=1).code == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [line["evaluation"] for line in lines if "evaluation" in line]
    assert len(found) == 4 and all(scores == found[-1] for scores in found)
    assert found[-1]["unlabelled"]["gcd"]["accuracy"]["all"] > 0.9 and found[-1]["unlabelled"]["auroc"] > 0.5
