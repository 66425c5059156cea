"""What is observed of a run: evaluations in training; TensorBoard, where it is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.cluster import KMeans
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.functional import normalize

from debgcd.evaluate import clustering_accuracy
from debgcd.infer.infer import features
from debgcd.model.heads import Projection
from debgcd.run.directory import Run
from debgcd.train import callbacks
from debgcd.train.setup import Setup, fresh_tokens

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


def test_gcd_keeps_the_epoch_with_the_best_old_accuracy_of_k_means_on_the_test_split(
    tmp_path: Path, train: Command, shared_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its public code: sklearn's KMeans on the test features alone, matched once; another clustering decides nothing."""
    seen: list[float] = []
    original = callbacks.evaluate_during_training

    def spied(run: Run, setup: Setup) -> dict[str, Any]:
        found = original(run, setup)
        test = run.manifest.test_rows
        tokens = fresh_tokens(run.config, run.manifest, setup.network.backbone, test).centre(np.arange(len(test)))
        unit = normalize(features(setup.network, tokens), dim=1).numpy()
        theirs = KMeans(setup.method.sizes.k, n_init=10, random_state=0).fit_predict(unit)
        truth = run.manifest.truth_ids(test)
        expected = clustering_accuracy(truth, theirs, setup.known)
        assert found["test"]["gcd"]["accuracy"]["old"] == pytest.approx(expected.old)
        seen.append(0.5 if len(seen) == 1 else 0.25)  # the second epoch is to win
        found["test"]["gcd"]["accuracy"]["old"] = seen[-1]
        return found

    monkeypatch.setattr(callbacks, "evaluate_during_training", spied)
    settings = {"run__eval_every": 1, "model_kept": "best-old", "schedule__steps": 12}
    assert train(shared_csv, tmp_path / "run", "--method", "gcd", **settings).code == 0
    (kept,) = (tmp_path / "run" / "checkpoints" / "best").iterdir()
    assert len(seen) == 4 and kept.name == "step-00000006"
    best, model = load_file(kept / "state.safetensors"), load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(torch.equal(best[name], model[name]) for name in model if name.startswith("tail."))
    assert model["heads.classifier.weight"].any()  # clustered at the end, with the kept network


def test_without_a_test_image_of_a_known_class_the_last_model_is_kept_and_one_line_says_so(
    tmp_path: Path, train: Command, tiny_manifest_csv: Path
) -> None:
    text = tiny_manifest_csv.read_text()
    tiny_manifest_csv.write_text(re.sub(r",(cat|dog),test", ",owl,test", text))
    said = train(tiny_manifest_csv, tmp_path / "run", model_kept="best-old")
    assert said.code == 0 and "model kept: the last, because there is no test image of a known class" in said.err
    assert "model_kept: last" in (tmp_path / "run" / "config.yaml").read_text()


def test_an_evaluation_in_training_never_runs_the_projection(
    tmp_path: Path, train: Command, shared_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GCD's has 65,536 outputs: for all images of a set at once, no memory would be enough."""
    inside = False
    original, forward = callbacks.evaluate_during_training, Projection.forward

    def entered(run: Run, setup: Setup) -> dict[str, Any]:
        nonlocal inside
        inside = True
        try:
            return original(run, setup)
        finally:
            inside = False

    def refused(self: Projection, feature: torch.Tensor) -> torch.Tensor:
        assert not inside, "the projection was run"
        return forward(self, feature)

    monkeypatch.setattr(callbacks, "evaluate_during_training", entered)
    monkeypatch.setattr(Projection, "forward", refused)
    for method in ("gcd", "simgcd"):
        said = train(shared_csv, tmp_path / method, "--method", method, run__eval_every=1)
        assert said.code == 0, said.err


def test_a_method_without_training_says_nothing_of_the_model_it_keeps(
    tmp_path: Path, train: Command, shared_csv: Path
) -> None:
    said = train(shared_csv, tmp_path / "run", "--method", "kmeans", model_kept="best-old")
    assert said.code == 0 and "model kept" not in said.err
    assert "model_kept: last" in (tmp_path / "run" / "config.yaml").read_text()
