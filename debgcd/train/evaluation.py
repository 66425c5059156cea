"""Scores of a network against the truth, during training and at the end. Only this file and callbacks.py read truth."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from debgcd.cluster.kmeans import kmeans
from debgcd.errors import DataError
from debgcd.evaluate import novelty_auroc, score
from debgcd.infer.infer import features_shared, infer_features, infer_shared
from debgcd.model.heads import classifiers
from debgcd.novelty.base import DETECTOR
from debgcd.review.log import LOG, read_log, reviewed_predictions
from debgcd.review.state import REJECTED
from debgcd.run.directory import Run
from debgcd.run.predictions import Inference, read_predictions
from debgcd.system import distributed
from debgcd.tokens.sources import Tokens
from debgcd.train.setup import Setup, fresh_tokens


def infer_unlabelled(setup: Setup, heads: Collection[str] | None = None) -> Inference:
    """The network's predictions for the unlabelled training images; heads: as for `infer`."""
    images = np.flatnonzero(setup.label < 0)
    if setup.at_start:
        return infer_features(setup.network, setup.method, setup.features_of(images), heads)
    return infer_shared(setup.network, setup.method, setup.tokens, images, heads)


def evaluate(run: Run, setup: Setup, inference: Inference, heads: Collection[str] | None = None) -> dict[str, Any]:
    """All scores on the unlabelled training images and on the test split, if there is one; the content of evaluation.json."""
    if not run.manifest.has_truth:
        raise DataError(
            f"{run.folder / 'manifest.csv'} does not say what is true of the unlabelled images: train from a CSV with a "
            "`truth` column to measure against"
        )
    result = {}
    truth = run.manifest.truth_ids(run.manifest.training_rows[setup.label < 0])
    if (truth >= 0).any():
        start = _frozen_answer(run) if heads is None else {}
        result["unlabelled"] = measure(replace(inference, others=inference.others | start), truth, setup.known)
    truth = run.manifest.truth_ids(run.manifest.test_rows)
    if (truth >= 0).any():
        numbers = np.arange(len(truth))
        inference = infer_shared(setup.network, setup.method, _test_tokens(run, setup), numbers, heads)
        result["test"] = measure(inference, truth, setup.known)
    return result


def _frozen_answer(run: Run) -> dict[str, NDArray[np.int64]]:
    """The categories of the unlabelled images before training, as "start"; empty for a run without start.csv."""
    if not run.start.exists():
        return {}
    return {"start": np.array(read_predictions(run.start, ("category",))["category"], dtype=np.int64)}


@torch.no_grad()
def evaluate_during_training(run: Run, setup: Setup) -> dict[str, Any]:
    """As `evaluate`, for the current network. If categories are clusters, each split is clustered separately, without labels.

    The public code of GCD does the same, and keeps the epoch with the best Old accuracy of k-means on the test split.
    """
    network, method = setup.network, setup.method
    if not method.clusters:
        # the other heads are filled only at the end
        heads = {*method.answers, *({*classifiers(network.heads), DETECTOR} & network.learning)}
        return evaluate(run, setup, infer_unlabelled(setup, heads), heads)
    free = np.flatnonzero(setup.label < 0)
    result = {}
    test = run.manifest.test_rows
    for name, rows, tokens, numbers in (
        ("unlabelled", run.manifest.training_rows[free], setup.tokens, free),
        ("test", test, _test_tokens(run, setup), np.arange(len(test))),
    ):
        truth = run.manifest.truth_ids(rows)
        if (truth >= 0).any():
            feature = features_shared(network, tokens, numbers)
            if distributed.rank():
                continue  # only rank 0 has the features
            unknown = torch.full((len(feature),), -1)
            k = min(method.sizes.k, len(feature))
            # seed and iterations as in GCD's public code
            clusters = kmeans(normalize(feature, dim=1), unknown, k, seed=0, iterations=300).assignment
            novelty = method.novelty(network.from_feature(feature, {DETECTOR} & network.learning))
            category = clusters.cpu().numpy()[:, None]
            inference = Inference(
                category, np.ones(category.shape, np.float32), None if novelty is None else novelty.cpu().numpy()
            )
            result[name] = measure(inference, truth, setup.known)
    return result


def _test_tokens(run: Run, setup: Setup) -> Tokens:
    return fresh_tokens(run.config, run.manifest, setup.network.backbone, run.manifest.test_rows)


def measure(inference: Inference, truth: NDArray[np.int64], known: int) -> dict[str, Any]:
    """The scores of all classifiers and of the detector, as JSON data, on the images whose truth is known (>= 0)."""
    has_truth = truth >= 0
    scores = {
        name: score(truth[has_truth], category[has_truth], known).to_json()
        for name, category in {"gcd": inference.category, **inference.others}.items()
    }
    auroc = float("nan")
    if inference.novelty is not None:
        auroc = novelty_auroc(inference.novelty[has_truth], truth[has_truth] >= known)
    return {**scores, "auroc": None if np.isnan(auroc) else auroc}


def evaluate_reviewed(run: Run) -> dict[str, Any]:
    """The scores of the reviewed categories of the unlabelled images, without rejected images; empty without a review."""
    if not read_log(run.folder / LOG)[0]:
        return {}
    rows, _ = reviewed_predictions(run.folder)
    category = np.array([-1 if row["review"] == REJECTED else row["category"] for row in rows])
    truth = run.manifest.truth_ids(run.manifest.training_rows[run.manifest.training_labels < 0])
    measurable = (truth >= 0) & (category >= 0)
    scores = score(truth[measurable], category[measurable], len(run.manifest.classes)).to_json()
    return {"reviewed": {"gcd": scores, "auroc": None}} if measurable.any() else {}
