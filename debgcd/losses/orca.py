"""ORCA (Cao et al. 2022): a margin that holds the known classes back, and pairs of images that should agree.

Its third term, KL(p̄ ‖ uniform), is log K − `mean_entropy`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def uncertainty(p: Tensor) -> Tensor:
    """Cao et al. 2022, ū: one minus the mean largest probability over the unlabelled images.

    p: (N, K) probabilities -> a scalar in 0..1 − 1/K. The public code takes it over all unlabelled images before each epoch.
    """
    if p.ndim != 2:
        raise ValueError(f"p must have shape (N, K), not {tuple(p.shape)}")
    if not len(p):
        return p.sum() * 0.0
    return 1 - p.amax(1).mean()


def margin_supervised(logits: Tensor, y: Tensor, margin: float | Tensor, temperature: float = 0.1) -> Tensor:
    """Cao et al. 2022, L_S: cross-entropy with the true class's cosine raised by the margin.

    logits: (N, K) cosines; y: (N,); margin: a number or a 0-d tensor, in units of the cosine, a constant to the gradient.
    The sign is plus: the more uncertain the unlabelled images, the sooner a labelled one counts as learned, so the known
    classes wait for the new ones. In the paper the margin is λ · ū and 1 / temperature is s, so the true logit moves by
    s · λ · ū. The public code has s = 10, λ = 1 and at most 0.5 for ū: up to 5 on its logits, which are scaled already.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape (N, K), not {tuple(logits.shape)}")
    if y.shape != logits.shape[:1]:
        raise ValueError(f"y has shape {tuple(y.shape)} for logits of {len(logits)} rows")
    if isinstance(margin, Tensor):
        if margin.ndim:
            raise ValueError(f"margin must be a number or a 0-d tensor, not of shape {tuple(margin.shape)}")
        margin = margin.detach()
    if not len(y):
        return logits.sum() * 0.0
    raised = logits + margin * F.one_hot(y, logits.shape[1]).to(logits.dtype)
    return F.cross_entropy(raised / temperature, y)


def partners(feature: Tensor, labelled: Tensor, y: Tensor, draw: Tensor) -> Tensor:
    """Cao et al. 2022, pairs of L_P: a random image of the same label, or the nearest one where there is no label.

    feature: (B, d), of one view; labelled: (L,) which of the B are labelled; y: (L,) their labels; draw: (L,) uniform in
    [0, 1), picks among the other labelled images of the class. Returns (B,) numbers of images. Without a label: the largest
    cosine among all other images. An image that has no other to choose from is its own partner.
    """
    if feature.ndim != 2:
        raise ValueError(f"feature must have shape (B, d), not {tuple(feature.shape)}")
    if labelled.ndim != 1 or len(labelled) > len(feature):
        raise ValueError(f"labelled has shape {tuple(labelled.shape)} for {len(feature)} images")
    for name, value in (("y", y), ("draw", draw)):
        if value.shape != labelled.shape:
            raise ValueError(f"{name} has shape {tuple(value.shape)} for {len(labelled)} labelled images")
    if not len(feature):
        return torch.zeros(0, dtype=torch.long, device=feature.device)
    unit = F.normalize(feature.detach(), dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(1)
    if not len(labelled):
        return nearest
    same = (y[:, None] == y[None, :]).fill_diagonal_(False)  # (L, L)
    others = same.sum(1)
    wanted = (draw * others).long().clamp(max=others - 1)  # clamp: in a narrower type a draw may be 1
    found = (same & (same.cumsum(1) == wanted[:, None] + 1)).long().argmax(1)
    chosen = torch.where(others > 0, found, torch.arange(len(y), device=y.device))
    return nearest.index_copy(0, labelled, labelled[chosen])


def pairwise(logits: Tensor, partner: Tensor, temperature: float = 0.1) -> Tensor:
    """Cao et al. 2022, L_P: an image and its partner, seen in the other view, should fall into one category.

    logits: (2B, K) cosines; rows i and i+B are two views. partner: (B,) in 0..B-1, from `partners`. Mean over the B images
    of -log ⟨p of row i, p of row partner+B⟩; the gradient flows into both. As in the public code, first views meet second
    views, and not the other way round.
    """
    if logits.ndim != 2 or len(logits) % 2:
        raise ValueError(f"logits must have shape (2B, K): two views of each image, not {tuple(logits.shape)}")
    if partner.shape != (len(logits) // 2,):
        raise ValueError(f"partner has shape {tuple(partner.shape)} for logits of {len(logits) // 2} images")
    if not len(partner):
        return logits.sum() * 0.0
    first, second = (logits / temperature).log_softmax(1).chunk(2)
    return -(first + second[partner]).logsumexp(1).mean()  # not the log of a sum of products, which may underflow
