"""Eq. 1–2 and L_cls^s: the parametric classifier of SimGCD."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor


def self_distillation(logits: Tensor, teacher_temp: float, student_temp: float = 0.1) -> Tensor:
    """Eq. 2, first term: each view learns the sharper prediction that the other view makes.

    logits: (2B, K) cosines; the teacher is the same network on the other view, detached. Mean over rows.
    """
    if len(logits) % 2:
        raise ValueError(f"logits must hold two views of each image, but have an odd number of rows: {len(logits)}")
    if not len(logits):
        return logits.sum() * 0.0
    teacher = (logits.detach() / teacher_temp).softmax(1).roll(len(logits) // 2, dims=0)
    return -(teacher * (logits / student_temp).log_softmax(1)).sum(1).mean()


def mean_entropy(logits: Tensor, temperature: float = 0.1, weight: Tensor | None = None) -> Tensor:
    """Eq. 2, H(p̄): the entropy of the mean prediction, largest when all categories are used alike.

    logits: (2B, K) cosines; weight: (2B,), positive, how much each row counts in p̄; None: all alike, as in the paper.
    """
    if weight is not None and weight.shape != logits.shape[:1]:
        raise ValueError(f"weight has shape {tuple(weight.shape)} for logits of {len(logits)} rows")
    if not len(logits):
        return logits.sum() * 0.0
    # log of the mean taken as logsumexp − log N: a category that nobody predicts gives 0 · (finite), never 0 · -inf
    log_p = (logits / temperature).log_softmax(1)
    total: float | Tensor = math.log(len(logits))
    if weight is not None:
        log_p, total = log_p + weight.log()[:, None], weight.sum().log()
    log_mean = log_p.logsumexp(0) - total
    return -(log_mean.exp() * log_mean).sum()


def supervised(logits: Tensor, y: Tensor, temperature: float = 0.1) -> Tensor:
    """L_cls^s and Eq. 12: cross-entropy with the true labels.

    logits: (N, K) cosines; y: (N,).
    """
    if len(y) != len(logits):
        raise ValueError(f"y has {len(y)} labels for logits of {len(logits)} rows")
    if not len(y):
        return logits.sum() * 0.0
    return F.cross_entropy(logits / temperature, y)
