"""Points seen so that the known classes are round and alike wide; from labelled points alone."""

from __future__ import annotations

import torch
from torch import Tensor

SHRINKAGE = 0.2  # towards a round class: often there are fewer labelled points than pairs of axes


def whiten(points: Tensor, label: Tensor) -> Tensor:
    """The points with the scatter within known classes taken out: (N, d), (N,) with -1 where there is no label -> (N, d).

    A direction in which images of one class differ much tells little about classes, known or new, and is made short. With
    no class of two labelled points there is nothing to go by, and the points stay as they are.
    """
    y, known = label[label >= 0], points[label >= 0].double()
    count = torch.bincount(y)
    sums = torch.zeros(len(count), points.shape[1], dtype=known.dtype, device=known.device).index_add_(0, y, known)
    residual = known - (sums / count.clamp_min(1)[:, None])[y]
    free = int((count - 1).clamp_min(0).sum())  # each class's mean takes one
    scatter = residual.T @ residual / max(1, free)
    size = scatter.diagonal().mean()
    if not free or size <= 1e-12 * points.double().square().mean():  # copies of one image in each class
        return points
    round_one = size * torch.eye(len(scatter), dtype=scatter.dtype, device=scatter.device)
    values, vectors = torch.linalg.eigh((1 - SHRINKAGE) * scatter + SHRINKAGE * round_one)
    return (points.double() @ (vectors / values.sqrt()) @ vectors.T).to(points.dtype)
