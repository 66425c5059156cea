"""How many Gaussians? Split and merge of clusters by Hastings ratios under a normal-inverse-Wishart prior (Zhao et al. 2023).

A cluster of unlabelled points is split in two, or joined with its nearest, if that makes the points more likely. Known
classes are neither split nor joined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from debgcd.cluster.kmeans import kmeans
from debgcd.data.sampler import uniform

FEWEST = 5  # a part with so many points or fewer is not split off, as in the public code


@dataclass(frozen=True)
class Prior:
    """Normal-inverse-Wishart: mean, κ, ν − d and the scale of Ψ = scale · I; α of the Dirichlet process."""

    mean: Tensor  # (d,)
    scale: float = 0.005
    kappa: float = 1e-4
    freedom: float = 1.0  # ν = d + 1: the least that has a mean
    alpha: float = 1.0


def log_marginal(points: Tensor, prior: Prior) -> float:
    """log p(points) of one Gaussian whose mean and covariance are integrated out: (n, d) -> a number.

    With κ_n = κ + n, ν_n = ν + n and Ψ_n = Ψ + S + κ n / κ_n (x̄ − m)(x̄ − m)ᵀ:
    −nd/2 log π + log Γ_d(ν_n/2) − log Γ_d(ν/2) + ν/2 log|Ψ| − ν_n/2 log|Ψ_n| + d/2 (log κ − log κ_n).
    """
    n, d = points.shape
    points = points.double()
    nu, kappa = d + prior.freedom, prior.kappa
    middle = points.mean(0)
    spread = torch.cat([points - middle, math.sqrt(kappa * n / (kappa + n)) * (middle - prior.mean.double())[None]])
    small = spread @ spread.T if len(spread) < d else spread.T @ spread  # both have the same determinant with I added
    determinant = torch.linalg.slogdet(
        torch.eye(len(small), dtype=small.dtype, device=small.device) + small / prior.scale
    )
    log_psi = d * math.log(prior.scale)
    gammas = torch.mvlgamma(torch.tensor([(nu + n) / 2, nu / 2], dtype=torch.float64), d)
    return (
        -n * d / 2 * math.log(math.pi)
        + float(gammas[0] - gammas[1])
        + nu / 2 * log_psi
        - (nu + n) / 2 * (log_psi + float(determinant.logabsdet))
        + d / 2 * (math.log(kappa) - math.log(kappa + n))
    )


def log_split(parts: tuple[Tensor, Tensor], prior: Prior) -> float:
    """The log Hastings ratio of two clusters against one that holds both; merging them has minus this ratio."""
    first, second = (len(part) for part in parts)
    apart = math.lgamma(first) + log_marginal(parts[0], prior) + math.lgamma(second) + log_marginal(parts[1], prior)
    together = math.lgamma(first + second) + log_marginal(torch.cat(parts), prior)
    return math.log(prior.alpha) + apart - together


def split_and_merge(
    points: Tensor, assignment: Tensor, known: int, prior: Prior, *, most: int, seed: int, chance: float = 0.1
) -> Tensor:
    """One round: clusters of the points after splits and merges, numbered 0..K-1 with the known classes first: (N,).

    assignment: (N,) before; most: K never exceeds it. Where the ratio is against it, a split or merge happens all the same
    with probability `chance`, as in the public code.
    """
    found = assignment.clone()
    count = int(found.max()) + 1
    draws = torch.from_numpy(uniform(seed, "mixture", np.arange(2)[:, None], np.arange(count)))
    following, settled = count, []
    for cluster in range(known, count):
        own = (assignment == cluster).nonzero()[:, 0]
        half = _halves(points[own], seed) if len(own) > 2 * FEWEST else None
        if half is not None and following < most:
            ratio = log_split((points[own[~half]], points[own[half]]), prior)
            if ratio > 0 or draws[0, cluster] < chance:
                found[own[half]] = following
                following += 1
                continue
        if len(own):
            settled.append(cluster)
    means = torch.stack([points[assignment == cluster].mean(0) for cluster in settled]) if settled else points[:0]
    distance = torch.cdist(means, means).fill_diagonal_(math.inf)
    free = set(range(len(settled)))
    for i, cluster in enumerate(settled):
        if i not in free or len(settled) < 2:
            continue
        j = int(distance[i].argmin())
        if j in free:
            ratio = log_split((points[assignment == cluster], points[assignment == settled[j]]), prior)
            if ratio < 0 or draws[1, cluster] < chance:
                found[assignment == settled[j]] = cluster
                free -= {i, j}  # each takes part in one merge
    _, numbered = torch.cat([torch.arange(known, device=found.device), found]).unique(return_inverse=True)
    return numbered[known:]


def _halves(points: Tensor, seed: int) -> Tensor | None:
    """Two-means: which points are in the second half; None where one half has FEWEST points or fewer."""
    half = kmeans(points, torch.full((len(points),), -1), 2, seed=seed, restarts=1).assignment == 1
    return half if FEWEST < int(half.sum()) < len(half) - FEWEST else None
