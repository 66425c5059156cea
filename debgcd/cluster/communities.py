"""Clusters of a graph of nearest neighbours by Infomap, which finds their number too (Pu et al. 2023)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

BLOCK = 2048  # points whose similarities to all others are in memory together


def communities(
    points: Tensor, label: Tensor, *, neighbours: int = 14, least: float = 0.6, smallest: int = 5
) -> NDArray[np.int64]:
    """The cluster of each point, -1 where it is in none of `smallest` points or more: points (N, d), label (N,) -> (N,).

    Each point links to its nearest neighbours by cosine, if they are at least so similar. Between two labelled points of
    one class the link is as strong as the strongest of the first one.
    """
    from infomap import Infomap

    unit = normalize(points.detach().float(), dim=1)
    y = label.cpu().numpy()
    count = min(neighbours, len(unit) - 1)
    graph = Infomap("--two-level --directed --silent")
    for start in range(0, len(unit) if count > 0 else 0, BLOCK):
        similarity = unit[start : start + BLOCK] @ unit.T
        own_place = torch.arange(len(similarity), device=unit.device)
        similarity[own_place, start + own_place] = -torch.inf
        best = similarity.topk(count, dim=1)
        values, nearest = best.values.double().cpu().numpy(), best.indices.cpu().numpy()
        own = y[start : start + len(values), None]
        weights = np.where((own >= 0) & (y[nearest] == own), values[:, :1], values)
        for row, column in zip(*np.nonzero((values >= least) & (weights > 0)), strict=True):
            graph.add_link(start + int(row), int(nearest[row, column]), float(weights[row, column]))
    found = np.full(len(unit), -1)
    if graph.num_links:
        for node, module in graph.run().modules().items():
            found[node] = module
    kinds, numbered, sizes = np.unique(found, return_inverse=True, return_counts=True)
    keep = (kinds >= 0) & (sizes >= smallest)
    return np.where(keep, np.cumsum(keep) - 1, -1)[numbered]
