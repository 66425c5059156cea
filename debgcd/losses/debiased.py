"""Eq. 9–11: hard labels for the debiased classifier, paced by the detector's certainty."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def certainty(s: Tensor) -> Tensor:
    """Eq. 10, d: 0 for an image that may be known or new, 1 for one that is clearly either."""
    return (2 * s - 1).abs()


def consistent(category: Tensor, s: Tensor, known: int) -> Tensor:
    """Eq. 9, F: do classifier and detector agree on whether the image is known or new?

    category: (N,) the classifier's choice, new if >= known; s: (N,) novelty. "ŷ ∈ Y_u" is read as "ŷ is a new class".
    """
    return ((category >= known) & (s > 0.5)) | ((category < known) & (s < 0.5))


def on_side(logits: Tensor, s: Tensor, known: int) -> Tensor:
    """Preset `small` only: logits in which every category on the side that the detector speaks against comes last.

    logits: (N, K) cosines; s: (N,) novelty. The detector decides whether an image is new, the classifier which of the
    categories on that side it is. So F holds wherever there is such a side, and a new class that the classifier took for a
    known one is taught.
    """
    is_new = torch.arange(logits.shape[1], device=logits.device) >= known
    return logits - 3 * (is_new != (s > 0.5)[:, None]).to(logits.dtype)  # two cosines differ by 2 at most


def accepted(
    logits: Tensor,
    s: Tensor | None,
    known: int,
    threshold: float | Tensor,
    temperature: float = 0.1,
    *,
    use_consistency: bool = True,
) -> Tensor:
    """Eq. 11, first two factors: which rows give a hard label, because they pass the threshold and F.

    logits: (N, K) cosines; s: (N,) novelty, or None without F; threshold: a number or (N,). Returns (N,) bool.
    """
    passed = (logits / temperature).softmax(1).amax(1) > threshold
    return passed & consistent(logits.argmax(1), s, known) if s is not None and use_consistency else passed


def hard_labels(
    logits: Tensor,
    s: Tensor | None,
    known: int,
    threshold: float | Tensor,
    temperature: float = 0.1,
    *,
    use_consistency: bool = True,
) -> Tensor:
    """Eq. 11: the choice of each accepted row as its hard label, -1 for the others; arguments as for `accepted`: -> (N,)."""
    rows = accepted(logits, s, known, threshold, temperature, use_consistency=use_consistency)
    return torch.where(rows, logits.argmax(1), -1)


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
