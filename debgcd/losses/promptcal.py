"""PromptCAL (Zhang et al. 2023): neighbours that a graph of consensus agrees on are positives of each other."""

from __future__ import annotations

import torch
from torch import Tensor

from debgcd.losses.contrastive import contrast


def consensus(z: Tensor, neighbours: int, valid: Tensor) -> Tensor:
    """Zhang et al. 2023, Eq. 5: how often two rows are in one neighbourhood, as shares of each row: (N, N).

    z: (N, d), unit rows; valid: (N,) bool, rows that are there. A row's neighbourhood are its nearest other rows and itself,
    but a row in its own neighbourhood makes no pair with itself.
    """
    count = min(neighbours, len(z) - 1)
    none = torch.eye(len(z), dtype=torch.bool, device=z.device) | ~valid
    nearest = (z @ z.T).masked_fill(none, -torch.inf).topk(count, dim=1)
    found = nearest.values.isfinite() & valid[:, None]
    links = torch.zeros_like(none, dtype=z.dtype).scatter_(1, nearest.indices, found.to(z.dtype))
    pairs = (links.T @ links).fill_diagonal_(0.0) + links + links.T
    return pairs / (pairs.sum(1, keepdim=True) + 1e-10)


def agreed(z: Tensor, queries: int, neighbours: int, quantile: float, valid: Tensor) -> Tensor:
    """Zhang et al. 2023, Eq. 6–7: positives of the first rows among the others, after one step of diffusion: (Q, N − Q) bool.

    As in the public code: P P Pᵀ + I; of its entries above the mean of those that are not zero, the largest 1 − quantile.
    """
    p = consensus(z, neighbours, valid)
    spread = p @ p @ p.T + torch.diag(valid.to(p.dtype))  # rows that are not there must not count in mean and quantile
    there = spread > 0
    mean = spread.sum() / there.sum()
    above = spread > mean
    ordered = spread.masked_fill(~above, -torch.inf).flatten().sort().values
    place = ordered.numel() - above.sum() + quantile * (above.sum() - 1).clamp_min(0)  # as numpy: linear between two
    low = place.floor().long().clamp_max(ordered.numel() - 1)
    high = (low + 1).clamp_max(ordered.numel() - 1)
    below, above_it = ordered.index_select(0, torch.stack([low, high]))  # ordered[low] would wait for the device
    limit = below.lerp(above_it, (place - low).to(ordered.dtype))
    return (spread > limit)[:queries, queries:] & valid[queries:]


def with_labels(positive: Tensor, y: Tensor, others: Tensor) -> Tensor:
    """Zhang et al. 2023: labels overrule the graph: two of one class are positives, two of different classes are not.

    positive: (Q, C) bool; y: (Q,), others: (C,) labels, negative where there is none.
    """
    both = (y[:, None] >= 0) & (others >= 0)
    return torch.where(both, y[:, None] == others, positive)


def neighbour_contrast(
    z: Tensor, own: Tensor, others: Tensor, positive: Tensor, candidate: Tensor, temperature: float = 0.07
) -> Tensor:
    """Zhang et al. 2023, Eq. 9: the teacher's view of the image and its agreed neighbours, among these and some negatives.

    z: (Q, d), unit rows; own: (Q, d) of the teacher; others: (C, d) remembered; positive, candidate: (Q, C) bool, a positive
    is always a candidate. Mean over rows.
    """
    if not len(z):
        return z.sum() * 0.0
    similarity = torch.cat([(z * own).sum(1, keepdim=True), z @ others.T], 1) / temperature
    first = torch.ones_like(positive[:, :1])
    positive = torch.cat([first, positive], 1)
    return contrast(similarity, positive, torch.cat([first, candidate], 1) | positive).mean()


def cross_nce(z: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """InfoNCE against a teacher: a view finds the teacher's other view of its image among all of the teacher's others.

    z, teacher: (2B, d), unit rows, i and i+B are two views; the teacher's row of the same view is no candidate.
    """
    if not len(z):
        return z.sum() * 0.0
    index = torch.arange(len(z), device=z.device)
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = index.roll(len(z) // 2)[:, None] == index
    return contrast(z @ teacher.T / temperature, positive, others).mean()


def cross_contrastive(z: Tensor, teacher: Tensor, y: Tensor, temperature: float = 0.07) -> Tensor:
    """Supervised contrast against a teacher: (2L, d) each, y (L,); a row's positives are the teacher's other rows of its class."""
    if not len(z):
        return z.sum() * 0.0
    label = y.repeat(2)
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    return contrast(z @ teacher.T / temperature, (label[:, None] == label) & others, others).mean()
