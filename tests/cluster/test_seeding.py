"""k-means++: against the slow form from the same random numbers, and from free points alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import slow_kmeans
import torch
from clouds import free, half_labelled, mixture
from torch import Tensor

from debgcd.cluster import kmeans
from debgcd.cluster.kmeans import plus_plus
from debgcd.cluster.lloyd import fix, read
from debgcd.data.sampler import uniform


def first_centres(points: Tensor, label: Tensor, k: int, seed: int, restarts: int) -> Tensor:
    seen = read(points)
    fixed, given = fix(seen, label, k)
    missing = (fixed.counts == 0).nonzero()[:, 0]
    found = plus_plus(seen, fixed.free, given, missing, seed=seed, restarts=restarts, advance=lambda share: None)
    return found + seen.middle


@pytest.mark.parametrize("products", [0, 2**26])
@pytest.mark.parametrize("known", [0, 1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_as_the_slow_form(monkeypatch: pytest.MonkeyPatch, seed: int, known: int, products: int) -> None:
    monkeypatch.setattr(kmeans, "PRODUCTS", products)
    points, truth = mixture(seed, 6, 12, 3, 0.6)
    points, label, restarts = points.double(), half_labelled(truth, known), 4
    found = first_centres(points, label, 6, seed, restarts)
    trials = 2 + int(math.log(6))
    rows = points.tolist()
    given = {
        c: slow_kmeans.mean([p for p, own in zip(rows, label.tolist(), strict=True) if own == c]) for c in range(known)
    }
    for restart in range(restarts):
        draws = {c: uniform(seed, "kmeans", restart, c, np.arange(trials)).tolist() for c in range(known, 6)}
        expected = slow_kmeans.plus_plus(rows, label.tolist(), given, draws)
        torch.testing.assert_close(found[restart], torch.tensor([expected[c] for c in range(6)], dtype=torch.float64))
    assert len({tuple(start.flatten().tolist()) for start in found}) == restarts


def test_new_centres_are_free_points_and_never_labelled_ones() -> None:
    """The labelled points of class 0 are far apart, so that chance would choose them first."""
    points = torch.cat([torch.tensor([[1000.0, 0.0], [-1000.0, 0.0]]), mixture(0, 5, 4, 2, 0.5)[0]])
    label = free(points)
    label[:2] = 0
    found = first_centres(points, label, 5, seed=0, restarts=20)
    torch.testing.assert_close(found[:, 0], torch.zeros(20, 2))
    distance = torch.cdist(found[:, 1:].flatten(0, 1), points[2:]).amin(1)
    assert float(distance.max()) < 1e-3


def test_no_two_centres_in_one_of_many_far_groups() -> None:
    points, truth = mixture(2, 30, 10, 8, 0.001)
    for start in first_centres(points, half_labelled(truth, 10), 30, seed=0, restarts=10):
        assert sorted(truth[torch.cdist(start, points).argmin(1)].tolist()) == list(range(30))


def test_a_sample_of_many_points_finds_all_groups_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans, "POOL", 8)
    points, truth = mixture(2, 12, 200, 8, 0.001)
    found = first_centres(points, free(points), 12, seed=3, restarts=5)
    for start in found:
        nearest = torch.cdist(start.double(), points.double()).min(1)
        assert sorted(truth[nearest.indices].tolist()) == list(range(12))
        assert float(nearest.values.max()) < 1e-3
    assert torch.equal(found, first_centres(points, free(points), 12, seed=3, restarts=5))


def test_one_chance_each_where_every_point_lies_on_a_centre() -> None:
    points = torch.ones(6, 3)
    torch.testing.assert_close(first_centres(points, free(points), 4, seed=0, restarts=3), torch.ones(3, 4, 3))
