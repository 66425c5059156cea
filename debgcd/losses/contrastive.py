"""Contrastive losses on a similarity of rows: L_rep (Vaze et al. 2022, kept by SimGCD and DebGCD) and those of other methods.

A similarity is any matrix in which a larger entry means more alike: cosines (z @ z.T of unit rows), `nearness`, cosines to
a teacher's rows or to centres. Each function divides it by its temperature. In a similarity (2B, 2B), rows and columns i and
i+B are two views of one image, and no row is its own candidate.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

__all__ = [
    "centre_contrast",
    "contrast",
    "contrastive_among",
    "cross_contrastive",
    "cross_nce",
    "info_nce",
    "info_nce_within",
    "near_contrastive",
    "nearness",
    "neighbour_contrast",
    "smoothed_nce",
    "supervised_contrastive",
    "supervised_contrastive_within",
]


def contrast(similarity: Tensor, positive: Tensor, among: Tensor) -> Tensor:
    """For each row, minus the mean over its positives of the logarithm of their share among the candidates: (N, C) -> (N,).

    similarity: scaled; positive, among: bool, a positive is a candidate too. 0 for a row without positives.
    """
    among = among | ~among.any(1, keepdim=True)  # a row without candidates would be nan, and so would its gradient
    log_p = similarity.masked_fill(~among, -torch.inf).log_softmax(1)
    return -log_p.masked_fill(~positive, 0.0).sum(1) / positive.sum(1).clamp_min(1)


# Similarities


def nearness(z: Tensor, relative: bool = False) -> Tensor:
    """Minus the distance of all pairs of rows: (N, d) -> (N, N).

    relative: for codes, divided by the sum of a row's distances; as in the public code, that of the other row of a pair.
    """
    distance = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")  # exact where two rows are near
    return -distance / (distance.sum(1) + 1e-10) if relative else -distance


def _cosines(z: Tensor) -> Tensor:
    """Of all pairs of unit rows: (2B, d) -> (2B, 2B)."""
    if len(z) % 2:
        raise ValueError(f"z must hold two views of each image, but it has an odd number of rows: {len(z)}")
    return z @ z.T


# Each view finds the other view of its image


def info_nce(z: Tensor, temperature: float = 1.0) -> Tensor:
    """L_rep, unlabelled part: each view must find the other view of its image among all other rows.

    z: (2B, d), unit rows; i and i+B are two views of one image.
    """
    return smoothed_nce(_cosines(z), 0.0, temperature)


def cross_nce(z: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """InfoNCE against a teacher: a view finds the teacher's other view of its image among all of the teacher's others.

    z, teacher: (2B, d), unit rows, i and i+B are two views; the teacher's row of the same view is no candidate.
    """
    return smoothed_nce(z @ teacher.T, 0.0, temperature)


def smoothed_nce(similarity: Tensor, smoothing: float, temperature: float = 1.0) -> Tensor:
    """InfoNCE on any similarity; smoothed, it is the unlabelled part of L_C_in of Rastegar et al. 2023.

    similarity: (2B, 2B). A share `smoothing` of the target is spread over all 2B − 1 other rows; with 1 it says only that no
    row stands out.
    """
    _require_two_views(similarity)
    rows = len(similarity)
    if not rows:
        return similarity.sum() * 0.0
    scaled, others = similarity / temperature, _others(similarity)
    index = torch.arange(rows, device=similarity.device)
    other_view = index.roll(rows // 2)
    if not smoothing:
        return cross_entropy(scaled.masked_fill(~others, -torch.inf), other_view)
    own, spread = contrast(scaled, other_view[:, None] == index, others), contrast(scaled, others, others)
    return ((1 - smoothing) * own + smoothing * spread).mean()


# Each row finds the rows of its class


def supervised_contrastive(z: Tensor, y: Tensor, temperature: float = 0.07) -> Tensor:
    """L_rep, labelled part: every row is pulled to all rows of its class, its own other view among them.

    z: (2B, d), unit rows of labelled images; y: (B,). Mean over anchors of the mean over their positives.
    """
    return near_contrastive(_cosines(z), y, temperature)


def cross_contrastive(z: Tensor, teacher: Tensor, y: Tensor, temperature: float = 0.07) -> Tensor:
    """Supervised contrast against a teacher: (2L, d) each, y (L,); a row's positives are the teacher's other rows of its class."""
    return near_contrastive(z @ teacher.T, y, temperature)


def near_contrastive(similarity: Tensor, y: Tensor, temperature: float = 0.07) -> Tensor:
    """Supervised contrast on any similarity; with `nearness`, the labelled part of L_C_in of Rastegar et al. 2023.

    similarity: (2B, 2B); y: (B,) labels or pseudo-labels.
    """
    _require_two_views(similarity, y=y)
    if not len(y):
        return similarity.sum() * 0.0
    others = _others(similarity)
    return contrast(similarity / temperature, _same(y) & others, others).mean()


def contrastive_among(similarity: Tensor, y: Tensor, chosen: Tensor, temperature: float = 0.7) -> Tensor:
    """Sun & Li 2023, L_n: supervised contrast with pseudo-labels among the chosen images alone; 0 where there are none.

    similarity: (2B, 2B); y: (B,) pseudo-labels; chosen: (B,) bool, e.g. from `looks_new`.
    """
    _require_two_views(similarity, y=y, chosen=chosen)
    if not len(y):
        return similarity.sum() * 0.0
    rows = chosen.repeat(2)
    among = (rows[:, None] & rows).fill_diagonal_(False)
    values = contrast(similarity / temperature, among & _same(y), among)
    return values.sum() / rows.sum().clamp_min(1)  # rows that are not chosen have no positives: 0


# The same within parts of the data that look alike


def info_nce_within(similarity: Tensor, part: Tensor, parts: int, temperature: float = 1.0) -> Tensor:
    """Fei et al. 2022, L_e, unlabelled part: InfoNCE among the rows of each part alone; mean over the parts that have rows.

    similarity: (2B, 2B); part: (B,) in 0..parts-1.
    """
    images = torch.arange(len(part), device=part.device)
    return supervised_contrastive_within(similarity, images, part, parts, temperature)


def supervised_contrastive_within(
    similarity: Tensor, y: Tensor, part: Tensor, parts: int, temperature: float = 0.07
) -> Tensor:
    """Fei et al. 2022, L_e, labelled part: supervised contrast among the rows of each part alone; mean over the parts that have rows.

    similarity: (2B, 2B); y: (B,); part: (B,) in 0..parts-1.
    """
    _require_two_views(similarity, y=y, part=part)
    if not len(part):
        return similarity.sum() * 0.0
    among = _same(part).fill_diagonal_(False)
    rows = contrast(similarity / temperature, among & _same(y), among)
    both = part.repeat(2)
    count = torch.zeros(parts, dtype=rows.dtype, device=rows.device).index_add_(0, both, torch.ones_like(rows))
    means = torch.zeros_like(count).index_add(0, both, rows) / count.clamp_min(1)
    return means.sum() / (count > 0).sum()


# Each row finds what is remembered


def centre_contrast(similarity: Tensor, used: Tensor, own: Tensor, temperature: float | Tensor) -> Tensor:
    """Each row finds its own centre among those in use; mean over the rows that have one.

    similarity: (N, C) to the centres; used: how many of them, from the first; own: (N,), -1 where there is none;
    temperature: one for all, or one of each centre (C,). Pu et al. 2023, L_cluster, and Zhao et al. 2023, L_proto.
    """
    if own.shape != similarity.shape[:1]:
        raise ValueError(f"own has shape {tuple(own.shape)} for {len(similarity)} rows")
    if not len(own):
        return similarity.sum() * 0.0
    beyond = torch.arange(similarity.shape[1], device=similarity.device) >= used
    logits = (similarity / temperature).masked_fill(beyond & (used > 0), -torch.inf)
    counts = own >= 0
    rows = cross_entropy(logits, own.clamp_min(0), reduction="none")
    return torch.where(counts, rows, 0.0).sum() / counts.sum().clamp_min(1)


def neighbour_contrast(
    own: Tensor, similarity: Tensor, positive: Tensor, candidate: Tensor, temperature: float = 0.07
) -> Tensor:
    """Zhang et al. 2023, Eq. 9: the teacher's view of the image and its agreed neighbours, among these and some negatives.

    own: (Q,) similarity to the teacher's view; similarity: (Q, C) to remembered rows; positive, candidate: (Q, C) bool, a
    positive is always a candidate. Mean over rows.
    """
    if not len(own):
        return (own.sum() + similarity.sum()) * 0.0
    first = torch.ones_like(positive[:, :1])
    positive = torch.cat([first, positive], 1)
    scaled = torch.cat([own[:, None], similarity], 1) / temperature
    return contrast(scaled, positive, torch.cat([first, candidate], 1) | positive).mean()


def _others(similarity: Tensor) -> Tensor:
    """All pairs of rows but each with itself: (N, N) bool."""
    return ~torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)


def _same(y: Tensor) -> Tensor:
    """Whether two rows have the same label, for (B,) labels of two views each: (2B, 2B) bool."""
    label = y.repeat(2)
    return label[:, None] == label


def _require_two_views(similarity: Tensor, **per_image: Tensor) -> None:
    """Refuse a similarity that is not (2B, 2B), and what is not (B,)."""
    rows = len(similarity)
    if similarity.shape != (rows, rows) or rows % 2:
        raise ValueError(f"similarity must have shape (2B, 2B): two views of each image, not {tuple(similarity.shape)}")
    for name, value in per_image.items():
        if value.shape != (rows // 2,):
            raise ValueError(f"{name} has shape {tuple(value.shape)} for {rows // 2} images with two views each")
