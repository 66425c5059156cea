"""Eq. 15: clustering accuracy under one Hungarian matching over all unlabelled images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Accuracy:
    """Shares of correctly placed images, 0..1; nan where there is no image to count."""

    all: float
    old: float
    new: float


def clustering_accuracy(truth: ArrayLike, predicted: ArrayLike, known: int) -> Accuracy:
    """Eq. 15: the best one-to-one matching of clusters to classes, found once, then read for Old and New.

    truth, predicted: (N,) ids >= 0; truth < known is Old. A cluster left without a class is wrong in all its images.
    """
    truth, predicted = as_ids(truth, predicted)
    correct = matched_classes(truth, predicted)[predicted] == truth
    old = truth < known
    return Accuracy(all=mean_or_nan(correct), old=mean_or_nan(correct[old]), new=mean_or_nan(correct[~old]))


def balanced_accuracy(truth: ArrayLike, predicted: ArrayLike) -> float:
    """The same matching, but each true class counts alike however many images it has."""
    truth, predicted = as_ids(truth, predicted)
    correct = matched_classes(truth, predicted)[predicted] == truth
    size = np.bincount(truth)
    hits = np.bincount(truth, weights=correct, minlength=len(size))
    return mean_or_nan(hits[size > 0] / size[size > 0])


def matched_classes(truth: Ids, predicted: Ids) -> Ids:
    """The class that the optimal matching gives to each cluster id; -1 for a surplus cluster."""
    if not len(truth):
        return np.empty(0, dtype=np.int64)
    clusters, classes = int(predicted.max()) + 1, int(truth.max()) + 1
    together = np.bincount(predicted * classes + truth, minlength=clusters * classes).reshape(clusters, classes)
    rows, columns = linear_sum_assignment(together, maximize=True)
    matched = np.full(clusters, -1, dtype=np.int64)
    matched[rows] = np.where(
        together[:, columns].any(0), columns, -1
    )  # a class without an image is no class of the truth
    return matched


def as_ids(truth: ArrayLike, predicted: ArrayLike) -> tuple[Ids, Ids]:
    """Both as int64 arrays of one length without negative ids, or a ValueError that says what is wrong."""
    truth, predicted = np.asarray(truth, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
    if truth.ndim != 1 or truth.shape != predicted.shape:
        raise ValueError(
            f"truth and predicted must be two lists of one length, not {truth.shape} and {predicted.shape}"
        )
    for name, ids in (("truth", truth), ("predicted", predicted)):
        if len(ids) and ids.min() < 0:
            raise ValueError(f"{name} has the negative id {ids.min()}; leave out images without an id")
    return truth, predicted


def mean_or_nan(values: NDArray[np.bool_] | NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else float("nan")
