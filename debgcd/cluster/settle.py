"""An answer from features alone, in seconds: whitened points -> mean shift -> clusters -> a linear head.

The *frozen answer* is this procedure on the features of the untouched network. The *settled answer* is the same procedure on
tuned features. The linear head is PIM's (Chiaroni et al. 2023); the mean shift is that of CMS (Choi et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.cluster.kmeans import kmeans
from debgcd.cluster.prototypes import class_means, whitening
from debgcd.config.schema import option
from debgcd.data.sampler import stream_seed
from debgcd.model.heads import AXES
from debgcd.novelty.vote import principal_axes, voted

LLOYD = 20  # iterations that count how many images each category has
SMOOTHING = 1.0  # mean category's images that are added to each count, because counts are rough
LR, DECAY, BETA1, BETA2 = 1e-3, 1e-2, 0.9, 0.999  # Adam, as published
WEIGHTS = (0.1, 0.2, 0.5, 1.0, 2.0)  # λ to choose from
HIDDEN = 0.2  # share of a class's labels that are hidden to learn how often the head is right
FEWEST_HIDDEN = 10  # in all; from fewer the confidence is left as it is
COOLEST = 10.0  # largest factor of the temperature
BLOCK = 2048  # points whose similarities to all others are in memory together

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SettleOptions:
    """How features become categories. The values were chosen on digits, CIFAR-10, Pets and CUB (docs/results.md)."""

    whiten: bool = option(True, "shorten the axes along which images of one class differ")
    rounds: int = option(5, "of mean shift before clusters are sought", 0, 100)
    neighbours: int = option(8, "of the mean shift, as in CMS", 1, 1000)
    guided: bool = option(True, "try new categories from clusters of the images that look new")
    sizes: Literal["estimated", "uniform"] = option("estimated", "of the categories; uniform harms a long tail")
    entropy_weight: float | None = option(0.5, "λ; null: the one with the best accuracy on labelled images", 0, 100)
    temperature: float = option(0.1, "of the head's softmax; published: 0.04", 1e-3, 100)
    steps: int = option(300, "of Adam on all images at once; published: 1000", 0, 10**6)
    calibrated: bool = option(True, "lower the confidence to how often the head is right about labels that were hidden")


@dataclass(frozen=True)
class Points:
    """The map from features to points: (feature - mean) @ directions, at unit length."""

    mean: Tensor  # (width,)
    directions: Tensor  # (width, d)

    def __call__(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, d), unit rows."""
        return normalize((feature - self.mean) @ self.directions, dim=1)


@dataclass(frozen=True)
class Answer:
    """A linear head on points, and the category that it gives each image it was fitted to."""

    points: Points
    weight: Tensor  # (K, d)
    category: Tensor  # (N,)
    share: Tensor  # (K,) of all images, as expected before the head was fitted
    temperature: float  # of the softmax that gives the confidence


def settle(
    feature: Tensor,
    label: Tensor,
    k: int,
    new: Tensor | None,
    options: SettleOptions,
    *,
    so_far: Tensor | None = None,
    unlearned: Tensor | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Answer:
    """Sort N images into K categories: feature (N, width), label (N,) in 0..M-1 or -1, new (N,) bool or None.

    new: the unlabelled images that look new. unlearned: (N,) bool, labelled images that did not help to tune the features; None: all.
    Some of them are hidden from a second head, whose confidence about them is compared with how often it is right.

    so_far: (N,) the category, known or new, that an image was in before, -1 for one that came since; then `new` are those of none of
    these categories. The head begins at these categories and at clusters of the images of none of them, if K allows it: what
    was found before is not sought again.
    """
    answer = _answer(feature, label, k, new, options, so_far, seed, on_progress)
    hidden = _to_hide(label, label >= 0 if unlearned is None else unlearned, seed)
    if not options.calibrated or int(hidden.sum()) < FEWEST_HIDDEN:
        return answer
    shown = label.masked_fill(hidden, -1)
    if so_far is not None:
        so_far = so_far.masked_fill(hidden, -1)
    elif new is not None:
        new = (shown < 0) & (voted(feature, shown) > 0.5)
    second = _answer(feature, shown, k, new, options, so_far, seed, None)
    logits = second.points(feature[hidden]) @ second.weight.T / options.temperature
    return replace(answer, temperature=options.temperature * cooling(logits, label[hidden]))


def cooling(logits: Tensor, label: Tensor) -> float:
    """The factor of the temperature, at least 1, at which the mean confidence is the share that is right: (N, K), (N,)."""
    # one image right and one wrong are added, because few images that are all right do not prove that all others are
    right = (int((logits.argmax(1) == label).sum()) + 1) / (len(label) + 2)
    low, high = 1.0, COOLEST
    for _ in range(30):
        factor = (low * high) ** 0.5
        too_sure = float((logits / factor).softmax(1).amax(1).mean()) > right
        low, high = (factor, high) if too_sure else (low, factor)
    return low


def _to_hide(label: Tensor, candidates: Tensor, seed: int) -> Tensor:
    """Some of the candidates of each class, and never the only label of a class: (N,) bool."""
    random = torch.rand(len(label), generator=torch.Generator().manual_seed(stream_seed(seed, "settle/hidden") % 2**63))
    hidden = torch.zeros_like(label, dtype=torch.bool)
    for c in label[label >= 0].unique().tolist():
        count = int((label == c).sum())
        rows = (candidates & (label == c)).nonzero()[:, 0]
        rows = rows[random.to(rows.device)[rows].argsort()]
        hidden[rows[: min(count - 1, max(1, round(HIDDEN * count)))]] = True
    return hidden


def _answer(
    feature: Tensor,
    label: Tensor,
    k: int,
    new: Tensor | None,
    options: SettleOptions,
    so_far: Tensor | None,
    seed: int,
    on_progress: Progress | None,
) -> Answer:
    """As `settle`, without calibration.

    With `new`, the head begins twice: with all images clustered together, and with new categories at clusters of these images
    alone, so that a new class next to a known one is not absorbed. The beginning whose head ends with more mutual information is
    kept; the labels and the truth have no say in it.
    """
    points = principal_points(feature, label, options.whiten)
    x = points(feature)
    # at most a quarter of a category, so that small ones do not run together
    neighbours = min(options.neighbours, max(2, round(len(x) / k / 4)))
    shifted = mean_shift(x, neighbours, options.rounds)
    known = int(label.max()) + 1
    if so_far is not None and _enough(new, k - int(so_far.max()) - 1):
        beginnings = [apart(shifted, so_far, k, new, seed)]
    else:
        beginnings = [joint(shifted, label, k, seed)]
        if k > known and _enough(new, k - known) and len(label[label >= 0].unique()) == known:
            beginnings.insert(0, apart(shifted, label, k, new, seed))
    weights = WEIGHTS if options.entropy_weight is None else (options.entropy_weight,)
    heads = []
    for begun in beginnings:
        share = x.new_full((k,), 1 / k)
        if options.sizes == "estimated":
            share = sizes(shifted, label, class_means(shifted, begun, k))
        for entropy_weight in weights:
            weight = fit_head(x, label, class_means(x, begun, k), share, entropy_weight, options)
            heads.append((weight, share))
            if on_progress is not None:
                on_progress(len(heads), len(beginnings) * len(weights))
    if options.entropy_weight is None:
        weight, share = max(heads, key=lambda head: int(((x @ head[0].T).argmax(1) == label).sum()))
    else:
        weight, share = max(heads, key=lambda head: information(x @ head[0].T, options.temperature))
    category = torch.where(label >= 0, label, (x @ weight.T).argmax(1))
    return Answer(points, weight, category, share, options.temperature)


def information(logits: Tensor, temperature: float) -> float:
    """The mutual information of images and categories that the head maximises: H(p̄) - mean H(p); logits (N, K)."""
    return float(losses.mean_entropy(logits, temperature) - losses.conditional_entropy(logits, temperature))


def principal_points(feature: Tensor, label: Tensor, whiten: bool = True) -> Points:
    """Principal axes of the features (N, width), whitened by the labelled images if that is wanted and possible."""
    mean, directions = principal_axes(feature, min(AXES, *feature.shape))
    matrix = whitening((feature - mean) @ directions, label) if whiten else None
    return Points(mean, directions if matrix is None else (directions.double() @ matrix).to(feature.dtype))


def _enough(new: Tensor | None, categories: int) -> bool:
    """Whether so many categories can begin at these images (N,)."""
    return categories == 0 or (new is not None and int(new.sum()) >= categories > 0)


def apart(shifted: Tensor, label: Tensor, k: int, new: Tensor | None, seed: int) -> Tensor:
    """Classes at their labelled images, the others of K at clusters of those that look new: (N,), -1 for other images."""
    classes = int(label.max()) + 1
    if k == classes or new is None:
        return label
    clusters = kmeans(shifted[new], torch.full_like(label[new], -1), k - classes, seed=seed).assignment
    return label.masked_scatter(new, classes + clusters)


def joint(shifted: Tensor, label: Tensor, k: int, seed: int) -> Tensor:
    """All images clustered together, labelled ones in their class: (N,)."""
    return kmeans(shifted, label, k, seed=seed).assignment


def mean_shift(x: Tensor, neighbours: int, rounds: int) -> Tensor:
    """Move each point halfway to the mean of its nearest others, and back to unit length, some rounds: (N, d) -> (N, d)."""
    count = min(neighbours, len(x) - 1)
    for _ in range(rounds if count > 0 else 0):
        moved = []
        for i, part in enumerate(x.split(BLOCK)):
            similarity = part @ x.T
            rows = torch.arange(len(part), device=x.device)
            similarity[rows, i * BLOCK + rows] = -torch.inf
            moved.append(part + x[similarity.topk(count, dim=1).indices].mean(1))
        x = normalize(torch.cat(moved), dim=1)
    return x


def sizes(x: Tensor, label: Tensor, centres: Tensor) -> Tensor:
    """The share of each category after a few iterations of k-means from these centres (K, d): (K,), positive, sum 1."""
    for _ in range(LLOYD):
        category = torch.where(label >= 0, label, (x @ centres.T).argmax(1))
        count = torch.bincount(category, minlength=len(centres))
        moved = torch.where((count > 0)[:, None], class_means(x, category, len(centres)), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    share = count.to(x.dtype) + SMOOTHING * len(x) / len(centres)
    return share / share.sum()


def fit_head(
    x: Tensor,
    label: Tensor,
    weight: Tensor,
    share: Tensor,
    entropy_weight: float,
    options: SettleOptions,
) -> Tensor:
    """PIM's linear head, trained from `weight` (K, d): sure of unlabelled images, right on labelled ones, sizes near `share`.

    λ·mean H(p) over unlabelled images + KL(p̄ ‖ share) over all images + cross-entropy of labelled ones; x (N, d), label (N,),
    share (K,).
    """
    weight, labelled = weight.detach().clone(), label >= 0
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, options.steps + 1):
        with torch.enable_grad():
            logits = x @ weight.requires_grad_().T
            loss = losses.size_divergence(logits, share, options.temperature)
            loss = loss + entropy_weight * losses.conditional_entropy(logits[~labelled], options.temperature)
            loss = loss + losses.supervised(logits[labelled], label[labelled], options.temperature)
            (gradient,) = torch.autograd.grad(loss, weight)
        weight = weight.detach()
        # Adam; torch's own would import its compiler, which takes longer than all these steps
        gradient = gradient + DECAY * weight
        mean.lerp_(gradient, 1 - BETA1)
        square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        weight = weight - LR / (1 - BETA1**step) * mean / ((square / (1 - BETA2**step)).sqrt() + 1e-8)
    return weight
