"""InfoSieve (Rastegar et al. 2023): contrasts by distance, and a code of bits for each image, as short as its category allows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from debgcd.losses.contrastive import contrast


def nearness(z: Tensor, relative: bool = False) -> Tensor:
    """Minus the distance of all pairs of rows: (N, d) -> (N, N).

    relative: for codes, divided by the sum of a row's distances; as in the public code, that of the other row of a pair.
    """
    distance = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")  # exact where two rows are near
    return -distance / (distance.sum(1) + 1e-10) if relative else -distance


def smoothed_nce(similarity: Tensor, smoothing: float, temperature: float = 1.0) -> Tensor:
    """Rastegar et al. 2023, L_C_in, unlabelled part: each row finds the other view of its image, with a smoothed target.

    similarity: (2B, 2B), e.g. from `nearness`; rows i and i+B are two views. A share `smoothing` of the target is spread
    over all 2B − 1 other rows; with 1 it says only that no row stands out.
    """
    rows = len(similarity)
    if similarity.shape != (rows, rows) or rows % 2:
        raise ValueError(f"similarity must have shape (2B, 2B), not {tuple(similarity.shape)}")
    if not rows:
        return similarity.sum() * 0.0
    others = ~torch.eye(rows, dtype=torch.bool, device=similarity.device)
    index = torch.arange(rows, device=similarity.device)
    other_view = index.roll(rows // 2)[:, None] == index
    scaled = similarity / temperature
    found = (1 - smoothing) * contrast(scaled, other_view, others) + smoothing * contrast(scaled, others, others)
    return found.mean()


def near_contrastive(similarity: Tensor, y: Tensor, temperature: float = 0.07) -> Tensor:
    """Rastegar et al. 2023, L_C_in, labelled part: supervised contrast over any similarity of rows.

    similarity: (2B, 2B), rows i and i+B are two views; y: (B,) labels or pseudo-labels.
    """
    if len(similarity) != 2 * len(y):
        raise ValueError(f"y has {len(y)} labels for a similarity of {len(similarity)} rows, two of each image")
    if not len(y):
        return similarity.sum() * 0.0
    label = y.repeat(2)
    others = ~torch.eye(len(label), dtype=torch.bool, device=similarity.device)
    return contrast(similarity / temperature, (label[:, None] == label) & others, others).mean()


def code_condition(code: Tensor) -> Tensor:
    """Rastegar et al. 2023, L_code_cond: every bit is −1 or 1, and each value as often: mean of 1 − c² + (mean of c)².

    code: (N, bits) in −1..1.
    """
    return (1 - code.square() + code.mean(0).square()).mean() if len(code) else code.sum() * 0.0


def mask_condition(mask: Tensor) -> Tensor:
    """Rastegar et al. 2023, L_mask_cond: a bit counts or does not: mean of (m (1 − m))². mask: (N, bits) in 0..1."""
    return (mask * (1 - mask)).square().mean() if len(mask) else mask.sum() * 0.0


def code_length(mask: Tensor, weight: Tensor) -> Tensor:
    """Rastegar et al. 2023, L_length: the sum over the rows of the share of bits that count, later bits weighing more.

    mask: (N, bits) in 0..1; weight: (bits,) of the bits in the code, falling. A sum over rows, as in the public code.
    """
    return (mask / weight).sum() / (1 / weight).sum()


def categories_of_codes(logits: Tensor, y: Tensor) -> Tensor:
    """Rastegar et al. 2023, L_cat: binary cross-entropy of each known class, mean over rows and classes.

    logits: (N, M) from the truncated codes of labelled rows; y: (N,).
    """
    if not logits.numel():
        return logits.sum() * 0.0
    return binary_cross_entropy_with_logits(logits, one_hot(y, logits.shape[1]).to(logits.dtype))
