"""Three ways to estimate the number of categories from features and some labels; truth is never used."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster.consensus import LEVEL, believe, steps
from debgcd.cluster.kmeans import kmeans
from debgcd.cluster.prototypes import principal
from debgcd.cluster.ward import ward
from debgcd.data.sampler import stream_seed
from debgcd.errors import DataError, UsageError
from debgcd.model.heads import AXES

Way = Literal["consensus", "ward", "brent"]
Progress = Callable[[int, int], None]
BOOTSTRAPS = 200  # of the known classes, for the interval of the accuracy's peak
FITS = 16  # about as many as a bounded search needs, for the progress bar
CUTS = 10  # progress steps for scoring all cuts of a tree

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """The number of categories, known ones included, with a 90 % interval.

    curves: per way that ran, the score of each K that it evaluated (`ward`, `brent`: accuracy on the labelled images;
    `consensus`: likelihood, scaled to a maximum of 1); answers: the K of each of these ways alone.
    """

    k: int
    low: int
    high: int
    way: str
    curves: dict[str, list[tuple[int, float]]]
    answers: dict[str, int]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"level": LEVEL}


@dataclass(frozen=True)
class _Scored:
    """hits (C, M): per k (C,) and known class, the labelled images in the cluster matched to the class."""

    k: Counts
    hits: Counts
    size: Counts  # (M,) labelled images per class

    def accuracy(self) -> NDArray[np.float64]:
        return self.hits.sum(1) / self.size.sum()

    def interval(self, seed: int) -> tuple[int, int]:
        """The interval of the peak over bootstraps of the known classes."""
        random = np.random.default_rng(stream_seed(seed, "estimate-k/bootstrap"))
        drawn = random.multinomial(len(self.size), np.full(len(self.size), 1 / len(self.size)), BOOTSTRAPS)
        peaks = self.k[(self.hits @ drawn.T).argmax(0)]  # the sizes of the drawn classes do not depend on k
        low, high = np.quantile(peaks, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
        best = self.k[self.accuracy().argmax()]
        return int(min(low, best)), int(max(high, best))


def estimate_k(
    features: Tensor,
    label: Tensor,
    *,
    way: Way = "consensus",
    most: int | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Estimate:
    """Estimate the number of categories among N images: features (N, d), label (N,) in 0..M-1 or -1 where unlabelled.

    - `consensus` (consensus.py): the number of clusters as tight as the known classes, calibrated by hiding known
      classes; the interval reflects how much the known classes differ. It assumes that new classes are like known ones.
    - `ward`: all cuts of Ward's tree, built without labels, scored by their accuracy on the labelled images.
    - `brent`: the same score for k-means, K by Brent's bounded search (Vaze et al. 2022), each integer K computed once.

    The intervals of `ward` and `brent` come from bootstraps of the known classes. They cover the noise of the peak, not
    its bias towards M: absorbing a new class into a cluster costs no labelled image.

    `most` is the upper bound on K; default: the larger of 8 M and √N, but at most N / 2 and at least M. With M = 1 nothing
    can be hidden: `consensus` counts clusters as tight as the one class, with the interval M..most; the others return 1.
    """
    begun = time.monotonic()
    known, most = _checked(features, label, way, most)
    points = normalize(principal(features.cpu().float(), AXES), dim=1)
    label = label.cpu()
    tick = _ticker(on_progress, {"consensus": 1 + CUTS + steps(known), "ward": 1 + CUTS, "brent": FITS}[way])
    scored = (_search if way == "brent" else _cuts)(points, label, known, most, seed, tick)
    curve = _curve(scored.k, scored.accuracy())
    peak = int(scored.k[scored.accuracy().argmax()])
    if way != "consensus":
        low, high = scored.interval(seed)
        return Estimate(peak, low, high, way, {way: curve}, {way: peak}, time.monotonic() - begun)
    belief = believe(points, label, most, stream_seed(seed, "estimate-k/consensus"), lambda: tick(1))
    k, low, high = belief.answer()
    curves = {"consensus": _curve(belief.k, belief.likelihood), "ward": curve}
    return Estimate(k, low, high, way, curves, {"consensus": k, "ward": peak}, time.monotonic() - begun)


def _checked(features: Tensor, label: Tensor, way: str, most: int | None) -> tuple[int, int]:
    """(M, most), or an error."""
    if way not in get_args(Way):
        raise UsageError(f"no way {way!r} to estimate K; choose from {', '.join(get_args(Way))}")
    if features.ndim != 2 or label.shape != features.shape[:1]:
        raise ValueError(
            f"features must be (N, d) and label (N,), got {tuple(features.shape)} and {tuple(label.shape)}"
        )
    count = len(features)
    if not count or int(label.max()) < 0:
        raise DataError(
            "no image is labelled, so the extent of a category is unknown; label some images, or set the number of categories",
            setting="k",
        )
    if not features.isfinite().all():
        rows = (~features.isfinite().all(1)).nonzero()[:, 0]
        raise DataError(
            f"the features of {len(rows)} images are not finite, first in row {int(rows[0])}; check these images"
        )
    if bool((features == features[0]).all()):
        raise DataError("all images have the same features, so categories cannot be distinguished; check the images")
    known = int(label.max()) + 1
    if way == "consensus" and int((label >= 0).sum()) == known:
        raise DataError(
            "each class has only one labelled image, so the width of a category is unknown; label a second image of some "
            "class, or set the number of categories",
            setting="k",
        )
    empty = (torch.bincount(label[label >= 0], minlength=known) == 0).nonzero()[:, 0]
    if len(empty):
        raise ValueError(f"labels must be 0..M-1 without gaps; no image has label {int(empty[0])}")
    if most is None:
        return known, max(known, min(count // 2, max(8 * known, round(count**0.5))))
    if most < known:
        raise UsageError(
            f"at most {most} categories are allowed, but {known} classes are labelled already; raise the maximum",
            setting="max",
        )
    if most > count:
        raise UsageError(
            f"at most {most} categories are allowed, but there are only {count} images; lower the maximum",
            setting="max",
        )
    return known, most


def _cuts(points: Tensor, label: Tensor, known: int, most: int, seed: int, tick: Callable[[int], None]) -> _Scored:
    """Score every cut of one tree, from `most` clusters (or the number of distinct images) down to M."""
    tree = ward(points, seed=stream_seed(seed, "estimate-k/ward") % 2**31)
    tick(1)
    top = min(most, tree.leaves)
    merges = tree.merges_below(top)[: max(0, top - known)]
    table = _table(tree.cut(top), label.numpy(), top, known)
    hits = [_hits(table)]
    for done, (first, second) in enumerate(merges):
        both = table[first].any() and table[second].any()  # otherwise the labelled images' clustering does not change
        table[first] += table[second]
        table[second] = 0
        hits.append(_hits(table) if both else hits[-1])
        tick(CUTS * (done + 1) // len(merges) - CUTS * done // len(merges))
    if not merges:
        tick(CUTS)
    k = np.arange(top - len(merges), top + 1)
    return _Scored(k, np.stack(hits[::-1]), np.bincount(label[label >= 0]))


def _search(points: Tensor, label: Tensor, known: int, most: int, seed: int, tick: Callable[[int], None]) -> _Scored:
    """Brent's bounded search for the k-means with the highest accuracy on the labelled images."""
    free, tried = torch.full_like(label, -1), {}

    def loss(x: float) -> float:
        k = min(max(round(x), known), most)
        if k not in tried:
            found = kmeans(points, free, k, seed=stream_seed(seed, "estimate-k/brent") % 2**31).assignment
            tried[k] = _hits(_table(found.numpy(), label.numpy(), k, known))
            tick(1)
        return -float(tried[k].sum())

    loss(known)
    if most > known:
        from scipy.optimize import minimize_scalar

        minimize_scalar(loss, bounds=(known, most), method="bounded", options={"xatol": 0.5})
    tick(FITS - len(tried))
    k = np.array(sorted(tried))
    return _Scored(k, np.stack([tried[one] for one in k]), np.bincount(label[label >= 0]))


def _table(cluster: Counts, label: Counts, clusters: int, known: int) -> Counts:
    """Labelled images per cluster and class: (K, M)."""
    on = label >= 0
    return np.bincount(cluster[on] * known + label[on], minlength=clusters * known).reshape(clusters, known)


def _hits(table: Counts) -> Counts:
    """Per class, its images in the cluster that the best one-to-one matching assigns it: (K, M) -> (M,)."""
    table = table[table.any(1)]  # most clusters have no labelled image; they do not affect the matching
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table, maximize=True)
    hits = np.zeros(table.shape[1], dtype=np.int64)
    hits[columns] = table[rows, columns]
    return hits


def _curve(k: Counts, score: NDArray[np.float64]) -> list[tuple[int, float]]:
    return [(int(one), round(float(value), 6)) for one, value in zip(k, score, strict=True)]


def _ticker(on_progress: Progress | None, total: int) -> Callable[[int], None]:
    """Report progress; a search may take a few steps more or fewer than estimated."""
    done = 0

    def tick(steps: int) -> None:
        nonlocal done
        before, done = done, min(max(done, done + steps), total)
        if on_progress is not None and done > before:
            on_progress(done, total)

    return tick
