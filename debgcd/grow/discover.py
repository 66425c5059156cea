"""Categories among images that fit nothing so far: how many there are, and which image is in which, from these images alone."""

from __future__ import annotations

import torch
from torch import Tensor

from debgcd.cluster.estimate_k import estimate_k
from debgcd.cluster.kmeans import kmeans
from debgcd.cluster.settle import SettleOptions, mean_shift, principal_points
from debgcd.data.sampler import stream_seed
from debgcd.system.progress import progress

LEAST = 5  # images of a category; fewer that fit nothing stay where they fit best
MOST = 10_000  # images of either kind that are looked at; the heads find the others


def discover(feature: Tensor, label: Tensor, strangers: Tensor, new: int | None, seed: int) -> Tensor:
    """The category of each stranger, 0, 1, ..., or -1 where too few are alike: (n,).

    feature (N, width), label (N,): of the labelled images so far, whose classes say how wide a category is. strangers (n, width).
    new: how many categories; None: estimated.
    """
    feature, label = _some(feature, label, seed)
    chosen = _chosen(len(strangers), seed)
    assigned = torch.full((len(strangers),), -1)
    if len(chosen) < LEAST:
        return assigned
    some = strangers[chosen]
    every, labels = torch.cat([feature, some]), torch.cat([label, torch.full((len(some),), -1)])
    if new is None:
        with progress("estimating K") as report:
            new = estimate_k(every, labels, seed=seed, on_progress=report).k - (int(label.max()) + 1)
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


def _some(feature: Tensor, label: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    chosen = _chosen(len(feature), seed)
    return feature[chosen], label[chosen].unique(return_inverse=True)[1]


def _chosen(count: int, seed: int) -> Tensor:
    """The numbers of all of these, or of a random part of MOST."""
    generator = torch.Generator().manual_seed(stream_seed(seed, "add") % 2**63)
    return torch.randperm(count, generator=generator)[:MOST].sort().values
