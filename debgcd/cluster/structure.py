"""What features say of categories, whoever made them: other clusterings, the nearest images, distances to the means.

    structure(feature, label, k) once per set of images  ->  together, kept_together, nearness, separation for any categories of them

All of it is measured on the points that `settle` clusters. `report/trust.py` and `report/suggest.py` use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.cluster.kmeans import kmeans
from debgcd.cluster.settle import SettleOptions, mean_shift, principal_points

MOST = 10_000  # images; of more, a sample, because every image is compared with every other one
FEWEST = 3  # of each category in the sample
NEAR = 10  # nearest images
# clusterings: factor of K, whether points are shifted to their neighbours first, whether labelled images stay together
CLUSTERINGS = [
    (0.75, False, True),
    (1.0, True, True),
    (1.0, False, False),
    (1.25, True, False),
    (1.5, False, True),
    (0.75, True, True),
    (1.25, False, False),
    (1.5, True, False),
]

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Points = NDArray[np.float32]


@dataclass(frozen=True)
class Structure:
    """S of N images in the space in which they are clustered."""

    row: Ids  # (S,) which images these are, in order
    point: Points  # (S, d), unit rows
    shifted: Points  # (S, d) the same, moved to their neighbours
    cluster: Ids  # (R, S) of each of R clusterings
    near: Ids  # (S, NEAR) positions of the nearest others, nearest first


@torch.no_grad()
def structure(feature: Tensor, given: Ids, category: Ids, k: int, seed: int = 0) -> Structure:
    """feature (N, width); given: labels (N,) in 0..M-1 or -1; category (N,), from which a large set is sampled evenly. N >= 2."""
    row = _sample(category, seed)
    feature, label = feature[torch.from_numpy(row)].float(), torch.from_numpy(given[row])
    options = SettleOptions()
    x = principal_points(feature, label)(feature)
    shifted = mean_shift(x, min(options.neighbours, max(2, round(len(x) / k / 4))), options.rounds)
    known, free = int(label.max()) + 1, torch.full_like(label, -1)
    clusters = [
        kmeans(
            shifted if moved else x,
            label if fixed else free,
            min(len(x), max(2, known, round(factor * k))),
            seed=seed + turn,
            restarts=1,
        ).assignment.numpy()
        for turn, (factor, moved, fixed) in enumerate(CLUSTERINGS)
    ]
    return Structure(row, x.numpy(), shifted.numpy(), np.stack(clusters), _nearest(x).numpy())


def together(found: Structure, category: Ids, k: int) -> Floats:
    """(K, K): how often two images, one of each category, are in one cluster; 0 without pairs. category: (S,) in 0..k-1."""
    size = np.bincount(category, minlength=k).astype(np.float64)
    pairs = np.outer(size, size) - np.diag(size)
    same = np.zeros((k, k))
    for cluster in found.cluster:
        clusters = int(cluster.max()) + 1
        count = np.bincount(category * clusters + cluster, minlength=k * clusters).reshape(k, clusters).astype(float)
        same += count @ count.T - np.diag(size)
    return same / np.maximum(pairs, 1) / len(found.cluster)


def kept_together(found: Structure, category: Ids, k: int) -> Floats:
    """(S,) of each image: how often it is in one cluster with another one of its category; 0 without others."""
    size, share = np.bincount(category, minlength=k), np.zeros(len(category))
    for cluster in found.cluster:
        clusters = int(cluster.max()) + 1
        pair = category * clusters + cluster
        share += (np.bincount(pair, minlength=k * clusters)[pair] - 1) / np.maximum(size[category] - 1, 1)
    return share / len(found.cluster)


def nearness(found: Structure, category: Ids, k: int) -> Floats:
    """(K, K): of the nearest images of a category's images, the share in each category; rows of empty categories are 0."""
    size, wide = np.bincount(category, minlength=k), found.near.shape[1]
    pair = np.repeat(category, wide) * k + category[found.near].ravel()
    return np.bincount(pair, minlength=k * k).reshape(k, k) / np.maximum(size, 1)[:, None] / wide


def separation(found: Structure, category: Ids, k: int) -> Floats:
    """(K,) in 0..1: mean of (b − a) / b, at least 0; a, b = distance to the own and to the nearest other category's mean."""
    apart = distances(found.point, category_means(found.point, category, k)).astype(np.float64)
    rows = np.arange(len(apart))
    own = apart[rows, category].copy()
    apart[rows, category] = np.inf
    other = apart.min(1)
    with np.errstate(invalid="ignore"):
        share = np.where(np.isfinite(other), (other - own) / np.maximum(other, 1e-12), 1.0)  # a single category
    size = np.bincount(category, minlength=k)
    return np.bincount(category, weights=share.clip(0, 1), minlength=k) / np.maximum(size, 1)


def category_means(feature: Points, category: Ids, k: int) -> Points:
    """(k, width): the mean feature of each category's images; nan where there are none."""
    sums = np.zeros((k, feature.shape[1]), np.float64)
    np.add.at(sums, category, feature)
    size = np.bincount(category, minlength=k)[:, None]
    return (np.where(size > 0, sums, np.nan) / np.maximum(size, 1)).astype(np.float32)


def distances(feature: Points, means: Points) -> Points:
    """(N, K) Euclidean distances to the means; infinite where there is no mean."""
    squared = (feature**2).sum(1)[:, None] - 2 * feature @ np.nan_to_num(means).T + (means**2).sum(1)
    return np.sqrt(np.maximum(np.where(np.isnan(squared), np.inf, squared), 0))


def _sample(category: Ids, seed: int) -> Ids:
    """Which images: all, or MOST of them, in each category the same share but at least FEWEST where there are so many."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(category))
    order = order[np.argsort(category[order], kind="stable")]
    size = np.bincount(category)
    rank = np.arange(len(category)) - (np.cumsum(size) - size)[category[order]]  # within its category, at random
    urgency = np.where(rank < FEWEST, -1.0, (rank + random.random(len(rank))) / size[category[order]])
    return np.sort(order[np.argsort(urgency, kind="stable")[:MOST]]).astype(np.int64)


def _nearest(x: Tensor, block: int = 1024) -> Tensor:
    """(S, min(NEAR, S - 1)) the nearest others of each point, nearest first."""
    found = []
    for start in range(0, len(x), block):
        similarity = x[start : start + block] @ x.T
        rows = torch.arange(len(similarity))
        similarity[rows, start + rows] = -torch.inf
        found.append(similarity.topk(min(NEAR, len(x) - 1), dim=1).indices)
    return torch.cat(found)
