"""What is observed of a run: TensorBoard, where it is asked for."""

from __future__ import annotations

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
