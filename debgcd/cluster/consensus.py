"""K as the number of clusters that are as tight as the known classes, calibrated by hiding known classes.

The tightness of a cut of Ward's tree is its scatter per degree of freedom, W(k) = S(k) / (n - k). The labelled images
have M classes, so W(M) of their own tree is the tightness of a correct cut. In the tree of all images, the cut that is
equally tight has K' clusters. Three corrections make this comparison fair:

- Classes crowd: the more of them share one space, the tighter a correct cut, so K' is too small. Half of the known
  classes are hidden, v remain, and the same count over all labelled images should give M. The median of
  log(K'/v) / log(M/v) is the exponent g.
- Small classes look tighter than they are. So a candidate K is compared with a random subset of n K / M images, in
  which a class has as many images as a labelled class has.
- Known classes may be tighter or wider than the others. The deviation of the halves from g gives the noise c of one
  class; M of K classes leave a variance of c² (1/M - 1/K).

Each K between M and `most` then has a likelihood; the prior is uniform on log(K/M).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.cluster.ward import DIRECT, Tree, ward

SAMPLE = DIRECT  # images: all trees are then exact, and the few known classes limit the precision, not the sample
PAIRS_OF_HALVES = 16  # random splits of the known classes; all halves where there are few classes
SUBSETS, DRAWS = 5, 6  # sizes of random subsets of all images, and subsets per size
EXPONENT_ERROR = 0.1  # relative standard error: it is measured among M classes and used among K
LEVEL = 0.9
ANSWER = 0.6  # quantile: a category too many costs less accuracy than one too few

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Belief:
    """The posterior over the candidates: k (C,), probability (C,), likelihood relative to the best (C,)."""

    k: NDArray[np.int64]
    probability: Floats
    likelihood: Floats
    checked: bool  # whether classes could be hidden; otherwise the likelihood has a peak but no width

    def answer(self) -> tuple[int, int, int]:
        """K and its interval; without calibration, the interval holds all candidates."""
        if not self.checked:
            return int(self.k[self.likelihood.argmax()]), int(self.k[0]), int(self.k[-1])
        return self.quantile(ANSWER), self.quantile((1 - LEVEL) / 2), self.quantile((1 + LEVEL) / 2)

    def quantile(self, share: float) -> int:
        return int(self.k[min(int(np.searchsorted(np.cumsum(self.probability), share)), len(self.k) - 1)])


@dataclass(frozen=True)
class Crowding:
    """Measured by hiding known classes: the exponent g, and the squared noise c² of one class (nan if M = 1)."""

    exponent: float
    noise: float


def steps(known: int) -> int:
    """The number of trees that `believe` builds, for a progress bar."""
    return 1 + len(_halves(known, np.random.default_rng(0))) + SUBSETS * DRAWS


def believe(points: Tensor, label: Tensor, most: int, seed: int, tick: Callable[[], None]) -> Belief:
    """The probability of each K in M..most from points (N, d) and label (N,), -1 or 0..M-1.

    With one known class nothing can be hidden and the exponent is 1. Some class needs two labelled images.
    """
    random = np.random.default_rng(seed)
    points, label = _thinned(points, label, random)
    labelled, own = points[label >= 0], label[label >= 0]
    known = int(own.max()) + 1
    tree = ward(labelled)
    tick()
    crowding = _crowding(labelled, own.numpy(), known, tree, random, tick)
    tight = _tightness(tree, known)
    size, found = _subsets(points, len(labelled), tight, random, tick)
    return _weigh(np.log(size / len(labelled)), np.log(found / known), known, most, crowding)


def _weigh(growth: Floats, found: Floats, known: int, most: int, crowding: Crowding) -> Belief:
    """Compare the found log(K'/M), per growth (S,) and draw (S, D), with the value that each K predicts."""
    candidates = np.unique(np.round(np.geomspace(known, max(most, known), 2_000)).astype(np.int64))
    log_ratio = np.log(candidates / known)
    prior = np.diff(np.log(np.append(candidates, candidates[-1] + 1)))
    if np.isnan(crowding.noise):
        likelihood = np.exp(-np.abs(np.interp(log_ratio, growth, found.mean(1)) - log_ratio))
        return Belief(candidates, prior / prior.sum(), likelihood / likelihood.max(), False)
    seen, expected = np.interp(log_ratio, growth, found.mean(1)), crowding.exponent * log_ratio
    by_draw = found.var(1, ddof=1).mean() / found.shape[1]
    variance = crowding.noise * (1 / known - 1 / candidates) + np.square(EXPONENT_ERROR * expected) + by_draw
    deviation = np.sqrt(np.maximum(variance, 1e-6))
    from scipy.stats import t as student  # here, because it takes half a second to import

    log_likelihood = student.logpdf((seen - expected) / deviation, known - 1) - np.log(deviation)
    likelihood = np.exp(log_likelihood - log_likelihood.max())
    return Belief(candidates, likelihood * prior / (likelihood * prior).sum(), likelihood, True)


def as_tight_as(points: Tensor, label: Tensor, others: Tensor) -> float:
    """The number of clusters among the others (n, d) that are as tight as the known classes: points (N, d), label (N,) in 0..M-1.

    The plain comparison, without the three corrections: among few classes the noise of the crowding is larger than the crowding.
    """
    return _as_tight(ward(others), _tightness(ward(points), int(label.max()) + 1))


def _thinned(points: Tensor, label: Tensor, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """At most SAMPLE random images, but at least two of every known class that has them, even if these are more."""
    if len(points) <= SAMPLE:
        return points, label
    order = torch.from_numpy(random.permutation(len(points)))
    two = torch.zeros(len(points), dtype=torch.bool)
    for one in range(int(label.max()) + 1):
        two[order[label[order] == one][:2]] = True
    first = torch.cat([order[two[order]], order[~two[order]]])
    kept = first[: max(SAMPLE, int(two.sum()))].sort().values
    return points[kept], label[kept]


def _crowding(
    points: Tensor,
    label: NDArray[np.int64],
    known: int,
    tree: Tree,
    random: np.random.Generator,
    tick: Callable[[], None],
) -> Crowding:
    """Hide half of the known classes and count with the rest: how many of all M are found?"""
    ratio, found = [], []
    for half in _halves(known, random):
        mine = torch.from_numpy(np.isin(label, half))
        if int(mine.sum()) > len(half):  # otherwise no class has a second image, so its width is unknown
            tight = _tightness(ward(points[mine]), len(half))
            ratio.append(known / len(half))
            found.append(np.log(_as_tight(tree, tight) / len(half)))
        tick()
    if not ratio:
        return Crowding(1.0, float("nan"))
    log_ratio, seen = np.log(ratio), np.array(found)
    variance = (np.array(ratio) - 1) / known  # 1/v - 1/M
    # the median: where classes are far apart, a half that is slightly too tight gives far too many clusters
    exponent = float(np.median(seen / log_ratio))
    noise = float((np.square(seen - exponent * log_ratio) / variance).mean())
    return Crowding(min(max(exponent, 0.25), 2.0), noise)  # beyond, noise would be amplified


def _halves(known: int, random: np.random.Generator) -> list[NDArray[np.int64]]:
    """Halves of the known classes: every half for up to six classes, otherwise random ones with their complements."""
    smaller = known // 2
    if known <= 6:
        sizes = sorted({smaller, known - smaller} - {0, known})
        return [np.array(half) for size in sizes for half in combinations(range(known), size)]
    orders = [random.permutation(known) for _ in range(PAIRS_OF_HALVES)]
    return [half for order in orders for half in (order[:smaller], order[smaller:])]


def _subsets(
    points: Tensor, labelled: int, tight: float, random: np.random.Generator, tick: Callable[[], None]
) -> tuple[Floats, Floats]:
    """Random subsets of the images, from as many as are labelled to all: sizes (S,), equally tight clusters (S, DRAWS)."""
    sizes = np.round(np.geomspace(labelled, len(points), SUBSETS)).astype(np.int64)
    found = np.empty((SUBSETS, DRAWS))
    for i, size in enumerate(sizes):
        for draw in range(DRAWS):
            if size < len(points) or not draw:  # only one subset holds all images
                rows = torch.from_numpy(random.permutation(len(points))[:size])
                found[i, draw] = _as_tight(ward(points[rows]), tight)
            else:
                found[i, draw] = found[i, 0]
            tick()
    return sizes.astype(np.float64), found


def _tightness(tree: Tree, k: int) -> float:
    """Scatter per degree of freedom with k clusters, k below the number of points."""
    return float(tree.scatter()[min(k, tree.leaves) - 1] / (len(tree.leaf) - k))


def _as_tight(tree: Tree, tight: float) -> float:
    """The number of clusters at which a tree becomes as tight, interpolated between whole numbers."""
    clusters = np.arange(1, min(tree.leaves, len(tree.leaf) - 1) + 1)
    curve = np.minimum.accumulate(tree.scatter()[: len(clusters)] / (len(tree.leaf) - clusters))
    enough = np.flatnonzero(curve <= tight)
    if not len(enough):
        return float(tree.leaves)
    at = int(enough[0])
    if at == 0:
        return 1.0
    share = (curve[at - 1] - tight) / (curve[at - 1] - curve[at])
    return float(at * ((at + 1) / at) ** share)
