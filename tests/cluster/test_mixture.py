"""Split and merge of Gaussians, and Infomap's clusters: against slow forms, and on clouds whose number is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from debgcd.cluster.communities import communities
from debgcd.cluster.mixture import Prior, log_marginal, log_split, split_and_merge


def clouds(count: int, each: int, seed: int = 0, spread: float = 0.3) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    truth = torch.arange(count * each) % count
    return 4 * torch.eye(count)[truth] + spread * torch.randn(len(truth), count, generator=rng), truth


@pytest.mark.parametrize(("n", "d"), [(1, 2), (5, 3), (3, 6), (20, 2)])
def test_log_marginal_is_the_product_of_its_predictions(n: int, d: int) -> None:
    """p(x1..xn) = p(x1) p(x2 | x1) ...: each factor is a Student t of the posterior so far (Murphy 2007)."""
    rng = np.random.RandomState(n)
    points, mean = rng.randn(n, d), rng.randn(d)
    kappa, nu, psi, m = 0.3, d + 1.0, 0.7 * np.eye(d), mean
    total = 0.0
    for x in points:
        freedom = nu - d + 1
        shape = psi * (kappa + 1) / (kappa * freedom)
        gap = x - m
        quadratic = gap @ np.linalg.solve(shape, gap)
        total += math.lgamma((freedom + d) / 2) - math.lgamma(freedom / 2) - d / 2 * math.log(freedom * math.pi)
        total += -np.linalg.slogdet(shape)[1] / 2 - (freedom + d) / 2 * math.log1p(quadratic / freedom)
        psi = psi + kappa / (kappa + 1) * np.outer(gap, gap)
        m, kappa, nu = (kappa * m + x) / (kappa + 1), kappa + 1, nu + 1
    prior = Prior(torch.from_numpy(mean), scale=0.7, kappa=0.3)
    assert log_marginal(torch.from_numpy(points), prior) == pytest.approx(total, rel=1e-9)


def test_two_clouds_are_better_apart_and_one_cloud_is_better_whole() -> None:
    points, truth = clouds(3, 40)
    prior = Prior(points.mean(0))
    assert log_split((points[truth == 0], points[truth == 1]), prior) > 0
    one = points[truth == 0]
    assert log_split((one[::2], one[1::2]), prior) < 0


def test_split_and_merge_find_the_number_of_clouds_and_leave_known_classes_alone() -> None:
    points, truth = clouds(6, 40)
    prior = Prior(points.mean(0))
    few = torch.where(truth < 3, truth, 3)  # all new ones together
    for start in (few, torch.where(truth < 3, truth, truth + 3 * (torch.arange(240) % 12 < 6))):  # and each in two
        found = start
        for seed in range(6):
            found = split_and_merge(points, found, 3, prior, most=20, seed=seed, chance=0.0)
        assert len(set(zip(found.tolist(), truth.tolist(), strict=True))) == 6 == int(found.max()) + 1
        assert (found == truth)[truth < 3].all()
    assert int(split_and_merge(points, few, 3, prior, most=4, seed=0, chance=0.0).max()) + 1 == 4


@pytest.mark.parametrize("labelled", [False, True])
def test_infomap_finds_the_clouds_and_drops_small_ones(labelled: bool) -> None:
    points, truth = clouds(4, 30)
    points = torch.cat([points, -torch.eye(4)[:1].repeat(3, 1)])  # three more, far from all
    label = torch.where(truth < 2, truth, -1) if labelled else torch.full_like(truth, -1)
    label = torch.cat([label, torch.full((3,), -1)])
    found = communities(points, label, neighbours=15, least=0.5, smallest=5)
    assert (found[-3:] == -1).all() and set(found[:-3].tolist()) == {0, 1, 2, 3}
    assert len(set(zip(found[:-3].tolist(), truth.tolist(), strict=True))) == 4
    assert np.array_equal(found, communities(points, label, neighbours=15, least=0.5, smallest=5))


def test_infomap_of_what_is_alone() -> None:
    assert communities(torch.eye(3), torch.full((3,), -1), least=0.5).tolist() == [-1, -1, -1]
    assert communities(torch.ones(1, 2), torch.tensor([-1])).tolist() == [-1]
