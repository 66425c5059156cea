"""k-means and semi-supervised k-means (Vaze et al. 2022): labelled points stay in their class, the rest moves freely.

    read the points -> first centres (seeding.py) -> Lloyd's iterations (lloyd.py) -> the best restart

All restarts are computed together. Points are read in blocks (blocks.py), so that memory beside theirs is bounded. Random
numbers are a function of the seed, and sums are made in a fixed order: the same call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster.blocks import Points, one_thread_each, read
from debgcd.cluster.lloyd import Finished, Fixed, fix, lloyd
from debgcd.cluster.novelty import unlike_labelled
from debgcd.cluster.seeding import plus_plus
from debgcd.cluster.whiten import whiten

AXES = 128  # principal axes that a warm start clusters along

Metric = Literal["euclidean", "cosine"]


@dataclass(frozen=True)
class Clustering:
    """Centres (K, d), the cluster of each point (N,), and the summed squared distance to its centre."""

    centres: Tensor
    assignment: Tensor
    inertia: float
    metric: Metric = "euclidean"

    def predict(self, points: Tensor) -> Tensor:
        """The nearest centre of each point: (N, d) -> (N,)."""
        seen = read(_floating(points), unit=self.metric == "cosine")
        centres = self.centres.to(seen.raw) - seen.middle
        halves = centres.square().sum(1) / 2
        found = torch.empty(len(points), dtype=torch.int64, device=points.device)
        rows = torch.arange(len(points), device=points.device)

        def work(here: slice) -> None:
            found[here] = torch.addmm(halves, seen.block(rows[here]), centres.T, alpha=-1).argmin(1)

        with one_thread_each(points.device) as each:
            list(each(work, seen.blocks(len(points), len(centres))))
        return found


def kmeans(
    points: Tensor,
    label: Tensor,
    k: int,
    *,
    seed: int = 0,
    restarts: int = 10,
    iterations: int = 100,
    metric: Metric = "euclidean",
    on_progress: Callable[[int, int], None] | None = None,
) -> Clustering:
    """Cluster points; a labelled point is fixed to the cluster of its label.

    points: (N, d), float32 or float64 (other types are copied); label: (N,) in 0..M-1, or -1 where free (all -1: plain
    k-means). Clusters 0..M-1 are the labels' classes; a number among them that no point has is found like a new cluster.
    The restart with the lowest inertia is kept. With "cosine", points and centres have unit length (spherical k-means);
    a point of zeros stays one, as far from every centre as from the next.
    """
    points, label = _floating(points), label.to(points.device)
    _check(points, label, k, restarts, iterations, metric)
    seen = read(points, unit=metric == "cosine")
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
            inertia = _inertia(seen, _whole(label, fixed, found), found.centres)
            if best is None or (inertia, found.restart) < (best[0], best[1].restart):
                best = inertia, found
    assert best is not None
    if on_progress is not None:
        on_progress(total, total)
    return Clustering(best[1].centres + seen.middle, _whole(label, fixed, best[1]), best[0], metric)


def prototypes(
    features: Tensor,
    label: Tensor,
    k: int,
    *,
    novel_first: bool = False,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Unit-length centres of a semi-supervised clustering, for a classifier to start from: (N, width) -> (K, width).

    Clustered along the features' first principal axes, because the many others are mostly noise, in which restarts end in
    very different clusterings; and with the scatter within known classes taken out, because what varies within a class
    tells nothing about classes.

    With `novel_first`, a known class starts at the mean of its labelled images, and the new ones at clusters of those
    unlabelled images alone that look new (novelty.py): otherwise a new class beside a known one is drawn into it.
    """
    unit = normalize(features, dim=1)
    points = normalize(whiten(principal(features, AXES), label), dim=1)
    known = int(label.max()) + 1
    new = (
        (label < 0) & (unlike_labelled(points, label) > 0) if novel_first else torch.zeros_like(label, dtype=torch.bool)
    )
    if int(new.sum()) >= k - known > 0 and (torch.bincount(label[label >= 0], minlength=known) > 0).all():
        free = torch.full_like(label[new], -1)
        clusters = kmeans(points[new], free, k - known, seed=seed, on_progress=on_progress).assignment
        found = label.masked_scatter(new, known + clusters)
    else:
        found = kmeans(points, label, k, seed=seed, on_progress=on_progress).assignment
    found = torch.where(found < 0, k, found)  # those without a cluster are summed apart
    sums = torch.zeros(k + 1, features.shape[1], dtype=unit.dtype, device=unit.device).index_add_(0, found, unit)[:k]
    empty = torch.bincount(found, minlength=k)[:k] == 0  # fewer free points than clusters
    sums[empty] = unit[: int(empty.sum())]  # a prototype without length would have a gradient without bound
    return normalize(sums, dim=1)


def principal(points: Tensor, axes: int) -> Tensor:
    """Centred points along their `axes` directions of largest variance: (N, d) -> (N, min(axes, N, d))."""
    centred = (points - points.mean(0)).double()
    if len(points) < points.shape[1]:
        # the same from the smaller matrix; the larger one has so many eigenvalues of zero that eigh may not converge
        values, coordinates = torch.linalg.eigh(centred @ centred.T)
        return (coordinates * values.clamp_min(0).sqrt())[:, -axes:].to(points.dtype)
    _, directions = torch.linalg.eigh(centred.T @ centred)  # ascending
    return (centred @ directions[:, -axes:]).to(points.dtype)


def _floating(points: Tensor) -> Tensor:
    points = points.detach()
    return points if points.dtype in (torch.float32, torch.float64) else points.float()


def _check(points: Tensor, label: Tensor, k: int, restarts: int, iterations: int, metric: str) -> None:
    if points.ndim != 2 or label.shape != points.shape[:1]:
        raise ValueError(f"points must be (N, d) and label (N,), not {tuple(points.shape)} and {tuple(label.shape)}")
    if not 1 <= k <= len(points):
        raise ValueError(f"k must be between 1 and the number of points {len(points)}, not {k}")
    known = int(label.max()) + 1
    if known > k:
        raise ValueError(f"k = {k} is less than the {known} labelled classes")
    if restarts < 1 or iterations < 1:
        raise ValueError(f"restarts and iterations must be at least 1, not {restarts} and {iterations}")
    if metric not in get_args(Metric):
        raise ValueError(f"no metric {metric!r}; choose from {', '.join(get_args(Metric))}")


def _whole(label: Tensor, fixed: Fixed, found: Finished) -> Tensor:
    """The cluster of every point, labelled or free."""
    assignment = label.to(torch.int64, copy=True)
    assignment[fixed.free] = found.chosen
    return assignment


def _inertia(points: Points, assignment: Tensor, centres: Tensor) -> float:
    """The summed squared distance to the own centre, from differences: the expanded square loses digits."""
    total = torch.zeros((), dtype=torch.float64, device=centres.device)
    rows = torch.arange(len(assignment), device=centres.device)
    for here in points.blocks(len(assignment), 1):
        total += (points.block(rows[here]) - centres[assignment[here]]).square().sum(dtype=torch.float64)
    return float(total)
