"""How far to trust each category, from what is known without any truth.

    trust = mean of views, clustering and confidence, as far as they are known. All parts are in 0..1:

    views         share of the category's images that stay in it when another view of the image is shown
    clustering    overlap with the best of K clusters that k-means finds in the same features: |A ∩ B| / |A ∪ B|
    confidence    mean probability of the category
    classifiers   share of its images that the other classifiers put into it too
    separation    mean of (b − a) / b over its images: a, b = distance to the own and to the nearest other category's mean

The last two are shown but not counted. `benchmarks/trust.py` measures how well all of them rank categories by their real purity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

COUNTED = ("views", "clustering", "confidence")
PARTS = (*COUNTED, "classifiers", "separation")


@dataclass(frozen=True)
class Evidence:
    """What is known of N images besides their category (N,), all in one order."""

    category: Ids
    feature: NDArray[np.float32]  # (N, width), unit rows
    means: NDArray[np.float32]  # (K, width) of the categories; nan where there is none
    others: Mapping[str, Ids]  # category by further classifiers
    other_view: Ids | None  # category of another view
    cluster: Ids  # of a second clustering
    confidence: Floats


def trust(evidence: Evidence, k: int) -> tuple[Floats, dict[str, Floats]]:
    """The trust of each category (k,) and its parts, each (k,); nan for a category without images."""
    category = evidence.category
    size = np.bincount(category, minlength=k)
    parts = {
        "clustering": _overlap(category, evidence.cluster, k),
        "separation": _mean(category, _separation(evidence), k),
        "confidence": _mean(category, evidence.confidence, k),
    }
    if evidence.others:
        agree = np.mean([other == category for other in evidence.others.values()], axis=0)
        parts["classifiers"] = _mean(category, agree, k)
    if evidence.other_view is not None:
        parts["views"] = _mean(category, (evidence.other_view == category).astype(float), k)
    ordered = {name: np.where(size > 0, parts[name], np.nan) for name in PARTS if name in parts}
    return np.mean([part for name, part in ordered.items() if name in COUNTED], axis=0), ordered


def order_of_interest(trust: Floats, size: Ids, known: int) -> list[int]:
    """Categories, most interesting first: new before known, then by trust · size, the images that it is likely right about."""
    worth = np.nan_to_num(trust) * size
    return sorted(range(len(size)), key=lambda c: (c < known, -worth[c], c))


def category_means(feature: NDArray[np.float32], category: Ids, k: int) -> NDArray[np.float32]:
    """(k, width): the mean feature of each category's images; nan where there are none."""
    sums = np.zeros((k, feature.shape[1]), np.float64)
    np.add.at(sums, category, feature)
    size = np.bincount(category, minlength=k)[:, None]
    return (np.where(size > 0, sums, np.nan) / np.maximum(size, 1)).astype(np.float32)


def rows_per_category(category: Ids, k: int) -> list[Ids]:
    """For each of k categories the rows that have it, in order; negative entries belong to none."""
    order = np.argsort(category, kind="stable")
    return np.split(order, np.searchsorted(category[order], np.arange(k)))[1:]


def distances(feature: NDArray[np.float32], means: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N, K) Euclidean distances to the means; infinite where there is no mean."""
    squared = (feature**2).sum(1)[:, None] - 2 * feature @ np.nan_to_num(means).T + (means**2).sum(1)
    return np.sqrt(np.maximum(np.where(np.isnan(squared), np.inf, squared), 0))


def _separation(evidence: Evidence) -> Floats:
    """(N,) in 0..1; 0 where another category's mean is nearer."""
    apart = distances(evidence.feature, evidence.means).astype(np.float64)
    rows = np.arange(len(apart))
    own = apart[rows, evidence.category].copy()
    apart[rows, evidence.category] = np.inf
    other = apart.min(1)
    with np.errstate(invalid="ignore"):
        share = np.where(np.isfinite(other), (other - own) / np.maximum(other, 1e-12), 1.0)  # a single category
    return share.clip(0, 1)


def _overlap(category: Ids, cluster: Ids, k: int) -> Floats:
    clusters = int(cluster.max()) + 1 if len(cluster) else 1
    both = np.bincount(category * clusters + cluster, minlength=k * clusters).reshape(k, clusters)
    either = both.sum(1)[:, None] + both.sum(0) - both
    return (both / np.maximum(either, 1)).max(1)


def _mean(category: Ids, value: Floats, k: int) -> Floats:
    size = np.bincount(category, minlength=k)
    return np.bincount(category, weights=value, minlength=k) / np.maximum(size, 1)
