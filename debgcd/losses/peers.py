"""What the methods that the paper is compared with compute besides contrasts, a section per paper; `docs/methods.md` maps it.

Their contrastive losses are in `contrastive.py`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from debgcd.config import schedules

__all__ = [
    "agreed",
    "categories_of_codes",
    "code_condition",
    "code_length",
    "conditional_entropy",
    "consensus",
    "density_temperatures",
    "divergence",
    "energy",
    "follow",
    "guided_gradient",
    "known_subspace",
    "looks_new",
    "margin_supervised",
    "mask_condition",
    "momentum",
    "pairwise",
    "pairwise_agreement",
    "partners",
    "ramp",
    "same_ranks",
    "sinkhorn",
    "swapped",
    "swapped_targets",
    "teacher_distillation",
    "uncertainty",
    "view_consistency",
    "with_labels",
]

SMALLEST = 1e-7  # added to a probability before its logarithm, as in the public code of RankStats
LEAST_DENSITY = 0.01  # of the mean density of GPC's clusters


# RankStats (Han et al. 2020, AutoNovel): two images belong together if the same dimensions of their features stand out.


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
    return F.mse_loss(first, second)


def ramp(progress: float) -> float:
    """Han et al. 2020, ω(t) / λ = exp(−5 (1 − t)²): the weight of the consistency; beyond 1 it stays at 1."""
    return math.exp(-5 * (1 - min(progress, 1.0)) ** 2)


# UNO (Fini et al. 2021) with several heads: each view learns the balanced assignment of the other one.
#
# In the original, Sinkhorn sees the new categories alone. Here it sees all K, because unlabelled images may be of a known
# class: this is UNO+ of Vaze et al. 2022, whose code is not public. Over-clustering heads use the same functions; they have
# more columns, of which the first M are still the known classes.


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
    views, then second views; free: (2F,) the other rows in the same order; y: (L,). Returns (H, 2B, K): row i is the target of
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


# ORCA (Cao et al. 2022): a margin that holds the known classes back, and pairs of images that should agree.
#
# Its third term, KL(p̄ ‖ uniform), is log K − `mean_entropy`.


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


# OpenCon (Sun & Li 2023): which images look new, and prototypes that follow the features.


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
        moved = F.normalize(prototypes[own].lerp(z[i : i + 1], weight[i : i + 1]), dim=1)
        prototypes.index_copy_(0, own, moved)
    return prototypes


# PromptCAL (Zhang et al. 2023): neighbours that a graph of consensus agrees on are positives of each other.


def consensus(z: Tensor, neighbours: int, valid: Tensor) -> Tensor:
    """Zhang et al. 2023, Eq. 5: how often two rows are in one neighbourhood, as shares of each row: (N, N).

    z: (N, d), unit rows; valid: (N,) bool, rows that are there. A row's neighbourhood are its nearest other rows and itself,
    but a row in its own neighbourhood makes no pair with itself.
    """
    count = min(neighbours, len(z) - 1)
    none = torch.eye(len(z), dtype=torch.bool, device=z.device) | ~valid
    nearest = (z @ z.T).masked_fill(none, -torch.inf).topk(count, dim=1)
    found = nearest.values.isfinite() & valid[:, None]
    links = torch.zeros_like(none, dtype=z.dtype).scatter_(1, nearest.indices, found.to(z.dtype))
    pairs = (links.T @ links).fill_diagonal_(0.0) + links + links.T
    return pairs / (pairs.sum(1, keepdim=True) + 1e-10)


def agreed(z: Tensor, queries: int, neighbours: int, quantile: float, valid: Tensor) -> Tensor:
    """Zhang et al. 2023, Eq. 6–7: positives of the first rows among the others, after one step of diffusion: (Q, N − Q) bool.

    As in the public code: P P Pᵀ + I; of its entries above the mean of those that are not zero, the largest 1 − quantile.
    """
    p = consensus(z, neighbours, valid)
    spread = p @ p @ p.T + torch.diag(valid.to(p.dtype))  # rows that are not there must not count in mean and quantile
    there = spread > 0
    mean = spread.sum() / there.sum()
    above = spread > mean
    ordered = spread.masked_fill(~above, -torch.inf).flatten().sort().values
    place = ordered.numel() - above.sum() + quantile * (above.sum() - 1).clamp_min(0)  # as numpy: linear between two
    low = place.floor().long().clamp_max(ordered.numel() - 1)
    high = (low + 1).clamp_max(ordered.numel() - 1)
    below, above_it = ordered.index_select(0, torch.stack([low, high]))  # ordered[low] would wait for the device
    limit = below.lerp(above_it, (place - low).to(ordered.dtype))
    return (spread > limit)[:queries, queries:] & valid[queries:]


def with_labels(positive: Tensor, y: Tensor, others: Tensor) -> Tensor:
    """Zhang et al. 2023: labels overrule the graph: two of one class are positives, two of different classes are not.

    positive: (Q, C) bool; y: (Q,), others: (C,) labels, negative where there is none.
    """
    both = (y[:, None] >= 0) & (others >= 0)
    return torch.where(both, y[:, None] == others, positive)


# GPC (Zhao et al. 2023): clusters that are denser have lower temperatures.


def density_temperatures(points: Tensor, own: Tensor, centres: Tensor, mean: float = 1.0) -> Tensor:
    """Zhao et al. 2023, φ: a temperature of each cluster, lower the denser it is, with this mean: (C,).

    points: (N, d); own: (N,) in 0..C-1. The mean distance to the centre over log(n + 10); a cluster of one point or none
    has the largest; clipped to the 10th and 90th percentile. Clusters of equal points have a hundredth of the mean, not 0.
    """
    distance = (points - centres[own]).norm(dim=1)
    count = torch.bincount(own, minlength=len(centres))
    sums = torch.zeros(len(centres), dtype=distance.dtype, device=distance.device).index_add_(0, own, distance)
    density = sums / count.clamp_min(1) / (count.to(sums.dtype) + 10).log()
    density = torch.where(count > 1, density, torch.where(count > 1, density, 0.0).amax())
    limits = density.quantile(torch.tensor([0.1, 0.9], dtype=density.dtype, device=density.device))
    density = density.clamp(limits[0].clamp_min(LEAST_DENSITY * density.mean()), limits[1])
    return mean * density / density.mean() if float(density.mean()) > 0 else torch.full_like(density, mean)


# μGCD (Vaze et al. 2023): a student learns from the moving average of its own weights.
#
# No training code is public, and the formulas here come from a summary of the paper, arXiv 2311.17055.


def teacher_distillation(
    student_logits: Tensor, teacher_logits: Tensor, teacher_temp: float, student_temp: float = 0.1
) -> Tensor:
    """Vaze et al. 2023, L_u, first term: the student learns the teacher's sharper prediction of the same image.

    Both logits: (N, K) cosines; row i of the student saw a strong augmentation of the image of which the teacher saw a weak
    one. The teacher, a moving average, gets no gradient. Mean over rows.
    """
    if student_logits.ndim != 2:
        raise ValueError(f"student_logits must have shape (N, K), not {tuple(student_logits.shape)}")
    if teacher_logits.shape != student_logits.shape:
        raise ValueError(
            f"teacher_logits have shape {tuple(teacher_logits.shape)}, student_logits {tuple(student_logits.shape)}"
        )
    if not len(student_logits):
        return student_logits.sum() * 0.0
    teacher = (teacher_logits.detach() / teacher_temp).softmax(1)
    return -(teacher * (student_logits / student_temp).log_softmax(1)).sum(1).mean()


def momentum(progress: float, base: float = 0.7, end: float = 0.999) -> float:
    """Vaze et al. 2023, ω(t) = ω_T − (1 − ω_base)(cos(πt/T) + 1)/2: the share of its own weights that the teacher keeps.

    progress: t/T from 0 to 1; beyond 1 it stays at end. This form, BYOL's with ω_T for its 1, starts at base − (1 − end)
    rather than at base: at 0.699 for the defaults.
    """
    if not (base <= 1 and end <= 1 and base + end >= 1):
        raise ValueError(f"base and end must be at most 1 and sum to 1 or more, not {base} and {end}")
    return schedules.cosine(base + end - 1, end, progress)


# InfoSieve (Rastegar et al. 2023): a code of bits for each image, as short as its category allows.


def code_condition(code: Tensor) -> Tensor:
    """Rastegar et al. 2023, L_code_cond: every bit is −1 or 1, and each value as often: mean of 1 − c² + (mean of c)².

    code: (N, bits) in −1..1.
    """
    return (1 - code.square() + code.mean(0).square()).mean() if len(code) else code.sum() * 0.0


def mask_condition(mask: Tensor) -> Tensor:
    """Rastegar et al. 2023, L_mask_cond: a bit counts or does not: mean of (m (1 − m))². mask: (N, bits) in 0..1."""
    return (mask * (1 - mask)).square().mean() if len(mask) else mask.sum() * 0.0


def code_length(mask: Tensor, weight: Tensor) -> Tensor:
    """Rastegar et al. 2023, L_length: the sum over the rows of the share of bits that count, later bits weighing more.

    mask: (N, bits) in 0..1; weight: (bits,) of the bits in the code, falling. A sum over rows, as in the public code.
    """
    return (mask / weight).sum() / (1 / weight).sum()


def categories_of_codes(logits: Tensor, y: Tensor) -> Tensor:
    """Rastegar et al. 2023, L_cat: binary cross-entropy of each known class, mean over rows and classes.

    logits: (N, M) from the truncated codes of labelled rows; y: (N,).
    """
    if not logits.numel():
        return logits.sum() * 0.0
    return F.binary_cross_entropy_with_logits(logits, F.one_hot(y, logits.shape[1]).to(logits.dtype))


# EAGC (CVPR 2026): a change of the features' gradient, for any classifier.


def known_subspace(feature: Tensor, eta: float = 2.0) -> Tensor:
    """EAGC (CVPR 2026), S = R (R + η⁻² I)⁻¹ with R = ZᵀZ / N: a soft projection on where known classes lie: (N, d) -> (d, d)."""
    z = feature.double()
    r = z.T @ z / max(1, len(z))
    shifted = r + torch.eye(len(r), dtype=r.dtype, device=r.device) / eta**2
    return torch.linalg.solve(shifted, r).to(feature.dtype)  # both are functions of R, so their order is free


def energy(feature: Tensor, subspace: Tensor) -> Tensor:
    """EAGC: zᵀ S z / ‖z‖², the share of a feature within the known classes' subspace: (N, d), (d, d) -> (N,)."""
    return ((feature @ subspace) * feature).sum(1) / feature.square().sum(1).clamp_min(1e-12)


def guided_gradient(
    gradient: Tensor,
    feature: Tensor,
    labelled: Tensor,
    free: Tensor,
    reference: Tensor,
    subspace: Tensor,
    mean_energy: Tensor,
    align: float,
    project: float,
) -> Tensor:
    """EAGC: what reaches the tail instead of the gradient g of the features: (N, d) -> (N, d).

    Labelled rows: g + align (z − ẑ) / (L d), with ẑ: (L, d); as of half the mean square of the difference. Unlabelled ones:
    g − project · τ g S with τ = 1 − energy / its mean over labelled images, in 0..1: images that look new keep out of S.
    """
    changed = gradient
    if align and len(labelled):
        difference = feature[labelled] - reference
        changed = changed.index_add(0, labelled, difference.to(gradient.dtype), alpha=align / difference.numel())
    if project and len(free):
        strength = (1 - energy(feature[free], subspace) / mean_energy).clamp(0, 1)
        inside = project * strength[:, None] * (gradient[free] @ subspace)
        changed = changed.index_add(0, free, inside.to(gradient.dtype), alpha=-1)
    return changed


# PIM (Chiaroni et al. 2023): a linear head on fixed features, by information maximisation.


def conditional_entropy(logits: Tensor, temperature: float = 0.1) -> Tensor:
    """Chiaroni et al. 2023, H(Y|X): the mean entropy of the predictions, small where each image is sure of its category.

    logits: (N, K); mean over rows.
    """
    if not len(logits):
        return logits.sum() * 0.0
    log_p = (logits / temperature).log_softmax(1)
    return -(log_p.exp() * log_p).sum(1).mean()
