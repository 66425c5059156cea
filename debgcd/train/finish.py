"""The end of a run, and what can be asked of it again: model/, evaluation.json, predictions.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster.kmeans import kmeans
from debgcd.errors import DataError
from debgcd.files import csv_text, write_json, write_text
from debgcd.losses import novelty
from debgcd.train.categories import Category, categories
from debgcd.train.infer import TOP, Inference, features, infer
from debgcd.train.model_folder import read_categories, save_model, views_label
from debgcd.train.run import Run
from debgcd.train.setup import Setup, fresh_tokens
from debgcd.train.watch import measure

Prediction = dict[str, str | int | float | bool]  # one row of predictions.csv, by column

COLUMNS = ["path", "category", "id", "name", "known", "confidence", "novelty"]
COLUMNS += [f"top{i}_{what}" for i in range(1, TOP + 1) for what in ("id", "p")]


def prediction_rows(paths: Sequence[Path], inference: Inference, categories: Sequence[Category]) -> list[Prediction]:
    """One row an image, with the columns of predictions.csv; an empty text where there is nothing to say."""
    rows = []
    for i, path in enumerate(paths):
        best = categories[inference.top[i, 0]]
        row: Prediction = {
            "path": str(path),
            "category": best.category,
            "id": best.id,
            "name": best.name,
            "known": best.known,
            "confidence": float(inference.probability[i, 0]),
            "novelty": "" if inference.novelty is None else float(inference.novelty[i]),
        }
        for rank in range(TOP):
            there = rank < inference.top.shape[1]
            row[f"top{rank + 1}_id"] = categories[inference.top[i, rank]].id if there else ""
            row[f"top{rank + 1}_p"] = float(inference.probability[i, rank]) if there else ""
        rows.append(row)
    return rows


def predictions_csv(rows: Sequence[Prediction]) -> str:
    """The rows as CSV, with true/false and six decimals."""
    return csv_text(COLUMNS, ([_cell(row[name]) for name in COLUMNS] for row in rows))


def read_predictions(run: Run) -> tuple[list[Prediction], list[Category]]:
    """The rows of a finished run's predictions.csv, and its categories."""
    with open(run.predictions, encoding="utf-8", newline="") as file:
        rows: list[Prediction] = []
        for row in csv.DictReader(file):
            rows.append({**row, "category": int(row["category"]), "known": row["known"] == "true"})
    return rows, read_categories(run.model)


def unlabelled(setup: Setup) -> Inference:
    """What the network says of the unlabelled training images, with all its heads."""
    free = np.flatnonzero(setup.label < 0)
    return infer(setup.network, setup.method, setup.tokens.centre(free), heads=("detector", "debiased"))


def evaluate(run: Run, setup: Setup, inference: Inference) -> dict[str, Any]:
    """All measures on the unlabelled training images and, if there is one, on the test split; as in evaluation.json."""
    if not run.manifest.has_truth:
        raise DataError(
            f"{run.folder / 'manifest.csv'} does not say what is true of the unlabelled images: train from a CSV with a "
            "`truth` column to measure against"
        )
    rows, test = run.manifest.training_rows, run.manifest.test_rows
    result = {}
    truth = run.manifest.truth_ids(rows[setup.label < 0])
    if (truth >= 0).any():
        result["unlabelled"] = measure(inference, truth, setup.known)
    truth = run.manifest.truth_ids(test)
    if (truth >= 0).any():
        held_out = infer(setup.network, setup.method, _test_tokens(run, setup), heads=("detector", "debiased"))
        result["test"] = measure(held_out, truth, setup.known)
    return result


@torch.no_grad()
def evaluate_during_training(run: Run, setup: Setup) -> dict[str, Any]:
    """The same as the network stands. Where the categories are clusters, each split is clustered alone, without labels.

    So does the public code of GCD, which keeps the epoch with the best Old accuracy of k-means on the test split.
    """
    if not setup.method.clusters:
        return evaluate(run, setup, unlabelled(setup))
    free, test = np.flatnonzero(setup.label < 0), run.manifest.test_rows
    result = {}
    for name, rows, tokens in (
        ("unlabelled", run.manifest.training_rows[free], setup.tokens.centre(free)),
        ("test", test, _test_tokens(run, setup)),
    ):
        truth = run.manifest.truth_ids(rows)
        if (truth >= 0).any():
            feature = features(setup.network, tokens)
            free_of_labels = torch.full((len(feature),), -1)
            k = min(setup.method.k, len(feature))
            found = kmeans(normalize(feature, dim=1), free_of_labels, k, seed=run.config.seed).assignment
            trained = setup.network.learning & {"detector"}
            said = setup.network.from_feature(feature, trained).detector
            result[name] = measure(Inference.of(found, None if said is None else novelty(said)), truth, setup.known)
    return result


def _test_tokens(run: Run, setup: Setup) -> Iterator[Tensor]:
    test = run.manifest.test_rows
    return fresh_tokens(run.config, run.manifest, setup.network.backbone, test).centre(np.arange(len(test)))


def finish(run: Run, setup: Setup, inference: Inference, scores: dict[str, Any] | None) -> None:
    """Write what a run ends with; predictions.csv comes last, so that where it is the rest is too."""
    tensors = setup.network.state()
    k = len(tensors["heads.classifier.weight"])  # less than the configuration's where categories were pruned
    found = categories(run.manifest.classes, k)
    save_model(run.model, tensors, replace(run.config, k=k), found)
    if scores is not None:
        write_evaluation(run, scores, k)
    paths = [run.manifest.paths[row] for row in run.manifest.training_rows[setup.label < 0]]
    write_text(run.predictions, predictions_csv(prediction_rows(paths, inference, found)))


def write_evaluation(run: Run, scores: dict[str, Any], k: int) -> dict[str, Any]:
    """Write and return evaluation.json: what was measured, and of which run; k: categories at its end."""
    config = run.config
    facts = {"method": config.method, "seed": config.seed, "preset": config.preset, "backbone": config.backbone.name}
    written = {**facts, "views": views_label(config), "k": k, **scores}
    write_json(run.evaluation, written)
    return written


def _cell(value: str | int | float | bool) -> str | int:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else value
