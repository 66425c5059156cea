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


def test_gcd_is_evaluated_in_training_by_k_means_of_each_split(
    tmp_path: Path, train: Command, shared_csv: Path
) -> None:
    """As in its public code. Where nothing is learned, each evaluation says the same; the last one has the final clusters."""
    run = tmp_path / "run"
    words = ("--method", "gcd", "--bank", "on")
    assert train(shared_csv, run, *words, schedule__lr=0, run__eval_every=1).code == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    *found, final = [line["evaluation"] for line in lines if "evaluation" in line]
    assert len(found) == 3 and all(scores == found[0] for scores in found)
    assert found[0]["unlabelled"]["gcd"]["accuracy"]["all"] > 0.9 and found[0]["unlabelled"]["auroc"] is None
    assert final["unlabelled"]["gcd"]["accuracy"]["all"] > 0.9 and final["unlabelled"]["auroc"] > 0.5
