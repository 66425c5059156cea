"""EAGC (CVPR 2026): a change of the features' gradient, for any classifier."""

from __future__ import annotations

import torch
from torch import Tensor


def known_subspace(feature: Tensor, eta: float = 2.0) -> Tensor:
    """EAGC (CVPR 2026), S = R (R + η⁻² I)⁻¹ with R = ZᵀZ / N: a soft projection on where known classes lie: (N, d) -> (d, d)."""
    z = feature.double()
    r = z.T @ z / max(1, len(z))
    shifted = r + torch.eye(len(r), dtype=r.dtype, device=r.device) / eta**2
    return torch.linalg.solve(shifted, r).to(feature.dtype)  # both are functions of R, so their order is free


def energy(feature: Tensor, subspace: Tensor) -> Tensor:
    """EAGC: zᵀ S z / ‖z‖², the share of a feature within the known classes' subspace: (N, d), (d, d) -> (N,)."""
    return ((feature @ subspace) * feature).sum(1) / feature.square().sum(1).clamp_min(1e-12)


def guided_gradient(
    gradient: Tensor,
    feature: Tensor,
    labelled: Tensor,
    free: Tensor,
    reference: Tensor,
    subspace: Tensor,
    mean_energy: Tensor,
    align: float,
    project: float,
) -> Tensor:
    """EAGC: what reaches the tail instead of the gradient g of the features: (N, d) -> (N, d).

    Labelled rows: g + align (z − ẑ) / (L d), with ẑ: (L, d); as of half the mean square of the difference. Unlabelled ones:
    g − project · τ g S with τ = 1 − energy / its mean over labelled images, in 0..1: images that look new keep out of S.
    """
    changed = gradient
    if align and len(labelled):
        difference = feature[labelled] - reference
        changed = changed.index_add(0, labelled, difference.to(gradient.dtype), alpha=align / difference.numel())
    if project and len(free):
        strength = (1 - energy(feature[free], subspace) / mean_energy).clamp(0, 1)
        inside = project * strength[:, None] * (gradient[free] @ subspace)
        changed = changed.index_add(0, free, inside.to(gradient.dtype), alpha=-1)
    return changed
