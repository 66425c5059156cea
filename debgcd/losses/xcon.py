"""XCon (Fei et al. 2022): the contrastive losses of GCD among images of one part of the data, where all look alike."""

from __future__ import annotations

import torch
from torch import Tensor

from debgcd.losses.contrastive import contrast


def info_nce_within(z: Tensor, part: Tensor, parts: int, temperature: float = 1.0) -> Tensor:
    """Fei et al. 2022, L_e, unlabelled part: `info_nce` among the rows of each part alone; mean over the parts that have rows.

    z: (2B, d), unit rows, i and i+B are two views; part: (B,) in 0..parts-1.
    """
    images = torch.arange(len(part), device=z.device)
    return _within(z, images, part, parts, temperature)


def supervised_contrastive_within(z: Tensor, y: Tensor, part: Tensor, parts: int, temperature: float = 0.07) -> Tensor:
    """Fei et al. 2022, L_e, labelled part: `supervised_contrastive` among the rows of each part alone, likewise.

    z: (2B, d), unit rows of labelled images; y: (B,); part: (B,) in 0..parts-1.
    """
    return _within(z, y, part, parts, temperature)


def _within(z: Tensor, y: Tensor, part: Tensor, parts: int, temperature: float) -> Tensor:
    if len(z) != 2 * len(part) or len(y) != len(part):
        raise ValueError(f"z has {len(z)} rows, y {len(y)} and part {len(part)}: z needs two views of each image")
    if not len(part):
        return z.sum() * 0.0
    label, part = y.repeat(2), part.repeat(2)
    among = (part[:, None] == part).fill_diagonal_(False)
    rows = contrast(z @ z.T / temperature, among & (label[:, None] == label), among)
    count = torch.zeros(parts, dtype=z.dtype, device=z.device).index_add_(0, part, torch.ones_like(rows))
    means = torch.zeros_like(count).index_add(0, part, rows) / count.clamp_min(1)
    return means.sum() / (count > 0).sum()
