"""The model of a run as its reviewer left it: within a category that was split, the nearest mean of the parts' images decides."""

from __future__ import annotations

import errno
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize

from debgcd.errors import UsageError
from debgcd.grow.features import run_features
from debgcd.review.log import LOG, added_batches, carry, divided, outcome, read_review
from debgcd.review.state import REJECTED
from debgcd.run.directory import finished_run
from debgcd.run.model_folder import Grown, Model, load_model
from debgcd.run.parts_file import PARTS, parts_review, write_parts
from debgcd.system.files import turn
from debgcd.system.progress import say

TURN = "5917"  # which of a run's locks keeps two commands from writing the file at once
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)

Divided = Mapping[str, Mapping[str, list[str]]]


def open_model(folder: Path, cache: Path, backbone: str | None = None, device: str = "auto") -> Model:
    """The model of a run directory, as its reviewer left it, or a model folder itself."""
    inner = folder / "model"
    if not inner.is_dir():
        if not (folder / "config.json").is_file():
            begun = (folder / "config.yaml").is_file()
            hint = f"the run has not finished; first: debgcd resume {folder}" if begun else ""
            raise UsageError(f"{folder} holds no model: {hint or 'give a finished run, or its model folder'}")
        return load_model(folder, backbone=backbone, cache=cache, device=device)
    carry(folder)
    carry_splits(folder, cache)
    model = run_model(folder, cache, backbone, device)
    return replace(model, reviewed=_sizes(folder)) if (folder / LOG).exists() else model


def run_model(folder: Path, cache: Path, backbone: str | None = None, device: str = "auto") -> Model:
    """The model of a run directory with the categories that were added, as it is on disk."""
    grown = None
    if batches := added_batches(folder):
        grown = Grown(batches[-1].heads(), outcome(read_review(folder)), batches[-1].so_far)
    return load_model(folder / "model", backbone=backbone, cache=cache, device=device, grown=grown)


def _sizes(folder: Path) -> Counter[str]:
    """How many images each category has, labelled ones included and rejected ones not."""
    review, manifest = read_review(folder), finished_run(folder).manifest
    corrected = review.corrected()
    labels = zip(manifest.training_paths, manifest.training_labels.tolist(), strict=True)
    found = Counter(manifest.classes[label] for path, label in labels if label >= 0 and str(path) not in corrected)
    found.update(id for id in corrected.values() if id is not None)
    found.update(review.living(id).id for image, id in review.category.items() if review.status(image) != REJECTED)
    return found


def carry_splits(folder: Path, cache: Path) -> None:
    """Bring model/parts.safetensors of a finished run to what its review says; the model is used without its run, too."""
    if not (folder / "predictions.csv").is_file():
        return
    found = divided(folder)
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest() if found else None
    model = folder / "model"
    if parts_review(model) == digest:
        return
    try:
        with turn(folder, TURN, lambda first: None):
            if digest is None:
                (model / PARTS).unlink(missing_ok=True)
            else:
                _write(folder, found, digest, cache)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        say(f"{model} cannot be written to, so it predicts without the splits of the last review")


def _write(folder: Path, found: Divided, digest: str, cache: Path) -> None:
    run = finished_run(folder)
    feature = run_features(run, cache)
    row = {str(path): i for i, path in enumerate(run.manifest.training_paths)}
    labels = run.manifest.training_labels
    of, to, means = [], [], []
    for category, parts in found.items():
        for part, images in parts.items():
            rows = np.array([row[image] for image in images])
            if part == category and category in run.manifest.classes:
                rows = np.concatenate([rows, np.flatnonzero(labels == run.manifest.classes.index(category))])
            there = feature[rows].float()
            there = normalize(there[there.any(1)], dim=1)
            if len(there):
                of.append(category)
                to.append(part)
                means.append(normalize(there.mean(0), dim=0))
    write_parts(folder / "model", of, to, torch.stack(means) if means else feature[:0], digest)
