"""Clusters of a graph of nearest neighbours: Infomap (`communities`), and selective neighbour clustering (`levels`).

Selective neighbour clustering (Hao et al. 2024) is FINCH in which labelled points of one class form chains:

    nearest neighbours, and chains of the labelled -> connected components -> means -> the same again, until nothing changes

A labelled point links only to the next one of its chain, and any other point to its nearest neighbour; so a cluster never
holds two known classes. `levels` gives all partitions, `merged_to` one with K clusters.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, eye
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster.prototypes import group_means

BLOCK = 2048  # points whose distances to all others are in memory together
PAIRS = 65536  # pairs of points that are in memory together


def levels(points: Tensor, label: Tensor) -> list[NDArray[np.int64]]:
    """Partitions from fine to coarse, each the cluster of every point (N,): points (N, d), label (N,), -1 where there is none.

    Neighbours are by cosine, also of the clusters' means. As in FINCH, a level ends the list if it has one cluster or as many as the
    one before; after the first level, pairs farther apart than the farthest of the first are not joined.
    """
    points = points.detach()
    y = label.cpu().numpy().astype(np.int64)
    found: list[NDArray[np.int64]] = []
    clusters, means, limit = np.arange(len(points)), points, math.inf
    while len(means) > 1:
        parts, farthest = _step(normalize(means, dim=1), _classes(clusters, y, len(means)), limit)
        count = int(parts.max()) + 1
        if count == len(means) or (count == 1 and found):
            break
        clusters = parts[clusters]
        found.append(clusters)
        limit = farthest if limit == math.inf else limit
        means = group_means(points, torch.from_numpy(clusters).to(points.device), count)
    return found or [clusters]


def merged_to(points: Tensor, label: Tensor, k: int) -> NDArray[np.int64]:
    """K clusters, numbered from 0: (N,).

    From the coarsest level that has enough clusters, the shortest of the links that a next step would follow is joined,
    until K are left. Clusters of one class stay apart until a link joins them; two known classes never become one.
    """
    y = label.cpu().numpy().astype(np.int64)
    found = next(level for level in [*reversed(levels(points, label)), np.arange(len(points))] if level.max() >= k - 1)
    count = int(found.max()) + 1
    rows = points.detach().double().cpu()
    sums = torch.zeros(count, rows.shape[1], dtype=rows.dtype).index_add_(0, torch.from_numpy(found), rows)
    means, known = normalize(sums, dim=1), _classes(found, y, count)
    link, into, there = _links(means, known), np.arange(count), np.ones(count, bool)
    closeness = _closeness(means, link)
    for _ in range(count - k):
        at = int(closeness.argmax())
        kept, gone = sorted((at, int(link[at])))
        into[into == gone] = kept
        sums[kept] += sums[gone]
        means[kept] = normalize(sums[kept], dim=0)
        there[gone], closeness[gone] = False, -math.inf
        known[kept], known[gone] = known[[kept, gone]].max(), -1
        # only links to and from the two change, and those of clusters that the joined one is nearer to
        free, near = there & (known < 0), (means @ means[kept]).numpy()
        old = free & ((link == kept) | (link == gone))
        old[kept] = free[kept]
        nearer = free & (near > closeness)
        nearer[kept] = False
        link[nearer], closeness[nearer] = kept, near[nearer]
        changed = np.flatnonzero(old & ~nearer)
        cosine = means[changed] @ means.T
        cosine[:, ~there], cosine[range(len(changed)), changed] = -math.inf, -math.inf
        link[changed] = cosine.argmax(1).numpy()
        if known[kept] >= 0:
            chained = np.flatnonzero(known == known[kept])
            _follow_chains(link, means, chained)
            changed = np.concatenate([changed, chained])
        closeness[changed] = _closeness(means, link, changed)
    return np.unique(into[found], return_inverse=True)[1]


def _closeness(means: Tensor, link: NDArray[np.int64], rows: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """The cosine of these points, or all, with what they link to; minus infinity where that is the point itself."""
    rows = np.arange(len(link)) if rows is None else rows
    return np.where(link[rows] == rows, -math.inf, (means[rows] * means[link[rows]]).sum(1).numpy())


def _step(unit: Tensor, y: NDArray[np.int64], limit: float) -> tuple[NDArray[np.int64], float]:
    """Components of the pairs that are not farther apart than the limit, and how far the farthest pair is.

    As in the public code: a pair is linked, or linked to the same point; its distance counts once for each of these.
    """
    link = _links(unit, y)
    follows = csr_matrix((np.ones(len(link)), (np.arange(len(link)), link)), shape=(len(link),) * 2) + eye(len(link))
    shared = (follows @ follows.T).tocoo()
    pairs = shared.row < shared.col
    first, second = (torch.from_numpy(side[pairs].astype(np.int64)) for side in (shared.row, shared.col))
    host = unit.cpu()
    cosine = [(host[a] * host[b]).sum(1) for a, b in zip(first.split(PAIRS), second.split(PAIRS), strict=True)]
    distance = shared.data[pairs] * (1 - torch.cat(cosine).double().numpy())
    near = distance <= limit
    joined = csr_matrix((np.ones(near.sum()), (first[near], second[near])), shape=follows.shape)
    return connected_components(joined, directed=False)[1].astype(np.int64), float(distance.max(initial=0.0))


def _links(unit: Tensor, y: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each point links to: its nearest neighbour, or if it is labelled the next of its chain, the last to itself."""
    link = np.empty(len(unit), np.int64)
    for start in range(0, len(unit), BLOCK):
        cosine = unit[start : start + BLOCK] @ unit.T
        own = torch.arange(len(cosine), device=unit.device)
        cosine[own, start + own] = -math.inf
        link[start : start + BLOCK] = cosine.argmax(1).cpu().numpy()
    unit = unit.cpu()
    for label in np.unique(y[y >= 0]):
        _follow_chains(link, unit, np.flatnonzero(y == label))
    return link


def _follow_chains(link: NDArray[np.int64], unit: Tensor, own: NDArray[np.int64]) -> None:
    """Links of a class's n points: chains of ⌈√n⌉ at most; of the next ones in order, each is followed by the nearest left."""
    longest = math.ceil(math.sqrt(len(own)))
    for start in range(0, len(own), longest):
        last, *left = own[start : start + longest].tolist()
        while left:
            following = left.pop(int((unit[left] @ unit[last]).argmax()))
            link[last], last = following, following
        link[last] = last


def _classes(clusters: NDArray[np.int64], y: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The known class of each cluster, -1 where it holds none; there is at most one."""
    label = np.full(count, -1)
    label[clusters[y >= 0]] = y[y >= 0]
    return label


def communities(
    points: Tensor, label: Tensor, *, neighbours: int = 14, least: float = 0.6, smallest: int = 5
) -> NDArray[np.int64]:
    """The cluster of each point, -1 where it is in none of `smallest` points or more: points (N, d), label (N,) -> (N,).

    Each point links to its nearest neighbours by cosine, if they are at least so similar. Between two labelled points of
    one class the link is as strong as the strongest of the first one.
    """
    from infomap import Infomap

    unit = normalize(points.detach().float(), dim=1)
    y = label.cpu().numpy()
    count = min(neighbours, len(unit) - 1)
    graph = Infomap("--two-level --directed --silent")
    for start in range(0, len(unit) if count > 0 else 0, BLOCK):
        similarity = unit[start : start + BLOCK] @ unit.T
        own_place = torch.arange(len(similarity), device=unit.device)
        similarity[own_place, start + own_place] = -torch.inf
        best = similarity.topk(count, dim=1)
        values, nearest = best.values.double().cpu().numpy(), best.indices.cpu().numpy()
        own = y[start : start + len(values), None]
        weights = np.where((own >= 0) & (y[nearest] == own), values[:, :1], values)
        for row, column in zip(*np.nonzero((values >= least) & (weights > 0)), strict=True):
            graph.add_link(start + int(row), int(nearest[row, column]), float(weights[row, column]))
    found = np.full(len(unit), -1)
    if graph.num_links:
        for node, module in graph.run().modules().items():
            found[node] = module
    kinds, numbered, sizes = np.unique(found, return_inverse=True, return_counts=True)
    keep = (kinds >= 0) & (sizes >= smallest)
    return np.where(keep, np.cumsum(keep) - 1, -1)[numbered]
