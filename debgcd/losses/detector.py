"""Eq. 4–7: M one-vs-all detectors of novelty in a feature space of their own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

# Channel 0 of a detector's two scores says "in" (o⁺: this known class), channel 1 "out" (o⁻).


def one_vs_all_labelled(logits: Tensor, y: Tensor) -> Tensor:
    """Eq. 4: pull the own detector to "in", push the hardest other one to "out".

    logits: (N, M, 2) scores of M binary detectors; y: (N,) in 0..M-1.
    """
    _check(logits)
    if len(y) != len(logits):
        raise ValueError(f"y has {len(y)} labels for logits of {len(logits)} rows")
    if not len(y):
        return logits.sum() * 0.0  # no labelled image here: zero, but the graph stays alive
    log_in, log_out = logits.log_softmax(-1).unbind(-1)
    own = F.one_hot(y, logits.shape[1]).bool()
    hardest = log_out.masked_fill(own, 0.0).amin(1)  # log-probabilities are <= 0, so 0 never wins unless alone
    return -(log_in.gather(1, y[:, None])[:, 0] + hardest).mean()


def one_vs_all_entropy(logits: Tensor) -> Tensor:
    """Eq. 5: every detector should be sure of an unlabelled image, one way or the other.

    logits: (N, M, 2); sum over the M detectors, mean over the N rows.
    """
    _check(logits)
    if not len(logits):
        return logits.sum() * 0.0
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum((1, 2)).mean()


def novelty(logits: Tensor) -> Tensor:
    """Eq. 7, s: how strongly the detector that claims the image most still says "out".

    logits: (N, M, 2) -> (N,) in 0..1; near 1 means that no known class wants it.
    """
    _check(logits)
    return logits.softmax(-1)[..., 1].amin(1)  # o⁻ = 1 − o⁺, so the largest "in" has the smallest "out"


def one_vs_all_unlabelled(logits: Tensor) -> Tensor:
    """Preset `small` only: an unlabelled image is more likely new than a labelled one, so claim it a little less.

    logits: (N, M, 2) of unlabelled rows. Mean of -log s: the detector that claims an image most is pushed to "out".
    Against Eq. 4, which pulls labelled images "in", this is positive-unlabelled learning. Both are means over their rows:
    if a class is labelled as often as the other known ones, and a share r of the unlabelled images is known, the two alone
    balance at s = r / (1 + r) for its images, below 1/2, and near 1 for new ones. A class of which a much smaller part is
    labelled than of the others is taken for new.
    """
    _check(logits)
    if not len(logits):
        return logits.sum() * 0.0
    return -logits.log_softmax(-1)[..., 1].amin(1).mean()


def one_vs_all_consistency(logits: Tensor) -> Tensor:
    """Preset `released` only: the detectors should say the same of both views of an unlabelled image.

    logits: (2N, M, 2); rows i and i+N are two views. Mean over images of the summed squared difference.
    """
    _check(logits)
    if len(logits) % 2:
        raise ValueError(f"logits must hold two views of each image, but have an odd number of rows: {len(logits)}")
    if not len(logits):
        return logits.sum() * 0.0
    first, second = logits.softmax(-1).chunk(2)
    return (first - second).square().sum((1, 2)).mean()


def _check(logits: Tensor) -> None:
    if logits.ndim != 3 or logits.shape[-1] != 2:
        raise ValueError(f"logits must have shape (N, M, 2): two scores for each detector, not {tuple(logits.shape)}")
