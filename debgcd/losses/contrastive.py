"""L_rep: the contrastive losses of the representation (Vaze et al. 2022, kept by SimGCD and DebGCD)."""

from __future__ import annotations

import torch
from torch import Tensor


def info_nce(z: Tensor, temperature: float = 1.0) -> Tensor:
    """L_rep, unlabelled part: each view must find the other view of its image among all other rows.

    z: (2B, d), unit rows; i and i+B are two views of one image.
    """
    images = _images(z)
    if not images:
        return z.sum() * 0.0
    similarity = _similarity_to_others(z, temperature)  # (2B, 2B)
    other_view = torch.arange(2 * images, device=z.device).roll(images)
    return torch.nn.functional.cross_entropy(similarity, other_view)


def supervised_contrastive(z: Tensor, y: Tensor, temperature: float = 0.07) -> Tensor:
    """L_rep, labelled part: every row is pulled to all rows of its class, its own other view among them.

    z: (2B, d), unit rows of labelled images; y: (B,). Mean over anchors of the mean over their positives.
    """
    images = _images(z)
    if len(y) != images:
        raise ValueError(f"y has {len(y)} labels for z of {images} images with two views each")
    if not images:
        return z.sum() * 0.0
    labels = y.repeat(2)
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    return contrast(z @ z.T / temperature, (labels[:, None] == labels) & others, others).mean()


def contrast(similarity: Tensor, positive: Tensor, among: Tensor) -> Tensor:
    """For each row, minus the mean over its positives of the logarithm of their share among the candidates: (N, C) -> (N,).

    similarity: scaled; positive, among: bool, a positive is a candidate too. 0 for a row without positives.
    """
    among = among | ~among.any(1, keepdim=True)  # a row without candidates would be nan, and so would its gradient
    log_p = similarity.masked_fill(~among, -torch.inf).log_softmax(1)
    return -log_p.masked_fill(~positive, 0.0).sum(1) / positive.sum(1).clamp_min(1)


def _images(z: Tensor) -> int:
    if len(z) % 2:
        raise ValueError(f"z must hold two views of each image, but it has an odd number of rows: {len(z)}")
    return len(z) // 2


def _similarity_to_others(z: Tensor, temperature: float) -> Tensor:
    """Scaled cosines of all pairs of rows, where no row is its own partner: (2B, 2B) with -inf on the diagonal."""
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    return (z @ z.T / temperature).masked_fill(itself, -torch.inf)
