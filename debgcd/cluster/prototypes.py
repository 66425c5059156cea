"""Prototypes for a classifier to start from: semi-supervised k-means on principal, whitened features.

principal axes -> whiten by the labelled images -> k-means -> unit-length class means
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster.kmeans import kmeans
from debgcd.novelty.vote import AXES, principal_axes

SHRINKAGE = 0.2  # towards a spherical covariance: often there are fewer labelled points than pairs of axes


def prototypes(
    features: Tensor,
    label: Tensor,
    k: int,
    *,
    new: Tensor | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Unit-length centres of a semi-supervised clustering: features (N, width), label (N,) -> (K, width).

    Only the first principal axes are clustered: on the noise of the others, restarts end in very different clusterings.
    They are whitened, because variation within a class does not tell classes apart.

    new: (N,) bool, the unlabelled images that look new. With it, a known class starts at the mean of its labelled images, and
    new classes start at clusters of those images. Otherwise a new class next to a known one is absorbed by it.
    """
    unit = normalize(features, dim=1)
    points = normalize(whiten(principal(features, AXES), label), dim=1)
    known = int(label.max()) + 1
    if (
        new is not None
        and int(new.sum()) >= k - known > 0
        and (torch.bincount(label[label >= 0], minlength=known) > 0).all()
    ):
        free = torch.full_like(label[new], -1)
        clusters = kmeans(points[new], free, k - known, seed=seed, on_progress=on_progress).assignment
        assignment = label.masked_scatter(new, known + clusters)
    else:
        assignment = kmeans(points, label, k, seed=seed, on_progress=on_progress).assignment
    # points without a cluster go to an extra row, which is dropped
    assignment = torch.where(assignment < 0, k, assignment)
    sums = torch.zeros(k + 1, features.shape[1], dtype=unit.dtype, device=unit.device)
    sums = sums.index_add_(0, assignment, unit)[:k]
    # a cluster is empty if there are fewer free points than clusters
    empty = torch.bincount(assignment, minlength=k)[:k] == 0
    # the gradient of a zero prototype would be unbounded
    sums[empty] = unit[: int(empty.sum())]
    return normalize(sums, dim=1)


def principal(points: Tensor, axes: int) -> Tensor:
    """Centred points projected on their `axes` directions of largest variance: (N, d) -> (N, min(axes, N, d))."""
    mean, directions = principal_axes(points, min(axes, *points.shape))
    return (points - mean) @ directions


def whiten(points: Tensor, label: Tensor) -> Tensor:
    """Whiten by the covariance within known classes: points (N, d), label (N,) with -1 for none -> (N, d).

    A direction in which images of one class differ a lot tells little about classes, known or new, and is shortened.
    Unless some class has two labelled points, the covariance is unknown and the points are returned unchanged.
    """
    y, known = label[label >= 0], points[label >= 0].double()
    count = torch.bincount(y)
    sums = torch.zeros(len(count), points.shape[1], dtype=known.dtype, device=known.device).index_add_(0, y, known)
    residual = known - (sums / count.clamp_min(1)[:, None])[y]
    # each class mean costs one degree
    freedom = int((count - 1).clamp_min(0).sum())
    covariance = residual.T @ residual / max(1, freedom)
    variance = covariance.diagonal().mean()
    if not freedom or variance <= 1e-12 * points.double().square().mean():  # copies of one image in each class
        return points
    spherical = variance * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    values, vectors = torch.linalg.eigh((1 - SHRINKAGE) * covariance + SHRINKAGE * spherical)
    return (points.double() @ (vectors / values.sqrt()) @ vectors.T).to(points.dtype)
