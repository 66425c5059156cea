"""Prototypes for a classifier to start from: semi-supervised k-means on principal, whitened features.

principal axes -> whiten by the labelled images -> k-means -> unit-length class means
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster.kmeans import kmeans
from debgcd.model.heads import AXES
from debgcd.novelty.vote import principal_axes

SHRINKAGE = 0.2  # towards a spherical covariance: often there are fewer labelled points than pairs of axes


def prototypes(
    features: Tensor,
    label: Tensor,
    k: int,
    *,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Unit-length centres of a semi-supervised clustering: features (N, width), label (N,) -> (K, width).

    Only the first principal axes are clustered: on the noise of the others, restarts end in very different clusterings.
    They are whitened, because variation within a class does not tell classes apart.
    """
    points = normalize(whiten(principal(features, AXES), label), dim=1)
    return class_means(
        normalize(features, dim=1), kmeans(points, label, k, seed=seed, on_progress=on_progress).assignment, k
    )


def class_means(unit: Tensor, category: Tensor, k: int) -> Tensor:
    """The unit-length mean of each category's rows: unit (N, d), category (N,), -1 for none -> (K, d).

    A category without rows gets one of the first rows, because the gradient of a zero prototype would be unbounded.
    """
    category = torch.where(category < 0, k, category)  # an extra category, which is dropped
    sums = torch.zeros(k + 1, unit.shape[1], dtype=unit.dtype, device=unit.device).index_add_(0, category, unit)[:k]
    empty = torch.bincount(category, minlength=k)[:k] == 0
    sums[empty] = unit[: int(empty.sum())]
    return normalize(sums, dim=1)


def group_means(points: Tensor, group: Tensor, count: int) -> Tensor:
    """The mean of each group's points: points (N, d), group (N,) in 0..count-1 -> (count, d); 0 for a group without points."""
    sums = torch.zeros(count, points.shape[1], dtype=points.dtype, device=points.device).index_add_(0, group, points)
    return sums / torch.bincount(group, minlength=count).clamp_min(1)[:, None]


def principal(points: Tensor, axes: int) -> Tensor:
    """Centred points projected on their `axes` directions of largest variance: (N, d) -> (N, min(axes, N, d))."""
    mean, directions = principal_axes(points, min(axes, *points.shape))
    return (points - mean) @ directions


def whiten(points: Tensor, label: Tensor) -> Tensor:
    """Whiten by the covariance within known classes: points (N, d), label (N,) with -1 for none -> (N, d)."""
    matrix = whitening(points, label)
    return points if matrix is None else (points.double() @ matrix).to(points.dtype)


def whitening(points: Tensor, label: Tensor) -> Tensor | None:
    """The matrix (d, d), float64, that whitens points (N, d) by their covariance within known classes; label (N,).

    A direction in which images of one class differ a lot tells little about classes, known or new, and is shortened.
    None if the covariance is unknown, because no class has two labelled points.
    """
    y, known = label[label >= 0], points[label >= 0].double()
    count = torch.bincount(y)
    residual = known - group_means(known, y, len(count))[y]
    # each class mean costs one degree of freedom
    freedom = int((count - 1).clamp_min(0).sum())
    covariance = residual.T @ residual / max(1, freedom)
    variance = covariance.diagonal().mean()
    # copies of one image in each class have no variance
    if not freedom or variance <= 1e-12 * points.double().square().mean():
        return None
    spherical = variance * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    values, vectors = torch.linalg.eigh((1 - SHRINKAGE) * covariance + SHRINKAGE * spherical)
    return (vectors / values.sqrt()) @ vectors.T
