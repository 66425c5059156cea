"""Split and merge of Gaussians, and Infomap's clusters: against slow forms, and on clouds whose number is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from debgcd.cluster.graphs import communities
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


def test_the_ratio_is_that_of_two_clusters_of_a_dirichlet_process() -> None:
    points, truth = clouds(2, 7)
    first, second = points[truth == 0], points[truth == 1][:4]
    prior = Prior(points.mean(0), alpha=3.0)
    alone = math.lgamma(7) + log_marginal(first, prior) + math.lgamma(4) + log_marginal(second, prior)
    together = math.lgamma(11) + log_marginal(torch.cat([first, second]), prior)
    assert log_split((first, second), prior) == pytest.approx(math.log(3) + alone - together, rel=1e-12)


def test_a_split_or_merge_happens_by_chance_too() -> None:
    """One cloud in two, better whole: with chance 1 its halves are each split, with chance 0 they are joined."""
    points, _ = clouds(1, 80)
    points = torch.cat([points, torch.randn(80, 2, generator=torch.Generator().manual_seed(1))], 1)
    halves, prior = torch.arange(80) % 2, Prior(points.mean(0), scale=1.0)
    assert int(split_and_merge(points, halves, 0, prior, most=9, seed=0, chance=0.0).max()) == 0
    assert int(split_and_merge(points, halves, 0, prior, most=9, seed=0, chance=1.0).max()) == 3


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


def test_the_links_that_infomap_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest by cosine, if similar enough; two labelled points of one class link as strongly as the first one's best."""
    import infomap

    links: dict[tuple[int, int], float] = {}

    class Recorder:
        num_links = 0

        def __init__(self, words: str):
            assert "--two-level" in words and "--directed" in words

        def add_link(self, a: int, b: int, weight: float) -> None:
            links[a, b] = weight

    monkeypatch.setattr(infomap, "Infomap", Recorder)
    rng = torch.Generator().manual_seed(3)
    points = torch.nn.functional.normalize(torch.randn(12, 3, generator=rng).double(), dim=1)
    y = [0, 0, 0, 1, 1, -1, -1, -1, 0, -1, 1, -1]
    communities(points, torch.tensor(y), neighbours=4, least=0.3)
    expected = {}
    for i, a in enumerate(points.tolist()):
        similar = {j: math.fsum(p * q for p, q in zip(a, b, strict=True)) for j, b in enumerate(points.tolist())}
        nearest = sorted((j for j in similar if j != i), key=lambda j, of=similar: -of[j])[:4]
        for j in nearest:
            if similar[j] >= 0.3:
                expected[i, j] = similar[nearest[0]] if y[i] == y[j] >= 0 else similar[j]
    assert len(expected) > 20 and links.keys() == expected.keys()
    assert links == pytest.approx(expected, abs=1e-6)


def test_infomap_of_what_is_alone() -> None:
    assert communities(torch.eye(3), torch.full((3,), -1), least=0.5).tolist() == [-1, -1, -1]
    assert communities(torch.ones(1, 2), torch.tensor([-1])).tolist() == [-1]
