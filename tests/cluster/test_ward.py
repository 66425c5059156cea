"""Ward's tree against scipy's, which keeps all distances in a matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from debgcd.cluster import ward as module
from debgcd.cluster.ward import ward


def blobs(clusters: int, size: int, width: int = 6, seed: int = 0) -> Tensor:
    random = np.random.default_rng(seed)
    centres = random.normal(0, 3, (clusters, width))
    return torch.tensor(np.repeat(centres, size, 0) + random.normal(size=(clusters * size, width)), dtype=torch.float32)


def scatter_by_hand(points: Tensor, cluster: np.ndarray) -> float:
    exact = points.double().numpy()
    return sum(np.square(exact[cluster == c] - exact[cluster == c].mean(0)).sum() for c in set(cluster.tolist()))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_costs_and_cuts_are_those_of_scipy(seed: int) -> None:
    points = blobs(7, 30, seed=seed)
    tree, theirs = ward(points), linkage(points.double().numpy(), "ward")
    np.testing.assert_allclose(tree.cost, np.square(theirs[:, 2]) / 2, rtol=1e-5)
    for k in (1, 2, 5, 7, 20, len(points)):
        assert adjusted_rand_score(tree.cut(k), cut_tree(theirs, k)[:, 0]) == 1.0
        assert set(tree.cut(k)) == set(range(k))


def test_the_scatter_is_that_of_the_cut() -> None:
    points = blobs(5, 12)
    tree = ward(points)
    for k in (1, 3, 5, 17, 60):
        assert tree.scatter()[k - 1] == pytest.approx(scatter_by_hand(points, tree.cut(k)), rel=1e-6, abs=1e-9)


def test_equal_points_are_one_leaf_that_weighs_as_many() -> None:
    points = blobs(4, 5)
    doubled = torch.cat([points, points, points[:3]])
    tree = ward(doubled)
    assert tree.leaves == 20
    theirs = linkage(doubled.double().numpy(), "ward")
    assert adjusted_rand_score(tree.cut(4), cut_tree(theirs, 4)[:, 0]) == 1.0


def test_merges_below_lead_from_one_cut_to_the_next() -> None:
    points = blobs(6, 8)
    tree = ward(points)
    cluster = tree.cut(12)
    for k, (first, second) in zip(range(11, 0, -1), tree.merges_below(12), strict=True):
        assert second in cluster
        cluster = np.where(cluster == second, first, cluster)
        assert adjusted_rand_score(cluster, tree.cut(k)) == 1.0


def test_many_points_are_put_into_leaves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    points = blobs(5, 60)
    whole = ward(points).cut(5)
    monkeypatch.setattr(module, "DIRECT", 100)
    monkeypatch.setattr(module, "LEAVES", 40)
    tree = ward(points, seed=3)
    assert tree.leaves == 40
    assert adjusted_rand_score(tree.cut(5), whole) > 0.95
    assert tree.scatter()[4] == pytest.approx(scatter_by_hand(points, tree.cut(5)), rel=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_points_and_points_in_a_row(count: int) -> None:
    """Equal distances: each may choose the next one."""
    tree = ward(torch.arange(count).float()[:, None])
    assert tree.leaves == count
    assert len(set(tree.cut(count))) == count
    with pytest.raises(ValueError, match="cannot be cut"):
        tree.cut(count + 1)
