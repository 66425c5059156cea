"""Ward's method: repeatedly merge the two clusters whose merge costs least, so one tree holds a clustering for every K.

Exact, without a matrix of all distances: Ward's cost is reducible (merging two clusters brings neither nearer to a third).
So all mutual nearest neighbours can merge at once, and only clusters whose nearest neighbour has merged search again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.cluster.kmeans import kmeans

DIRECT = (
    10_000  # largest number of points that become leaves; more are first reduced to LEAVES small clusters by k-means
)
LEAVES = 4_000
_BLOCK = 256  # rows of distances at a time: they fit into a core's cache

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Tree:
    """Merges, cheapest first: merge i makes cluster n + i of the clusters pairs[i]; 0..n-1 are the leaves.

    pairs: (n-1, 2); cost: (n-1,) increase of the sum of squared distances to the centres; leaf: (N,) the leaf of each
    point; within: the sum of squared distances within the leaves.
    """

    pairs: Ids
    cost: NDArray[np.float64]
    leaf: Ids
    within: float

    @property
    def leaves(self) -> int:
        return len(self.cost) + 1

    def scatter(self) -> NDArray[np.float64]:
        """Sum of squared distances of the points to their centres with 1, 2, ..., n clusters: (n,)."""
        return self.within + np.concatenate([[0.0], np.cumsum(self.cost)])[::-1]

    def cut(self, k: int) -> Ids:
        """The cluster of each point, 0..k-1, when k clusters are left: (N,)."""
        return self._roots(k)[self.leaf]

    def merges_below(self, k: int) -> list[tuple[int, int]]:
        """The merges after `cut(k)`: in each, the second cluster joins the first, which keeps its id."""
        name = dict(enumerate(self._roots(k)))  # of each leaf's cluster, then of the merged ones
        done = self.leaves - k
        for i in range(done):
            name[self.leaves + i] = name[int(self.pairs[i, 0])]
        steps = []
        for i in range(done, self.leaves - 1):
            first, second = sorted(int(name[int(child)]) for child in self.pairs[i])
            steps.append((first, second))
            name[self.leaves + i] = first
        return steps

    def _roots(self, k: int) -> Ids:
        """The cluster of each leaf when k are left."""
        if not 1 <= k <= self.leaves:
            raise ValueError(f"a tree of {self.leaves} leaves cannot be cut into {k} clusters")
        done = self.leaves - k
        root = np.arange(self.leaves + done)
        for i in range(done - 1, -1, -1):  # from the top: a cluster's root is known before its children need it
            root[self.pairs[i]] = root[self.leaves + i]
        return np.unique(root[: self.leaves], return_inverse=True)[1]


def ward(points: Tensor, *, seed: int = 0) -> Tree:
    """The tree of Ward's method over points (N, d); equal points share a leaf, and so do close ones if N > DIRECT."""
    if len(points) > DIRECT:
        free = torch.full((len(points),), -1)
        leaf = kmeans(points, free, LEAVES, seed=seed, restarts=1, iterations=10).assignment
        leaf = torch.unique(leaf, return_inverse=True)[1]
    else:
        leaf = torch.unique(points, dim=0, return_inverse=True)[1]
    size = torch.bincount(leaf)
    exact = points.double()
    centres = torch.zeros(len(size), points.shape[1], dtype=torch.float64).index_add_(0, leaf, exact) / size[:, None]
    within = float((exact - centres[leaf]).square().sum())
    pairs, cost = _merges(centres.numpy(), size.double().numpy())
    return Tree(pairs, cost, leaf.numpy(), within)


def _merges(centres: NDArray[np.float64], size: NDArray[np.float64]) -> tuple[Ids, NDArray[np.float64]]:
    """All merges of weighted points, cheapest first: centres (n, d), size (n,) -> pairs (n-1, 2), cost (n-1,)."""
    n = len(centres)
    name, height = np.arange(n), np.zeros(n)  # of the clusters left: id, and cost of the merge that made it
    nearest, stale = np.empty(n, dtype=np.int64), np.arange(n)
    pairs, cost = [np.empty((0, 2), dtype=np.int64)], [np.empty(0)]
    made = n
    while len(centres) > 1:
        _look(centres, size, nearest, stale)
        first, second = _mutual(nearest)
        total = size[first] + size[second]
        share = (size[second] / total)[:, None]
        apart = centres[second] - centres[first]
        paid = size[first] * share[:, 0] * np.square(apart).sum(1)
        paid = np.maximum(paid, np.maximum(height[first], height[second]))  # monotone up to rounding
        pairs.append(np.stack([name[first], name[second]], 1))
        cost.append(paid)
        centres[first] += share * apart
        size[first], height[first], name[first] = total, paid, made + np.arange(len(first))
        made += len(first)
        changed = np.zeros(len(centres), dtype=bool)
        changed[first] = changed[second] = True
        left = np.ones(len(centres), dtype=bool)
        left[second] = False
        stale = np.flatnonzero((changed | changed[nearest])[left])
        nearest = (np.cumsum(left) - 1)[nearest[left]]
        centres, size, height, name = centres[left], size[left], height[left], name[left]
    return _sorted(np.concatenate(pairs), np.concatenate(cost), n)


def _look(centres: NDArray[np.float64], size: NDArray[np.float64], nearest: Ids, rows: Ids) -> None:
    """Find the nearest neighbour, the cheapest merge, of some clusters: fills nearest[rows]."""
    short = centres.astype(np.float32)  # twice as fast; the cost of the merge itself is computed in float64
    norm, weight = np.square(short).sum(1), (1 / size).astype(np.float32)
    across = torch.from_numpy(short).T
    for begin in range(0, len(rows), _BLOCK):
        part = rows[begin : begin + _BLOCK]
        # torch's product, not numpy's: a second thread pool would busy-wait for the first
        price = torch.mm(torch.from_numpy(-2 * short[part]), across).numpy()
        price += norm
        price += norm[part, None]
        price /= weight[part, None] + weight
        price[np.arange(len(part)), part] = np.inf
        nearest[part] = price.argmin(1)


def _mutual(nearest: Ids) -> tuple[Ids, Ids]:
    """The pairs of mutual nearest neighbours, lower number first."""
    here = np.arange(len(nearest))
    first = here[(nearest[nearest] == here) & (here < nearest)]
    if not len(first):  # ties can form a cycle: follow it and merge there
        at = 0
        for _ in here:
            at = nearest[at]
        first = np.array([min(at, nearest[at])])
        return first, np.array([max(at, nearest[at])])
    return first, nearest[first]


def _sorted(pairs: Ids, cost: NDArray[np.float64], n: int) -> tuple[Ids, NDArray[np.float64]]:
    """Merges sorted by cost, with the ids of that order."""
    order = np.argsort(cost, kind="stable")  # stable: children precede their parent among equal costs
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    renamed = np.concatenate([np.arange(n), n + rank])
    return renamed[pairs[order]], cost[order]
