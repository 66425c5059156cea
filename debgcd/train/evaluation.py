"""A network against the truth, during training and at the end. Only this file and callbacks.py read truth."""

from __future__ import annotations

from collections.abc import Collection
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
from debgcd.run.predictions import Inference
from debgcd.system import distributed
from debgcd.tokens.sources import Tokens
from debgcd.train.setup import Setup, fresh_tokens


def unlabelled(setup: Setup, heads: Collection[str] | None = None) -> Inference:
    """What the network says of the unlabelled training images; heads: as for `infer`."""
    images = np.flatnonzero(setup.label < 0)
    if setup.at_start:
        return infer_features(setup.network, setup.method, setup.features_of(images), heads)
    return infer_shared(setup.network, setup.method, setup.tokens, images, heads)


def evaluate(run: Run, setup: Setup, inference: Inference, heads: Collection[str] | None = None) -> dict[str, Any]:
    """All measures on the unlabelled training images and, if there is one, on the test split; as in evaluation.json."""
    if not run.manifest.has_truth:
        raise DataError(
            f"{run.folder / 'manifest.csv'} does not say what is true of the unlabelled images: train from a CSV with a "
            "`truth` column to measure against"
        )
    result = {}
    truth = run.manifest.truth_ids(run.manifest.training_rows[setup.label < 0])
    if (truth >= 0).any():
        result["unlabelled"] = measure(inference, truth, setup.known)
    truth = run.manifest.truth_ids(run.manifest.test_rows)
    if (truth >= 0).any():
        numbers = np.arange(len(truth))
        inference = infer_shared(setup.network, setup.method, _test_tokens(run, setup), numbers, heads)
        result["test"] = measure(inference, truth, setup.known)
    return result


@torch.no_grad()
def evaluate_during_training(run: Run, setup: Setup) -> dict[str, Any]:
    """The same as the network stands. Where the categories are clusters, each split is clustered alone, without labels.

    So does the public code of GCD, which keeps the epoch with the best Old accuracy of k-means on the test split.
    """
    network, method = setup.network, setup.method
    if not method.clusters:
        heads = {*classifiers(network.heads), DETECTOR} & network.learning  # the others are filled in the end
        return evaluate(run, setup, unlabelled(setup, heads), heads)
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
                continue  # rank 0 clusters and measures
            unknown = torch.full((len(feature),), -1)
            k = min(method.sizes.k, len(feature))
            found = kmeans(normalize(feature, dim=1), unknown, k, seed=0, iterations=300).assignment  # as there
            novelty = method.novelty(network.from_feature(feature, {DETECTOR} & network.learning))
            category = found.cpu().numpy()[:, None]
            said = None if novelty is None else novelty.cpu().numpy()
            result[name] = measure(Inference(category, np.ones(category.shape, np.float32), said), truth, setup.known)
    return result


def _test_tokens(run: Run, setup: Setup) -> Tokens:
    return fresh_tokens(run.config, run.manifest, setup.network.backbone, run.manifest.test_rows)


def measure(inference: Inference, truth: NDArray[np.int64], known: int) -> dict[str, Any]:
    """Every score of all classifiers and of the detector on images whose truth is known (>= 0), as JSON data."""
    have = truth >= 0
    scores = {
        name: score(truth[have], category[have], known).to_json()
        for name, category in {"gcd": inference.category, **inference.others}.items()
    }
    auroc = float("nan")
    if inference.novelty is not None:
        auroc = novelty_auroc(inference.novelty[have], truth[have] >= known)
    return {**scores, "auroc": None if np.isnan(auroc) else auroc}


def reviewed(run: Run) -> dict[str, Any]:
    """The measures of what a reviewer made of the unlabelled images, without rejected ones; empty where nobody did."""
    if not read_log(run.folder / LOG)[0]:
        return {}
    rows, _ = reviewed_predictions(run.folder)
    said = np.array([-1 if row["review"] == REJECTED else row["category"] for row in rows])
    truth = run.manifest.truth_ids(run.manifest.training_rows[run.manifest.training_labels < 0])
    have = (truth >= 0) & (said >= 0)
    scores = score(truth[have], said[have], len(run.manifest.classes)).to_json()
    return {"reviewed": {"gcd": scores, "auroc": None}} if have.any() else {}
