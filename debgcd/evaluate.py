"""How good the categories are where the truth is known; training never uses any of this."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Accuracy:
    """Shares of correctly clustered images, 0..1; nan without such images."""

    all: float
    old: float
    new: float


@dataclass(frozen=True)
class ErrorKinds:
    """Shares of the Old images (first two) and of the New images (last two), 0..1; nan without such images."""

    true_old: float  # an Old image assigned to another Old class
    false_new: float  # an Old image assigned to a New class
    false_old: float  # a New image assigned to an Old class: the label bias that debiased learning should reduce
    true_new: float  # a New image assigned to another New class


@dataclass(frozen=True)
class Scores:
    """All measures of one classifier on one set of images; each 0..1 (ARI from -1), nan where undefined."""

    images: int
    accuracy: Accuracy
    balanced: float
    named: float  # share of the Old images predicted as their own class id: no matching, so no truth of New images
    nmi: float
    ari: float
    errors: ErrorKinds

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; null instead of nan, which JSON does not have."""
        return _null_for_nan(asdict(self))


def score(truth: ArrayLike, predicted: ArrayLike, known: int) -> Scores:
    """Every measure of predicted categories against the truth; a truth below `known` is Old."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    truth, predicted = _as_ids(truth, predicted)
    images = len(truth)
    return Scores(
        images=images,
        accuracy=clustering_accuracy(truth, predicted, known),
        balanced=balanced_accuracy(truth, predicted),
        named=_mean_or_nan((predicted == truth)[truth < known]),
        nmi=float(normalized_mutual_info_score(truth, predicted)) if images else math.nan,
        ari=float(adjusted_rand_score(truth, predicted)) if images else math.nan,
        errors=error_kinds(truth, predicted, known),
    )


def clustering_accuracy(truth: ArrayLike, predicted: ArrayLike, known: int) -> Accuracy:
    """Eq. 15: one Hungarian matching of clusters to classes over all images, then split into Old and New.

    truth, predicted: (N,) ids >= 0; a truth below `known` is Old. Images in an unmatched cluster count as wrong.
    """
    truth, predicted = _as_ids(truth, predicted)
    correct = _matched_classes(truth, predicted)[predicted] == truth
    old = truth < known
    return Accuracy(all=_mean_or_nan(correct), old=_mean_or_nan(correct[old]), new=_mean_or_nan(correct[~old]))


def balanced_accuracy(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Mean accuracy per true class, under the matching of `clustering_accuracy`."""
    truth, predicted = _as_ids(truth, predicted)
    correct = _matched_classes(truth, predicted)[predicted] == truth
    size = np.bincount(truth)
    hits = np.bincount(truth, weights=correct, minlength=len(size))
    return _mean_or_nan(hits[size > 0] / size[size > 0])


def error_kinds(truth: ArrayLike, predicted: ArrayLike, known: int) -> ErrorKinds:
    """The four kinds of error in the paper's appendix, under the matching of `clustering_accuracy`.

    An unmatched cluster corresponds to no true class, so its images count as predicted New.
    """
    truth, predicted = _as_ids(truth, predicted)
    given = _matched_classes(truth, predicted)[predicted]
    wrong = given != truth
    said_old = (given >= 0) & (given < known)
    old = truth < known
    return ErrorKinds(
        true_old=_mean_or_nan((wrong & said_old)[old]),
        false_new=_mean_or_nan((wrong & ~said_old)[old]),
        false_old=_mean_or_nan((wrong & said_old)[~old]),
        true_new=_mean_or_nan((wrong & ~said_old)[~old]),
    )


def novelty_auroc(novelty: ArrayLike, is_new: ArrayLike) -> float:
    """The probability that a New image scores above an Old one (ties count half); nan if either is absent."""
    novelty, is_new = np.asarray(novelty, dtype=np.float64), np.asarray(is_new, dtype=bool)
    if novelty.shape != is_new.shape:
        raise ValueError(f"novelty and is_new must have the same length, got {novelty.shape} and {is_new.shape}")
    new = int(is_new.sum())
    old = len(is_new) - new
    if not new or not old:
        return math.nan
    from scipy.stats import rankdata  # in functions: these packages take a second to import

    return float((rankdata(novelty)[is_new].sum() - new * (new + 1) / 2) / (new * old))


def _matched_classes(truth: Ids, predicted: Ids) -> Ids:
    """The class that the optimal matching gives each cluster id; -1 for an unmatched cluster."""
    if not len(truth):
        return np.empty(0, dtype=np.int64)
    clusters, classes = int(predicted.max()) + 1, int(truth.max()) + 1
    together = np.bincount(predicted * classes + truth, minlength=clusters * classes).reshape(clusters, classes)
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(together, maximize=True)
    matched = np.full(clusters, -1, dtype=np.int64)
    # ids may have gaps: a class without an image does not exist
    matched[rows] = np.where(together[:, columns].any(0), columns, -1)
    return matched


def _as_ids(truth: ArrayLike, predicted: ArrayLike) -> tuple[Ids, Ids]:
    """Both as int64 arrays of one length without negative ids."""
    truth, predicted = np.asarray(truth, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
    if truth.ndim != 1 or truth.shape != predicted.shape:
        raise ValueError(
            f"truth and predicted must be one-dimensional and of the same length, got {truth.shape} and {predicted.shape}"
        )
    for name, ids in (("truth", truth), ("predicted", predicted)):
        if len(ids) and ids.min() < 0:
            raise ValueError(f"{name} has the negative id {ids.min()}; leave out images without an id")
    return truth, predicted


def _mean_or_nan(values: NDArray[np.bool_] | NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _null_for_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _null_for_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
