"""Categories among images that fit nothing so far: how many there are, and which image is in which, from these images alone."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster.consensus import as_tight_as
from debgcd.cluster.kmeans import kmeans
from debgcd.cluster.prototypes import principal
from debgcd.cluster.settle import SettleOptions, mean_shift, principal_points
from debgcd.data.sampler import stream_seed
from debgcd.errors import DataError
from debgcd.model.heads import AXES

SINGLE = 0.3  # by which a count may exceed a whole number and not be rounded up; chosen on CIFAR-10, Pets and CUB
LEAST = 5  # images of a category; fewer that fit nothing stay where they fit best
MOST = 10_000  # images of either kind that are looked at; the heads find the others


def discover(feature: Tensor, category: Tensor, strangers: Tensor, new: int | None, seed: int) -> Tensor:
    """The category of each stranger, 0, 1, ..., or -1 where too few are alike: (n,).

    feature (N, width), category (N,): of the images so far, which say how wide a category is. strangers (n, width).
    new: how many categories; None: estimated.
    """
    feature, label = _some(feature, category, seed)
    chosen = _chosen(len(strangers), seed)
    assigned = torch.full((len(strangers),), -1)
    if len(chosen) < LEAST:
        return assigned
    some = strangers[chosen]
    every, labels = torch.cat([feature, some]), torch.cat([label, torch.full((len(some),), -1)])
    if new is None:
        new = _count(normalize(principal(every, AXES), dim=1), label)
    new = min(new, len(some) // LEAST)
    if new < 1:
        return assigned
    options = SettleOptions()
    points = principal_points(every, labels)(some)
    shifted = mean_shift(
        points, min(options.neighbours, max(2, round(len(points) / new / 4))), options.rounds
    )  # as in `settle`
    clusters = kmeans(shifted, torch.full((len(some),), -1), new, seed=seed).assignment
    large = torch.bincount(clusters, minlength=new) >= LEAST
    number = torch.where(large, large.cumsum(0) - 1, -1)
    assigned[chosen] = number[clusters]
    return assigned


def _count(points: Tensor, category: Tensor) -> int:
    """How many categories there are among the points after those that have one: as many as are as tight."""
    there = len(category)
    if there <= int(category.max()) + 1:
        raise DataError(
            "each category has only one image, so the width of a category is unknown; set the number of new categories",
            setting="new",
        )
    # one too many costs less than one too few, but a single category often counts for a little more than one
    return max(1, ceil(as_tight_as(points[:there], category, points[there:]) - SINGLE))


def _some(feature: Tensor, label: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    chosen = _chosen(len(feature), seed)
    return feature[chosen], label[chosen].unique(return_inverse=True)[1]


def _chosen(count: int, seed: int) -> Tensor:
    """The numbers of all of these, or of a random part of MOST."""
    generator = torch.Generator().manual_seed(stream_seed(seed, "add") % 2**63)
    return torch.randperm(count, generator=generator)[:MOST].sort().values
