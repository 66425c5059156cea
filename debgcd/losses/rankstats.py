"""RankStats (Han et al. 2020, AutoNovel): two images belong together if the same dimensions of their features stand out."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

SMALLEST = 1e-7  # added to a probability before its logarithm, as in the public code


def same_ranks(feature: Tensor, top: int = 5) -> Tensor:
    """Han et al. 2020, s: whether two images have the same set of `top` largest dimensions: (N, d) -> (N, N) bool."""
    if feature.ndim != 2:
        raise ValueError(f"feature must have shape (N, d), not {tuple(feature.shape)}")
    if not 1 <= top <= feature.shape[1]:
        raise ValueError(f"top must be between 1 and the {feature.shape[1]} dimensions, not {top}")
    chosen = feature.detach().topk(top, dim=1).indices.sort(1).values  # as a set: in which order they stand is free
    return (chosen[:, None] == chosen).all(2)


def pairwise_agreement(logits: Tensor, same: Tensor, temperature: float = 0.1) -> Tensor:
    """Han et al. 2020, L_BCE: the first view of one image and the second view of another agree if they are a pair.

    logits: (2N, K) cosines, rows i and i+N are two views; same: (N, N), from `same_ranks`. Binary cross-entropy of the
    inner product of both predictions; mean over all N² pairs, an image with itself among them.
    """
    if logits.ndim != 2 or len(logits) % 2:
        raise ValueError(f"logits must have shape (2N, K): two views of each image, not {tuple(logits.shape)}")
    images = len(logits) // 2
    if same.shape != (images, images):
        raise ValueError(f"same has shape {tuple(same.shape)} for logits of {images} images")
    if not images:
        return logits.sum() * 0.0
    first, second = (logits / temperature).softmax(1).chunk(2)
    together = first @ second.T
    return -(torch.where(same, together, 1 - together) + SMALLEST).log().mean()


def view_consistency(logits: Tensor, temperature: float = 0.1) -> Tensor:
    """Han et al. 2020, L_MSE: the mean squared difference between the predictions of both views.

    logits: (2N, K) cosines, rows i and i+N are two views; mean over images and categories.
    """
    if logits.ndim != 2 or len(logits) % 2:
        raise ValueError(f"logits must have shape (2N, K): two views of each image, not {tuple(logits.shape)}")
    if not logits.numel():
        return logits.sum() * 0.0
    first, second = (logits / temperature).softmax(1).chunk(2)
    return mse_loss(first, second)


def ramp(progress: float) -> float:
    """Han et al. 2020, ω(t) / λ = exp(−5 (1 − t)²): the weight of the consistency; beyond 1 it stays at 1."""
    return math.exp(-5 * (1 - min(progress, 1.0)) ** 2)
