"""Semi-supervised k-means: constraints, quality against scikit-learn, degenerate data."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from torch import Tensor

from debgcd.cluster.kmeans import AXES, _lloyd, kmeans, principal, prototypes


def mixture(seed: int, clusters: int, size: int, width: int, spread: float) -> tuple[Tensor, Tensor]:
    """Points around random centres, and the centre that each comes from."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(clusters), size)
    points = rng.normal(size=(clusters, width))[truth] + spread * rng.normal(size=(clusters * size, width))
    return torch.tensor(points, dtype=torch.float32), torch.tensor(truth)


def free(points: Tensor) -> Tensor:
    return torch.full((len(points),), -1)


def slow_step(points: list, label: list[int], centres: list) -> tuple[list[int], list]:
    """One iteration of Lloyd's algorithm with loops: (cluster of each point, new centres)."""
    chosen = []
    for point, fixed in zip(points, label, strict=True):
        distances = [math.dist(point, centre) ** 2 for centre in centres]
        chosen.append(fixed if fixed >= 0 else distances.index(min(distances)))
    moved = []
    for k, centre in enumerate(centres):
        mine = [point for point, cluster in zip(points, chosen, strict=True) if cluster == k]
        moved.append([sum(axis) / len(mine) for axis in zip(*mine, strict=True)] if mine else centre)
    return chosen, moved


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("labelled", [0, 9])
def test_one_iteration_is_lloyds(seed: int, labelled: int) -> None:
    points = mixture(seed, 4, 10, 3, 0.7)[0].double()
    label = free(points)
    label[:labelled] = torch.arange(labelled) % 3
    centres = points[[2, 11, 22, 39]].clone()
    assigned, moved = slow_step(points.tolist(), label.tolist(), centres.tolist())
    assert len(set(assigned)) == 4  # no empty cluster: that is another test
    found = _lloyd(points, label, centres, iterations=1)
    assert found.assignment.tolist() == assigned
    torch.testing.assert_close(found.centres, torch.tensor(moved, dtype=torch.float64))
    inertia = sum(math.dist(p, moved[k]) ** 2 for p, k in zip(points.tolist(), assigned, strict=True))
    assert found.inertia == pytest.approx(inertia)


@pytest.mark.parametrize("seed", range(4))
def test_it_ends_where_an_iteration_changes_nothing(seed: int) -> None:
    points = mixture(seed, 5, 12, 4, 0.6)[0].double()
    label = free(points)
    label[:8] = torch.arange(8) % 2
    found = kmeans(points, label, 5, seed=seed)
    assigned, centres = slow_step(points.tolist(), label.tolist(), found.centres.tolist())
    assert found.assignment.tolist() == assigned
    torch.testing.assert_close(found.centres, torch.tensor(centres, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
def test_labelled_points_stay_in_their_class(seed: int) -> None:
    """Whatever the distances say: the labels here are random."""
    points, _ = mixture(seed, 6, 20, 5, 1.0)
    label = free(points)
    rows = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:50]
    label[rows] = torch.arange(50) % 3
    found = kmeans(points, label, 6, seed=seed)
    assert torch.equal(found.assignment[rows], label[rows])
    assert set(found.assignment.tolist()) == set(range(6))
    for k in range(6):
        torch.testing.assert_close(found.centres[k], points[found.assignment == k].mean(0))


def test_labels_help_to_find_their_classes_and_the_new_ones() -> None:
    points, truth = mixture(1, 6, 30, 16, 0.2)
    label = torch.where(torch.arange(len(truth)) % 2 == 0, truth, -1)
    label[truth >= 3] = -1
    found = kmeans(points, label, 6).assignment
    assert torch.equal(found[truth < 3], truth[truth < 3])  # known classes under their own numbers
    for k in (3, 4, 5):
        assert len(found[truth == k].unique()) == 1
    assert len(found[truth >= 3].unique()) == 3


@pytest.mark.parametrize(
    ("seed", "clusters", "width", "spread"), [(0, 5, 2, 0.3), (1, 10, 8, 0.6), (2, 12, 3, 1.0), (3, 3, 32, 2.0)]
)
def test_as_good_as_scikit_learn(seed: int, clusters: int, width: int, spread: float) -> None:
    points, _ = mixture(seed, clusters, 30, width, spread)
    other = KMeans(clusters, n_init=10, random_state=0).fit(points.numpy())
    found = kmeans(points, free(points), clusters, seed=seed)
    assert found.inertia <= 1.01 * other.inertia_
    assert found.inertia == pytest.approx(float((points - found.centres[found.assignment]).square().sum()), rel=1e-5)


def test_the_seed_alone_decides() -> None:
    points, _ = mixture(0, 8, 15, 3, 1.5)
    torch.manual_seed(1)
    one = kmeans(points, free(points), 8, seed=4, restarts=1)
    torch.manual_seed(2)
    two = kmeans(points, free(points), 8, seed=4, restarts=1)
    assert torch.equal(one.centres, two.centres)
    assert torch.equal(one.assignment, two.assignment)
    assert one.inertia == two.inertia
    others = [kmeans(points, free(points), 8, seed=seed, restarts=1).inertia for seed in range(8)]
    assert len(set(others)) > 1


def test_more_restarts_are_never_worse_and_the_best_is_kept() -> None:
    points, _ = mixture(3, 12, 10, 2, 0.5)
    inertia = [kmeans(points, free(points), 12, seed=0, restarts=n).inertia for n in (1, 3, 10)]
    assert inertia[0] >= inertia[1] >= inertia[2]
    assert inertia[0] > inertia[2]


@pytest.mark.parametrize("k", [1, 2, 5, 11])
@pytest.mark.parametrize("labelled", [0, 2])
def test_degenerate_data(k: int, labelled: int) -> None:
    """Constant points, copies of two points, a zero: everything stays finite and every cluster has a point."""
    data = {
        "constant": torch.full((12, 3), 0.1),
        "two points": torch.tensor([[1.0, 2.0], [-3.0, 0.5]]).repeat(6, 1),
        "zero": torch.zeros(12, 4),
        "huge and tiny": torch.tensor([[1e15], [1e-15]]).repeat(6, 1),
    }
    for points in data.values():
        label = free(points)
        label[:labelled] = 0
        found = kmeans(points, label, k)
        assert found.centres.shape == (k, points.shape[1])
        assert found.centres.isfinite().all()
        assert math.isfinite(found.inertia)
        assert torch.bincount(found.assignment, minlength=k).min() >= 1
        assert torch.equal(found.assignment[:labelled], label[:labelled])


def test_fewer_free_points_than_clusters() -> None:
    points, _ = mixture(0, 3, 2, 2, 1.0)
    label = torch.tensor([0, 0, 1, 1, 0, -1])
    found = kmeans(points, label, 5)
    assert found.centres.isfinite().all()
    assert torch.equal(found.assignment[:5], label[:5])


def test_as_many_clusters_as_points() -> None:
    points, _ = mixture(0, 4, 3, 2, 1.0)
    found = kmeans(points, free(points), 12)
    assert sorted(found.assignment.tolist()) == list(range(12))
    assert found.inertia == pytest.approx(0, abs=1e-10)


def test_one_cluster_is_the_mean() -> None:
    points, _ = mixture(0, 4, 5, 3, 1.0)
    found = kmeans(points, free(points), 1)
    torch.testing.assert_close(found.centres[0], points.mean(0))
    assert not found.assignment.any()
    assert found.inertia == pytest.approx(float((points - points.mean(0)).square().sum()), rel=1e-5)


def test_an_empty_cluster_takes_the_point_that_is_worst_served() -> None:
    """Three centres, one of them far from everything: it gets the outlier, which a plain step would leave to centre 1."""
    points = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [9.0]])
    start = torch.tensor([[0.1], [5.0], [1000.0]])
    found = _lloyd(points, free(points), start, iterations=1)
    assert found.assignment.tolist() == [0, 0, 0, 1, 1, 2]
    assert found.centres[2].item() == 9.0
    fixed = torch.tensor([-1, -1, -1, -1, -1, 1])  # the outlier is labelled, so the next worst has to go
    found = _lloyd(points, fixed, start, iterations=1)
    assert found.assignment[5] == 1
    assert (found.assignment == 2).sum() == 1


def test_a_class_number_without_a_point_is_a_cluster_like_the_new_ones() -> None:
    points, _ = mixture(2, 4, 10, 3, 0.3)
    label = free(points)
    label[:4], label[20:24] = 0, 2
    found = kmeans(points, label, 4)
    assert found.centres.isfinite().all()
    assert found.inertia <= 1.01 * KMeans(4, n_init=10, random_state=0).fit(points.numpy()).inertia_


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    points = torch.zeros(4, 2)
    points[3, 1] = value
    with pytest.raises(ValueError, match="not finite"):
        kmeans(points, free(points), 2)


@pytest.mark.parametrize(("k", "says"), [(0, "k must be between 1 and"), (5, "k must be between"), (1, "2 labelled")])
def test_numbers_of_clusters_that_are_refused(k: int, says: str) -> None:
    points = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=says):
        kmeans(points, torch.tensor([0, 1, -1, -1]), k)


def test_inputs_are_not_modified() -> None:
    points, _ = mixture(0, 3, 5, 2, 1.0)
    label = free(points)
    label[0] = 0
    before = points.clone(), label.clone()
    kmeans(points, label, 3)
    assert torch.equal(points, before[0])
    assert torch.equal(label, before[1])


@pytest.mark.parametrize(("axes", "width"), [(1, 6), (3, 6), (6, 6), (9, 6), (4, 40)])
def test_principal_axes_are_scikit_learns(axes: int, width: int) -> None:
    points = mixture(0, 5, 6, width, 1.0)[0] + 10
    found = principal(points, axes)
    count = min(axes, width)
    assert found.shape == (30, count)
    assert found.dtype == points.dtype
    expected = torch.from_numpy(PCA(count).fit_transform(points.double().numpy())).float().flip(1)  # largest last here
    torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-3, atol=1e-3)  # the sign of an axis is free


@pytest.mark.parametrize("width", [8, AXES + 20])
def test_prototypes_are_the_unit_centres_of_a_semi_supervised_clustering(width: int) -> None:
    points, truth = mixture(1, 6, 12, width, 0.05)
    label = torch.where((truth < 3) & (torch.arange(len(truth)) % 2 == 0), truth, -1)
    found = prototypes(points, label, 6)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(6))
    unit = points / points.norm(dim=1, keepdim=True)
    centres = torch.stack([unit[truth == k].mean(0) for k in range(6)])
    centres = centres / centres.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found[:3], centres[:3])  # known classes under their own numbers
    nearest = torch.cdist(found[3:], centres).min(1)
    assert sorted(nearest.indices.tolist()) == [3, 4, 5]
    assert float(nearest.values.max()) < 1e-4


def test_every_prototype_has_a_length() -> None:
    """Three free points for eight new categories: a prototype of zeros would have a gradient without bound."""
    points, _ = mixture(0, 13, 1, 8, 1.0)
    label = torch.tensor([0] * 5 + [1] * 5 + [-1] * 3)
    torch.testing.assert_close(prototypes(points, label, 10).norm(dim=1), torch.ones(10))
    assert prototypes(torch.ones(6, 4), torch.tensor([0, -1, -1, -1, -1, -1]), 3).isfinite().all()
