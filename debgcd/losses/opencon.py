"""OpenCon (Sun & Li 2023): prototypes that follow the features, and a contrast among images that look new."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.losses.contrastive import contrast


def looks_new(cosines: Tensor, labelled: Tensor, free: Tensor, known: int, share: float = 0.7) -> Tensor:
    """Sun & Li 2023, Eq. 5: unlabelled images less like any known class than `share` of the labelled images are: (B,) bool.

    cosines: (B, K) to the prototypes; labelled, free: numbers of images. As in the public code, a row's cosines are
    standardised first. None looks new where no image is labelled.
    """
    new = torch.zeros(len(cosines), dtype=torch.bool, device=cosines.device)
    if not len(labelled) or not len(free) or cosines.shape[1] < 2:
        return new
    spread = cosines.std(1, keepdim=True).clamp_min(1e-12)
    score = ((cosines - cosines.mean(1, keepdim=True)) / spread)[:, :known].amax(1).detach()
    return new.index_copy(0, free, score[free] < score[labelled].quantile(1 - share))


def contrastive_among(z: Tensor, y: Tensor, chosen: Tensor, temperature: float = 0.7) -> Tensor:
    """Sun & Li 2023, L_n: supervised contrast with pseudo-labels among the chosen images alone; 0 where there are none.

    z: (2B, d), unit rows, i and i+B are two views; y: (B,) pseudo-labels; chosen: (B,) bool, e.g. from `looks_new`.
    """
    if len(z) != 2 * len(y) or chosen.shape != y.shape:
        raise ValueError(f"z has {len(z)} rows for {len(y)} pseudo-labels and {len(chosen)} choices, expected two each")
    if not len(y):
        return z.sum() * 0.0
    label, rows = y.repeat(2), chosen.repeat(2)
    among = (rows[:, None] & rows).fill_diagonal_(False)
    values = contrast(z @ z.T / temperature, among & (label[:, None] == label), among)
    return values.sum() / rows.sum().clamp_min(1)  # rows that are not chosen have no positives: 0


def divergence(logits: Tensor, prior: Tensor, temperature: float = 0.1) -> Tensor:
    """Sun & Li 2023: KL(p̄ ‖ prior), p̄ the mean prediction of the rows. logits: (N, K) cosines; prior: (K,), sums to 1."""
    if not len(logits):
        return logits.sum() * 0.0
    mean = (logits / temperature).softmax(1).mean(0).clamp_min(1e-5)  # as in the public code
    return (mean * (mean / prior).log()).sum()


@torch.no_grad()
def follow(prototypes: Tensor, z: Tensor, y: Tensor, counts: Tensor, momentum: float = 0.9) -> Tensor:
    """Sun & Li 2023, Eq. 7: μ_c ← normalise(γ μ_c + (1 − γ) z), one image after the other: (C, d) -> (C, d).

    z: (N, d), unit rows; y: (N,) their prototypes; counts: (N,) bool, images that move one.
    """
    prototypes = prototypes.clone()
    weight = (1 - momentum) * counts.to(z.dtype)[:, None]
    for i in range(len(z)):  # in order, since each step normalises; a number of an image, not a value: nothing waits
        own = y[i : i + 1]
        moved = normalize(prototypes[own].lerp(z[i : i + 1], weight[i : i + 1]), dim=1)
        prototypes.index_copy_(0, own, moved)
    return prototypes
