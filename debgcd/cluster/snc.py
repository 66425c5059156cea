"""Selective neighbour clustering (Hao et al. 2024): FINCH in which labelled points of one class form chains.

    nearest neighbours, and chains of the labelled -> connected components -> means -> the same again, until nothing changes

A labelled point links only to the next one of its chain, and any other point to its nearest neighbour; so a cluster never
holds two known classes. `levels` gives all partitions, `merged_to` one with K clusters.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn.functional import normalize

BLOCK = 2048  # points whose distances to all others are in memory together


def levels(points: Tensor, label: Tensor) -> list[NDArray[np.int64]]:
    """Partitions from fine to coarse, each the cluster of every point (N,): points (N, d), label (N,), -1 where there is none.

    Neighbours are by cosine. As in FINCH, a level ends the list if it has one cluster or as many as the one before; after
    the first level, links longer than the longest of the first are not followed.
    """
    unit = normalize(points.detach(), dim=1)
    y = label.cpu().numpy().astype(np.int64)
    found: list[NDArray[np.int64]] = []
    clusters, means, limit = np.arange(len(unit)), unit, math.inf
    while len(means) > 1:
        parts, longest = _step(normalize(means, dim=1), _majority(clusters, y, len(means)), limit)
        count = int(parts.max()) + 1
        if count == len(means) or (count == 1 and found):
            break
        clusters = parts[clusters]
        found.append(clusters)
        limit = longest if limit == math.inf else limit
        means = _means(unit, clusters, count)
    return found or [clusters]


def merged_to(points: Tensor, label: Tensor, k: int) -> NDArray[np.int64]:
    """K clusters, of which the first M are the known classes, each with all of its labelled points: (N,).

    From the coarsest level that has enough clusters, the two with the nearest means are joined until K are left, but never
    two known classes.
    """
    unit = normalize(points.detach().double().cpu(), dim=1)
    y = label.cpu().numpy().astype(np.int64)
    known = int(y.max()) + 1
    single = np.arange(len(unit))
    start = next(
        found
        for level in [*reversed(levels(points, label)), single]
        if (found := _classes_first(level, y, known)).max() >= k - 1
    )
    count = int(start.max()) + 1
    sums = torch.zeros(count, unit.shape[1], dtype=unit.dtype).index_add_(0, torch.from_numpy(start), unit)
    owner = np.arange(count)
    distance = _distances(sums, torch.arange(count))
    distance[:known, :known] = math.inf
    for _ in range(count - k):
        first, second = sorted(divmod(int(distance.argmin()), count))
        owner[owner == second] = first
        sums[first] += sums[second]
        distance[second], distance[:, second] = math.inf, math.inf
        fresh = _distances(sums, torch.tensor([first]))[0]
        fresh[distance[first].isinf()] = math.inf
        distance[first], distance[:, first] = fresh, fresh
    _, numbered = np.unique(owner, return_inverse=True)  # the smaller number survives, so known classes stay first
    return numbered[start]


def _step(unit: Tensor, y: NDArray[np.int64], limit: float) -> tuple[NDArray[np.int64], float]:
    """Components of the links that are not longer than the limit, and the longest link followed."""
    neighbour = np.empty(len(unit), np.int64)
    for start in range(0, len(unit), BLOCK):
        cosine = unit[start : start + BLOCK] @ unit.T
        own = torch.arange(len(cosine), device=unit.device)
        cosine[own, start + own] = -math.inf
        neighbour[start : start + BLOCK] = cosine.argmax(1).cpu().numpy()
    unit = unit.cpu()
    for label in np.unique(y[y >= 0]):
        for chain in _chains(unit, np.flatnonzero(y == label)):
            neighbour[chain[:-1]], neighbour[chain[-1]] = chain[1:], chain[-1]
    length = 1 - (unit * unit[torch.from_numpy(neighbour)]).sum(1).numpy()
    rows = np.flatnonzero(length <= limit)
    links = coo_matrix((np.ones(len(rows)), (rows, neighbour[rows])), shape=(len(unit), len(unit)))
    return connected_components(links, directed=False)[1].astype(np.int64), float(length[rows].max(initial=0.0))


def _chains(unit: Tensor, own: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Chains of at most ⌈√n⌉ of a class's n points: of the next ones in order, each is followed by the nearest left."""
    longest = math.ceil(math.sqrt(len(own)))
    chains = []
    for start in range(0, len(own), longest):
        left = own[start : start + longest].tolist()
        chain = [left.pop(0)]
        while left:
            nearest = int((unit[left] @ unit[chain[-1]]).argmax())
            chain.append(left.pop(nearest))
        chains.append(np.array(chain))
    return chains


def _majority(clusters: NDArray[np.int64], y: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The label of each cluster, -1 where it holds none; there is at most one."""
    label = np.full(count, -1)
    label[clusters[y >= 0]] = y[y >= 0]
    return label


def _classes_first(level: NDArray[np.int64], y: NDArray[np.int64], known: int) -> NDArray[np.int64]:
    """The level with all clusters of a known class joined, and these first."""
    label = _majority(level, y, int(level.max()) + 1)
    free = np.cumsum(label < 0) - 1
    return np.where(label >= 0, label, known + free)[level]


def _means(unit: Tensor, clusters: NDArray[np.int64], count: int) -> Tensor:
    at = torch.from_numpy(clusters).to(unit.device)
    sums = torch.zeros(count, unit.shape[1], dtype=unit.dtype, device=unit.device).index_add_(0, at, unit)
    return sums / torch.bincount(at, minlength=count)[:, None]


def _distances(sums: Tensor, rows: Tensor) -> Tensor:
    """Cosine distances of these rows to all, infinite to themselves."""
    unit = normalize(sums, dim=1)
    distance = 1 - unit[rows] @ unit.T
    distance[torch.arange(len(rows)), rows] = math.inf
    return distance
