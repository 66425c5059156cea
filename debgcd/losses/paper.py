"""The paper's equations besides the contrasts: Eq. 1–2 the classifier, Eq. 4–7 the detector, Eq. 9–11 the hard labels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "certainty",
    "consistent",
    "debiased_unlabelled",
    "hard_labels",
    "learn_hard_labels",
    "mean_entropy",
    "novelty",
    "on_side",
    "one_vs_all_consistency",
    "one_vs_all_entropy",
    "one_vs_all_labelled",
    "one_vs_all_unlabelled",
    "self_distillation",
    "size_divergence",
    "supervised",
]

# Eq. 1–2 and L_cls^s: the parametric classifier of SimGCD


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
    log_mean = _log_mean_prediction(logits, temperature)
    return -(log_mean.exp() * log_mean).sum()


def size_divergence(logits: Tensor, share: Tensor, temperature: float = 0.1) -> Tensor:
    """In place of -H(p̄) in Eq. 2 where categories differ in size: KL(p̄ ‖ share).

    logits: (N, K) cosines; share: (K,) expected sizes, positive, sum 1. With equal shares it is log K - H(p̄).
    """
    if share.shape != logits.shape[1:]:
        raise ValueError(f"share has shape {tuple(share.shape)} for logits of {logits.shape[1]} categories")
    if not len(logits):
        return logits.sum() * 0.0
    log_mean = _log_mean_prediction(logits, temperature)
    return (log_mean.exp() * (log_mean - share.log())).sum()


def _log_mean_prediction(logits: Tensor, temperature: float) -> Tensor:
    """log p̄ as logsumexp - log N: a category that nobody predicts gives 0 · (finite), never 0 · -inf."""
    return (logits / temperature).log_softmax(1).logsumexp(0) - math.log(len(logits))


def supervised(logits: Tensor, y: Tensor, temperature: float = 0.1) -> Tensor:
    """L_cls^s and Eq. 12: cross-entropy with the true labels.

    logits: (N, K) cosines; y: (N,).
    """
    if len(y) != len(logits):
        raise ValueError(f"y has {len(y)} labels for logits of {len(logits)} rows")
    if not len(y):
        return logits.sum() * 0.0
    return F.cross_entropy(logits / temperature, y)


# Eq. 4–7: M one-vs-all detectors of novelty in a feature space of their own.
#
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


# Eq. 9–11: hard labels for the debiased classifier, paced by the detector's certainty


def certainty(s: Tensor) -> Tensor:
    """Eq. 10, d: 0 for an image that may be known or new, 1 for one that is clearly either."""
    return (2 * s - 1).abs()


def consistent(category: Tensor, s: Tensor, known: int) -> Tensor:
    """Eq. 9, F: do classifier and detector agree on whether the image is known or new?

    category: (N,) the classifier's choice, new if >= known; s: (N,) novelty. "ŷ ∈ Y_u" is read as "ŷ is a new class".
    """
    return ((category >= known) & (s > 0.5)) | ((category < known) & (s < 0.5))


def on_side(logits: Tensor, s: Tensor, known: int) -> Tensor:
    """Preset `small` only: logits that mask the categories the detector rejects.

    logits: (N, K) cosines; s: (N,) novelty. The detector decides whether an image is new, the classifier which of the
    categories on that side it is. So F holds wherever there is such a side, and a new class that the classifier took for a
    known one is taught.
    """
    is_new = torch.arange(logits.shape[1], device=logits.device) >= known
    return logits - 3 * (is_new != (s > 0.5)[:, None]).to(logits.dtype)  # two cosines differ by 2 at most


def hard_labels(
    logits: Tensor,
    s: Tensor | None,
    known: int,
    threshold: float | Tensor,
    temperature: float = 0.1,
    *,
    use_consistency: bool = True,
) -> Tensor:
    """Eq. 11, first two factors: the choice of each row that passes the threshold and F as its hard label, else -1: -> (N,).

    logits: (N, K) cosines; s: (N,) novelty, or None without F; threshold: a number or (N,).
    """
    choice = logits.argmax(1)
    passed = (logits / temperature).softmax(1).amax(1) > threshold
    if s is not None and use_consistency:
        passed = passed & consistent(choice, s, known)
    return torch.where(passed, choice, -1)


def learn_hard_labels(
    debiased_logits: Tensor, hard_label: Tensor, weight: Tensor | None = None, temperature: float = 0.1
) -> Tensor:
    """Eq. 11 for given hard labels: their cross-entropy, weighted and divided by all N rows, not by the labelled ones.

    debiased_logits: (N, K) cosines; hard_label: (N,), -1 for rows that do not count; weight: (N,) certainty, or None for 1.
    """
    if not len(hard_label):
        return debiased_logits.sum() * 0.0
    counts = (hard_label >= 0).to(debiased_logits.dtype)
    entropy = F.cross_entropy(debiased_logits / temperature, hard_label.clamp_min(0), reduction="none")
    return ((counts if weight is None else counts * weight) * entropy).mean()


def debiased_unlabelled(
    debiased_logits: Tensor,
    logits: Tensor,
    s: Tensor | None,
    known: int,
    threshold: float | Tensor,
    temperature: float = 0.1,
    *,
    use_certainty: bool = True,
    use_consistency: bool = True,
) -> Tensor:
    """Eq. 11: the debiased classifier learns the GCD classifier's confident choices as hard labels.

    Both logits: (N, K) cosines of the same rows; s: (N,) novelty, or None when both switches are off. The choice, its
    confidence and s are taken as facts: no gradient flows into them. Divided by all N rows, not by the accepted ones.
    """
    if debiased_logits.shape != logits.shape:
        raise ValueError(f"debiased_logits have shape {tuple(debiased_logits.shape)}, logits {tuple(logits.shape)}")
    if s is None and (use_certainty or use_consistency):
        raise ValueError("s must be given unless use_certainty and use_consistency are both off")
    for name, value in (("s", s), ("threshold", threshold)):
        if isinstance(value, Tensor) and value.ndim and value.shape != logits.shape[:1]:
            raise ValueError(f"{name} has shape {tuple(value.shape)} for logits of {len(logits)} rows")
    labels = hard_labels(logits.detach(), s, known, threshold, temperature, use_consistency=use_consistency)
    weight = certainty(s.detach()) if s is not None and use_certainty else None
    return learn_hard_labels(debiased_logits, labels, weight, temperature)
