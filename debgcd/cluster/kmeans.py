"""k-means and semi-supervised k-means (Vaze et al. 2022): labelled points stay in their class, the others are free.

    read the points (blocks.py) -> first centres (k-means++) -> Lloyd's iterations (lloyd.py) -> the best restart

All restarts run together. Points are read in blocks, so that additional memory is bounded. Random numbers are a function
of the seed and sums have a fixed order: the same call gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from debgcd.cluster.lloyd import Finished, Fixed, Points, fix, lloyd, one_thread_each, read
from debgcd.data.sampler import uniform

POOL = 64  # candidates for first centres per cluster; of more points, a random sample is enough
PRODUCTS = 2**26  # largest matrix of inner products kept while centres are drawn


@dataclass(frozen=True)
class Clustering:
    """Centres (K, d), the cluster of each point (N,), and the sum of squared distances to the own centre."""

    centres: Tensor
    assignment: Tensor
    inertia: float


def kmeans(
    points: Tensor,
    label: Tensor,
    k: int,
    *,
    seed: int = 0,
    restarts: int = 10,
    iterations: int = 100,
    on_progress: Callable[[int, int], None] | None = None,
) -> Clustering:
    """Cluster points; a labelled point is fixed to the cluster of its label.

    points: (N, d), float32 or float64 (other types are copied); label: (N,) in 0..M-1, or -1 where free (all -1: plain
    k-means). Clusters 0..M-1 are the labelled classes; a class id without a point is found like a new cluster. The
    restart with the lowest inertia is kept.
    """
    points = points.detach()
    points = points if points.dtype in (torch.float32, torch.float64) else points.float()
    label = label.to(points.device)
    _check(points, label, k, restarts, iterations)
    seen = read(points)
    total = len(points) * (iterations + 1)  # one pass for the first centres

    def advance(passes: float) -> None:
        if on_progress is not None:
            on_progress(int(len(points) * passes), total)

    fixed, given = fix(seen, label, k)
    missing = (fixed.counts == 0).nonzero()[:, 0]
    best: tuple[float, Finished] | None = None
    with one_thread_each(points.device) as each:
        pool = fixed.free if len(fixed.free) else torch.arange(len(points), device=points.device)
        start = plus_plus(seen, pool, given, missing, seed=seed, restarts=restarts, advance=advance)
        for found in lloyd(
            seen, fixed, start, iterations=iterations, each=each, advance=lambda passes: advance(1 + passes)
        ):
            inertia = _inertia(seen, _all_points(label, fixed, found), found.centres)
            if best is None or (inertia, found.restart) < (best[0], best[1].restart):
                best = inertia, found
    assert best is not None
    if on_progress is not None:
        on_progress(total, total)
    return Clustering(best[1].centres + seen.middle, _all_points(label, fixed, best[1]), best[0])


def _check(points: Tensor, label: Tensor, k: int, restarts: int, iterations: int) -> None:
    if points.ndim != 2 or label.shape != points.shape[:1]:
        raise ValueError(f"points must be (N, d) and label (N,), got {tuple(points.shape)} and {tuple(label.shape)}")
    if not 1 <= k <= len(points):
        raise ValueError(f"k must be in 1..{len(points)}, the number of points, got {k}")
    known = int(label.max()) + 1
    if known > k:
        raise ValueError(f"k must be at least the number of labelled classes {known}, got {k}")
    if restarts < 1 or iterations < 1:
        raise ValueError(f"restarts and iterations must be at least 1, got {restarts} and {iterations}")


def _all_points(label: Tensor, fixed: Fixed, found: Finished) -> Tensor:
    """The cluster of every point, labelled or free: (N,)."""
    assignment = label.to(torch.int64, copy=True)
    assignment[fixed.free] = found.chosen
    return assignment


def _inertia(points: Points, assignment: Tensor, centres: Tensor) -> float:
    """The sum of squared distances to the own centre, from differences: the expanded square loses digits."""
    total = torch.zeros((), dtype=torch.float64, device=centres.device)
    rows = torch.arange(len(assignment), device=centres.device)
    for here in points.blocks(len(assignment), 1):
        total += (points.block(rows[here]) - centres[assignment[here]]).square().sum(dtype=torch.float64)
    return float(total)


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
    """First centres of every restart by greedy k-means++ (Arthur & Vassilvitskii 2007), relative to the middle: (R, K, d).

    given: (K, d) centres, of which the clusters `missing` are still to be found. A candidate is drawn from the points of
    `rows` with probability proportional to the squared distance to its nearest centre. Of several candidates, the one
    that most reduces the sum of these distances becomes the centre.
    """
    k = len(given)
    trials = 2 + int(math.log(k))
    centres = given.repeat(restarts, 1, 1)
    if not len(missing):
        return centres
    pool = points.block(_sample(rows, POOL * k, seed))  # (n, d)
    norms = pool.square().sum(1)
    # Candidates recur over many restarts: then all inner products at once are cheaper than those of each draw.
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
    """Points with probability proportional to `nearest` (R, n), from uniform draws (R, T) -> (R, T)."""
    chance = draws.new_ones(len(draws), count) if nearest is None else nearest.double()
    total = chance.sum(1, keepdim=True)
    chance = torch.where(total > 0, chance, 1.0)  # uniform where every point lies on a centre
    upto = chance.cumsum(1)
    return torch.searchsorted(upto, draws * upto[:, -1:], right=True).clamp_(max=count - 1)


def _sample(rows: Tensor, size: int, seed: int) -> Tensor:
    """At most `size` of the rows, uniformly without replacement, ascending."""
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
