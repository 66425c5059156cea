"""Points to cluster."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def mixture(seed: int, clusters: int, size: int, width: int, spread: float) -> tuple[Tensor, Tensor]:
    """Points around random centres, and the centre that each comes from."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(clusters), size)
    points = rng.normal(size=(clusters, width))[truth] + spread * rng.normal(size=(clusters * size, width))
    return torch.tensor(points, dtype=torch.float32), torch.tensor(truth)


def free(points: Tensor) -> Tensor:
    return torch.full((len(points),), -1)


def half_labelled(truth: Tensor, known: int) -> Tensor:
    """Every second point of the classes below `known` has its label."""
    return torch.where((truth < known) & (torch.arange(len(truth)) % 2 == 0), truth, -1)
