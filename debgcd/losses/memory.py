"""Losses against remembered centres: the clusters of DCCL (Pu et al. 2023) and the Gaussians of GPC (Zhao et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

LEAST_DENSITY = 0.01  # of the mean


def centre_contrast(z: Tensor, centres: Tensor, used: Tensor, own: Tensor, temperature: float | Tensor) -> Tensor:
    """Each row finds its own centre among those in use; mean over the rows that have one.

    z: (N, d), unit rows; centres: (C, d), unit rows; used: how many of them, from the first; own: (N,), -1 where there is
    none; temperature: one for all, or one of each centre (C,). Pu et al. 2023, L_cluster, and Zhao et al. 2023, L_proto.
    """
    if own.shape != z.shape[:1]:
        raise ValueError(f"own has shape {tuple(own.shape)} for {len(z)} rows")
    if not len(z):
        return z.sum() * 0.0
    beyond = torch.arange(len(centres), device=z.device) >= used
    logits = (linear(z, centres) / temperature).masked_fill(beyond & (used > 0), -torch.inf)
    counts = own >= 0
    rows = cross_entropy(logits, own.clamp_min(0), reduction="none")
    return torch.where(counts, rows, 0.0).sum() / counts.sum().clamp_min(1)


def density_temperatures(points: Tensor, own: Tensor, centres: Tensor, mean: float = 1.0) -> Tensor:
    """Zhao et al. 2023, φ: a temperature of each cluster, lower the denser it is, with this mean: (C,).

    points: (N, d); own: (N,) in 0..C-1. The mean distance to the centre over log(n + 10); a cluster of one point or none
    has the largest; clipped to the 10th and 90th percentile. Clusters of equal points have a hundredth of the mean, not 0.
    """
    distance = (points - centres[own]).norm(dim=1)
    count = torch.bincount(own, minlength=len(centres))
    sums = torch.zeros(len(centres), dtype=distance.dtype, device=distance.device).index_add_(0, own, distance)
    density = sums / count.clamp_min(1) / (count.to(sums.dtype) + 10).log()
    density = torch.where(count > 1, density, torch.where(count > 1, density, 0.0).amax())
    limits = density.quantile(torch.tensor([0.1, 0.9], dtype=density.dtype, device=density.device))
    density = density.clamp(limits[0].clamp_min(LEAST_DENSITY * density.mean()), limits[1])
    return mean * density / density.mean() if float(density.mean()) > 0 else torch.full_like(density, mean)
