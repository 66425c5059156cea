"""k-means++ (Arthur & Vassilvitskii 2007) for all restarts together, greedy as in scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from debgcd.cluster.blocks import Points
from debgcd.data.draws import uniform

POOL = 64  # points for each cluster among which centres are looked for; of more points, a sample is enough
PRODUCTS = 2**26  # inner products of points kept while centres are drawn


def plus_plus(
    points: Points,
    rows: Tensor,
    given: Tensor,
    missing: Tensor,
    *,
    seed: int,
    restarts: int,
    advance: Callable[[float], None],
) -> Tensor:
    """First centres of every restart, relative to the middle: (R, K, d).

    given: (K, d), where the rows of `missing` clusters are still to be found. They are drawn from the points of `rows`,
    with a chance that grows with the squared distance to the nearest centre so far, the given ones included. Of several
    candidates the one is taken that lowers the sum of these distances most.
    """
    k = len(given)
    trials = 2 + int(math.log(k))
    centres = given.repeat(restarts, 1, 1)
    if not len(missing):
        return centres
    pool = points.block(_sample(rows, POOL * k, seed))  # (n, d)
    norms = pool.square().sum(1)
    # Candidates repeat themselves over many restarts: all products at once are then cheaper than those of each draw.
    few = len(pool) ** 2 <= PRODUCTS and len(pool) <= restarts * trials * len(missing)
    products = pool @ pool.T if few else None
    there = torch.ones(k, dtype=torch.bool, device=given.device).index_fill_(0, missing, False)
    nearest = _squared_distance(points, pool, given[there]) if bool(there.any()) else None
    nearest = nearest.repeat(restarts, 1) if nearest is not None else None  # (R, n)
    restart = torch.arange(restarts, device=pool.device)
    draws = torch.from_numpy(
        uniform(seed, "kmeans", np.arange(restarts)[:, None, None], missing.cpu().numpy()[:, None], np.arange(trials))
    ).to(pool.device)  # (R, missing, T)
    for step, cluster in enumerate(missing.tolist()):
        candidates = _draw(nearest, draws[:, step], len(pool))  # (R, T)
        flat = candidates.flatten()
        inner = products[flat] if products is not None else pool[flat] @ pool.T  # (R * T, n)
        distance = inner.mul_(-2).add_(norms).add_(norms[flat, None]).clamp_min_(0).view(restarts, trials, -1)
        if nearest is not None:
            torch.minimum(distance, nearest[:, None], out=distance)
        best = distance.sum(2).argmin(1)
        nearest = distance[restart, best]
        centres[:, cluster] = pool[candidates[restart, best]]
        advance((step + 1) / len(missing))
    return centres


def _draw(nearest: Tensor | None, draws: Tensor, count: int) -> Tensor:
    """Points with a chance in proportion to `nearest` (R, n), for uniform draws (R, T) -> (R, T)."""
    chance = draws.new_ones(len(draws), count) if nearest is None else nearest.double()
    total = chance.sum(1, keepdim=True)
    chance = torch.where(total > 0, chance, 1.0)  # where every point lies on a centre, all are alike
    upto = chance.cumsum(1)
    return torch.searchsorted(upto, draws * upto[:, -1:], right=True).clamp_(max=count - 1)


def _sample(rows: Tensor, size: int, seed: int) -> Tensor:
    """At most `size` of the rows, each with the same chance, ascending."""
    if len(rows) <= size:
        return rows
    chosen = np.argsort(uniform(seed, "kmeans/pool", np.arange(len(rows))), kind="stable")[:size]
    return rows[torch.from_numpy(np.sort(chosen)).to(rows.device)]


def _squared_distance(points: Points, pool: Tensor, centres: Tensor) -> Tensor:
    """To the nearest of the centres: (n, d), (C, d) -> (n,)."""
    halves = centres.square().sum(1) / 2
    parts = [
        torch.addmm(halves, pool[here], centres.T, alpha=-1).amin(1) for here in points.blocks(len(pool), len(centres))
    ]
    return torch.cat(parts).mul_(2).add_(pool.square().sum(1)).clamp_min_(0)
