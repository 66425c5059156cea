"""Rows of predictions.csv, and categories of new images from a trained model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from debgcd.data.crop import Picture
from debgcd.data.loader import default_workers, from_files
from debgcd.data.manifest import Manifest, Skipped, scan
from debgcd.errors import DataError, UsageError
from debgcd.files import csv_text
from debgcd.inference.infer import TOP, Inference, features, infer, probabilities
from debgcd.inference.model import Category, Model, Novel, load_model
from debgcd.inference.tokens import FreshTokens
from debgcd.progress import Report, progress

Prediction = dict[str, str | int | float | bool]  # one row of predictions.csv, by column

COLUMNS = ["path", "category", "id", "name", "known", "confidence", "novelty"]
COLUMNS += [f"top{i}_{what}" for i in range(1, TOP + 1) for what in ("id", "p")]
COLUMNS += ["looks_new"]


def prediction_rows(
    paths: Sequence[Picture], inference: Inference, categories: Sequence[Category], novel: Novel | None
) -> list[Prediction]:
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
        row["looks_new"] = ""
        if inference.novelty is not None and novel is not None:
            row["looks_new"] = bool(inference.novelty[i] > novel.above)
        rows.append(row)
    return rows


def predictions_csv(rows: Sequence[Prediction]) -> str:
    """The rows as CSV, with true/false and six decimals."""
    return csv_text(COLUMNS, ([_cell(row[name]) for name in COLUMNS] for row in rows))


def _cell(value: str | int | float | bool) -> str | int:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else value


@dataclass(frozen=True)
class Predictions:
    """What a model says of new images: one row for each usable image, and the files that are not usable."""

    rows: list[Prediction]
    skipped: tuple[Skipped, ...]


def open_model(folder: Path, cache: Path, backbone: str | None = None) -> Model:
    """The model of a run directory, or a model folder itself."""
    inner = folder / "model"
    if not inner.is_dir() and not (folder / "config.json").is_file():
        hint = f"the run has not finished; first: debgcd resume {folder}" if (folder / "config.yaml").is_file() else ""
        raise UsageError(f"{folder} holds no model: {hint or 'give a finished run, or its model folder'}")
    return load_model(inner if inner.is_dir() else folder, backbone=backbone, cache=cache)


def predict(model: Model, manifest: Manifest, workers: int | None = None) -> Predictions:
    """Categories, confidence and novelty of the images of a manifest, with the columns of predictions.csv."""
    usable = usable_images(manifest, workers)
    if not len(usable):
        broken = usable.skipped[-1]
        raise DataError(f"none of the {len(manifest)} images can be used, e.g. {broken.file}: {broken.reason}")
    inference = ask(model, usable, workers)
    return Predictions(prediction_rows(usable.paths, inference, model.categories, model.novel), usable.skipped)


def ask(model: Model, usable: Manifest, workers: int | None = None) -> Inference:
    """What the model says of images that are known to be usable."""
    with progress("predicting") as report:
        return infer(model.network, model.method, _tokens(model, usable, workers, report), heads=model.method.detectors)


def ask_all(model: Model, usable: Manifest, workers: int | None = None) -> NDArray[np.float32]:
    """The probability of every category for images that are known to be usable: (N, K)."""
    with progress("predicting") as report:
        return probabilities(model.network, model.method, _tokens(model, usable, workers, report))


def embed(model: Model, usable: Manifest, workers: int | None = None) -> Tensor:
    """The features of images that are known to be usable: (N, width)."""
    with progress("computing features") as report:
        return features(model.network, _tokens(model, usable, workers, report))


def usable_images(manifest: Manifest, workers: int | None) -> Manifest:
    """The manifest without what cannot be decoded."""
    with progress("reading images") as report:
        return scan(manifest, workers, report)


def _tokens(model: Model, usable: Manifest, workers: int | None, report: Report) -> Iterator[Tensor]:
    workers = default_workers() if workers is None else workers
    images = from_files(
        usable.paths, replace(model.config.views, upright=True)
    )  # a benchmark's model may say otherwise
    source = FreshTokens(model.network.backbone, images, model.config.seed, workers)
    done = 0
    for tokens in source.centre(np.arange(len(usable))):
        yield tokens
        done += len(tokens)
        report(done, len(usable))
