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


def mean_entropy(logits: Tensor, temperature: float = 0.1) -> Tensor:
    """Eq. 2, H(p̄): the entropy of the mean prediction, largest when all categories are used alike.

    logits: (2B, K) cosines.
    """
    if not len(logits):
        return logits.sum() * 0.0
    # log of the mean taken as logsumexp − log N: a category that nobody predicts gives 0 · (finite), never 0 · -inf
    log_mean = (logits / temperature).log_softmax(1).logsumexp(0) - math.log(len(logits))
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
