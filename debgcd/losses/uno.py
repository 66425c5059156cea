"""UNO (Fini et al. 2021) with several heads: each view learns the balanced assignment of the other one.

In the original, Sinkhorn sees the new categories alone. Here it sees all K, because unlabelled images may be of a known
class: this is UNO+ of Vaze et al. 2022, whose code is not public. Over-clustering heads use the same functions; they have
more columns, of which the first M are still the known classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def sinkhorn(logits: Tensor, iterations: int = 3, epsilon: float = 0.05) -> Tensor:
    """Fini et al. 2021, Sinkhorn-Knopp: soft assignments that use all categories alike.

    logits: (..., N, K) cosines -> (..., N, K), every row sums to 1; each leading index is solved alone, without gradient.
    In log space, so that no epsilon overflows.
    """
    if logits.ndim < 2:
        raise ValueError(f"logits must have shape (..., N, K), not {tuple(logits.shape)}")
    if iterations < 1:
        raise ValueError(f"iterations must be 1 or more, not {iterations}")
    log_q = logits.detach() / epsilon
    for _ in range(iterations):
        log_q = log_q.log_softmax(-2)  # all categories get the same share of the images
        log_q = log_q.log_softmax(-1)  # all images count the same
    return log_q.exp()


def swapped_targets(
    logits: Tensor, labelled: Tensor, free: Tensor, y: Tensor, iterations: int = 3, epsilon: float = 0.05
) -> Tensor:
    """Fini et al. 2021, targets: the label where there is one, else what Sinkhorn makes of the other view.

    logits: (H, 2B, K) cosines of H heads; rows i and i+B are two views. labelled: (2L,) rows of the labelled images, first
    views, then second views; free: (2F,) the other rows, likewise; y: (L,). Returns (H, 2B, K): row i is the target of
    row i. Each head and view is balanced alone, over its F rows.
    """
    if logits.ndim != 3 or logits.shape[1] % 2:
        raise ValueError(f"logits must have shape (H, 2B, K): two views of each image, not {tuple(logits.shape)}")
    if labelled.ndim != 1 or free.ndim != 1 or len(labelled) + len(free) != logits.shape[1]:
        given = f"labelled of shape {tuple(labelled.shape)} and free of shape {tuple(free.shape)}"
        raise ValueError(f"{given} must name each of the {logits.shape[1]} rows of logits once")
    if len(free) % 2:
        raise ValueError(f"free must hold both views of each image, but names an odd number of rows: {len(free)}")
    if y.ndim != 1 or 2 * len(y) != len(labelled):
        raise ValueError(f"y has shape {tuple(y.shape)} for {len(labelled)} labelled rows, two of each image")
    targets = torch.zeros_like(logits, requires_grad=False)
    if len(y):
        label = F.one_hot(y.repeat(2), logits.shape[2]).to(logits.dtype)
        targets = targets.index_copy(1, labelled, label.expand(len(logits), -1, -1))
    if len(free):
        views = logits[:, free].unflatten(1, (2, -1))  # (H, 2, F, K)
        assigned = sinkhorn(views, iterations, epsilon).flip(1).flatten(1, 2)
        targets = targets.index_copy(1, free, assigned)
    return targets


def swapped(logits: Tensor, targets: Tensor, temperature: float = 0.1) -> Tensor:
    """Fini et al. 2021, L: cross-entropy of each head with its targets.

    logits: (H, N, K) cosines; targets: (H, N, K), from `swapped_targets`, taken as constants. Returns (H,), the mean over
    the N rows: its mean is the loss, and the head with the lowest sum over an epoch is the best one.
    """
    if logits.ndim != 3:
        raise ValueError(f"logits must have shape (H, N, K), not {tuple(logits.shape)}")
    if targets.shape != logits.shape:
        raise ValueError(f"targets have shape {tuple(targets.shape)}, logits {tuple(logits.shape)}")
    if not logits.shape[1]:
        return logits.sum((1, 2)) * 0.0
    return -(targets.detach() * (logits / temperature).log_softmax(2)).sum(2).mean(1)
