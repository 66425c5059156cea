"""Semi-supervised k-means (Vaze et al. 2022): labelled points stay in their class, the rest goes to the nearest centre."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.data.draws import stream_seed

AXES = 128  # principal axes that a warm start clusters along


@dataclass(frozen=True)
class Clustering:
    """Centres (K, d), the cluster of each point (N,), and the summed squared distance to its centre."""

    centres: Tensor
    assignment: Tensor
    inertia: float


def kmeans(
    points: Tensor, label: Tensor, k: int, *, seed: int = 0, restarts: int = 10, iterations: int = 100
) -> Clustering:
    """Cluster points; a labelled point is fixed to the cluster of its label.

    points: (N, d); label: (N,) in 0..M-1, or -1 where free (all -1: plain k-means). Clusters 0..M-1 are the labels'
    classes. The restart with the lowest inertia is kept.
    """
    if not 1 <= k <= len(points):
        raise ValueError(f"k must be between 1 and the number of points {len(points)}, not {k}")
    if not points.isfinite().all():
        raise ValueError("points hold values that are not finite")
    known = int(label.max()) + 1 if len(label) else 0
    if known > k:
        raise ValueError(f"k = {k} is less than the {known} labelled classes")
    best = None
    for restart in range(restarts):
        generator = torch.Generator().manual_seed(stream_seed(seed, f"kmeans/{restart}") % 2**63)
        found = _lloyd(points, label, _start(points, label, k, known, generator), iterations)
        if best is None or found.inertia < best.inertia:
            best = found
    assert best is not None
    return best


def prototypes(features: Tensor, label: Tensor, k: int, *, seed: int = 0) -> Tensor:
    """Unit-length centres of a semi-supervised clustering, for a classifier to start from: (N, width) -> (K, width).

    Clustered along the features' first principal axes: the many others are mostly noise, in which restarts end in very
    different clusterings.
    """
    unit = normalize(features, dim=1)
    found = kmeans(normalize(principal(features, AXES), dim=1), label, k, seed=seed).assignment
    sums = torch.zeros(k, features.shape[1], dtype=unit.dtype, device=unit.device).index_add_(0, found, unit)
    empty = torch.bincount(found, minlength=k) == 0  # fewer free points than clusters
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


def _start(points: Tensor, label: Tensor, k: int, known: int, generator: torch.Generator) -> Tensor:
    """Class means of the labelled points, then k-means++ over the free ones."""
    centres = torch.empty(k, points.shape[1], dtype=points.dtype, device=points.device)
    nearest = torch.full((len(points),), torch.inf, dtype=points.dtype, device=points.device)  # squared, to any centre
    for i in range(k):
        own = label == i
        if i < known and own.any():
            centres[i] = points[own].mean(0)
        else:
            # all points alike are a candidate before there is a centre, or where every point lies on one
            chance = nearest.clone() if i else torch.ones_like(nearest)
            chance[label >= 0] = 0
            if not chance.sum() > 0:
                chance = torch.ones_like(nearest)
            centres[i] = points[torch.multinomial(chance.cpu().double(), 1, generator=generator)[0]]
        nearest = torch.minimum(nearest, (points - centres[i]).square().sum(1))
    return centres


def _lloyd(points: Tensor, label: Tensor, centres: Tensor, iterations: int) -> Clustering:
    """Assign and average until nothing moves; an empty cluster takes the point that is worst served."""
    norms = points.square().sum(1)
    fixed = label >= 0
    assignment = torch.full_like(label, -1)
    for _ in range(iterations):
        distance = (norms[:, None] - 2 * points @ centres.T + centres.square().sum(1)).clamp_min(0)  # (N, K)
        chosen = torch.where(fixed, label, distance.argmin(1))
        cost = distance.gather(1, chosen[:, None])[:, 0]
        size = torch.bincount(chosen, minlength=len(centres))
        for empty in (size == 0).nonzero()[:, 0].tolist():
            candidates = cost.masked_fill(fixed | (size[chosen] <= 1), -1)
            worst = int(candidates.argmax())
            if candidates[worst] < 0:
                break  # fewer free points than clusters: the centre stays where it is
            size[chosen[worst]] -= 1
            chosen[worst], cost[worst], size[empty] = empty, 0, 1
        if torch.equal(chosen, assignment):
            break
        assignment = chosen
        sums = torch.zeros_like(centres).index_add_(0, assignment, points)
        filled = size > 0
        centres = torch.where(filled[:, None], sums / size.clamp_min(1)[:, None], centres)
    inertia = float((points - centres[assignment]).square().sum())
    return Clustering(centres, assignment, inertia)
