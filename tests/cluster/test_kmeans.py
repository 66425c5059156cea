"""k-means, plain and semi-supervised: constraints, quality against scikit-learn, bad input, bounded reading."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import slow_kmeans
import torch
from clouds import free, half_labelled, mixture
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_iris, load_wine
from tiers import tiered
from torch import Tensor

from debgcd.cluster import kmeans as kmeans_module
from debgcd.cluster import lloyd as blocks
from debgcd.cluster.kmeans import kmeans
from debgcd.cluster.lloyd import Points


@pytest.mark.parametrize("seed", range(4))
def test_it_ends_where_an_iteration_changes_nothing(seed: int) -> None:
    points, truth = mixture(seed, 5, 12, 4, 0.6)
    points, label = points.double(), half_labelled(truth, 2)
    found = kmeans(points, label, 5, seed=seed)
    chosen, centres, inertia = slow_kmeans.lloyd(points.tolist(), label.tolist(), found.centres.tolist(), 1)
    assert found.assignment.tolist() == chosen
    torch.testing.assert_close(found.centres, torch.tensor(centres, dtype=torch.float64))
    assert found.inertia == pytest.approx(inertia)


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
    found = kmeans(points, half_labelled(truth, 3), 6).assignment
    assert torch.equal(found[truth < 3], truth[truth < 3])  # known classes under their own numbers
    for k in (3, 4, 5):
        assert len(found[truth == k].unique()) == 1
    assert len(found[truth >= 3].unique()) == 3


DATA = {
    "digits": lambda: load_digits().data,
    "iris": lambda: load_iris().data,
    "wine": lambda: load_wine().data,  # one column is a thousand times larger than the rest
    "easy": lambda: mixture(0, 5, 30, 2, 0.3)[0].numpy(),
    "hard": lambda: mixture(1, 20, 60, 16, 1.5)[0].numpy(),
    "noise": lambda: mixture(3, 1, 900, 32, 1.0)[0].numpy(),
    "unequal": lambda: np.concatenate([mixture(4, 3, 300, 4, 0.3)[0].numpy(), mixture(5, 12, 8, 4, 0.3)[0].numpy()]),
}


@pytest.mark.parametrize("k", tiered([15], [5, 15]))
@pytest.mark.parametrize("data", DATA)
def test_as_good_as_scikit_learn(data: str, k: int) -> None:
    """An inertia is in part a matter of luck, so the means of five seeds are compared."""
    points = torch.from_numpy(DATA[data]().astype(np.float32))
    theirs = [KMeans(k, n_init=5, random_state=seed).fit(points.numpy()).inertia_ for seed in range(5)]
    ours = [kmeans(points, free(points), k, seed=seed, restarts=5).inertia for seed in range(5)]
    assert np.mean(ours) <= 1.01 * np.mean(theirs)


def test_as_good_as_scikit_learn_from_a_sample_of_the_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans_module, "POOL", 16)
    points, _ = mixture(0, 15, 200, 5, 0.5)
    assert kmeans(points, free(points), 15).inertia <= 1.01 * KMeans(15, n_init=10, random_state=0).fit(points).inertia_


def test_the_same_bits_from_the_same_seed() -> None:
    points, truth = mixture(0, 30, 60, 24, 1.5)
    label = half_labelled(truth, 10)
    torch.manual_seed(1)
    one = kmeans(points, label, 30, seed=4)
    torch.manual_seed(2)
    two = kmeans(points.clone(), label, 30, seed=4)
    assert torch.equal(one.centres, two.centres)
    assert torch.equal(one.assignment, two.assignment)
    assert one.inertia == two.inertia
    others = [kmeans(points, label, 30, seed=seed, restarts=1).inertia for seed in range(4)]
    assert len(set(others)) > 1


def test_more_restarts_are_never_worse_and_the_best_is_kept() -> None:
    points, _ = mixture(3, 12, 10, 2, 0.5)
    inertia = [kmeans(points, free(points), 12, seed=1, restarts=n).inertia for n in (1, 3, 10)]
    assert inertia[0] >= inertia[1] >= inertia[2]
    assert inertia[0] > inertia[2]


def test_inertia_of_points_far_from_the_origin() -> None:
    """From differences: the expanded square of these points has no digit left for it."""
    points = mixture(0, 4, 25, 3, 0.3)[0] + 5000
    found = kmeans(points, free(points), 4)
    truth = (points.double() - found.centres.double()[found.assignment]).square().sum()
    assert found.inertia == pytest.approx(float(truth), rel=1e-2)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_clusters_and_centres_belong_together_where_the_limit_of_iterations_ended_it(iterations: int) -> None:
    points, truth = mixture(0, 12, 40, 4, 1.5)
    label = half_labelled(truth, 4)
    found = kmeans(points, label, 12, iterations=iterations, restarts=2)
    assert torch.equal(torch.cdist(points, found.centres).argmin(1)[label < 0], found.assignment[label < 0])
    own = (points - found.centres[found.assignment]).square().sum()
    assert found.inertia == pytest.approx(float(own), rel=1e-5)


# Degenerate data and bad input


@pytest.mark.parametrize("k", [1, 2, 5, 11])
@pytest.mark.parametrize("labelled", [0, 2])
def test_degenerate_data(k: int, labelled: int) -> None:
    """Constant points, copies of two points, a zero: everything stays finite and every cluster has a point."""
    data = {
        "constant": torch.full((12, 3), 0.1),
        "two points": torch.tensor([[1.0, 2.0], [-3.0, 0.5]]).repeat(6, 1),
        "one image many times": torch.cat([torch.full((11, 4), 0.3), torch.ones(1, 4)]),
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


@pytest.mark.parametrize("k", [3, 5])
def test_no_free_point_at_all(k: int) -> None:
    """Classes are their means; clusters beyond them stay empty, with a centre that is some point."""
    points, truth = mixture(0, 3, 6, 4, 1.0)
    found = kmeans(points, truth, k)
    assert torch.equal(found.assignment, truth)
    torch.testing.assert_close(found.centres[:3], points.view(3, 6, 4).mean(1))
    assert float(torch.cdist(found.centres[3:], points).amin(1).sum()) < 1e-3


def test_no_new_cluster() -> None:
    points, truth = mixture(0, 4, 20, 6, 0.1)
    found = kmeans(points, half_labelled(truth, 4), 4)
    assert torch.equal(found.assignment, truth)


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


def test_a_class_number_without_a_point_is_a_cluster_like_the_new_ones() -> None:
    points, _ = mixture(2, 4, 10, 3, 0.3)
    label = free(points)
    label[:4], label[20:24] = 0, 2
    found = kmeans(points, label, 4)
    assert found.centres.isfinite().all()
    assert found.inertia <= 1.01 * KMeans(4, n_init=10, random_state=0).fit(points.numpy()).inertia_


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_values_that_cannot_be_used_are_refused(value: float) -> None:
    points = torch.zeros(4, 2)
    points[3, 1] = value
    with pytest.raises(ValueError, match="finite and not too large"):
        kmeans(points, free(points), 2)


@pytest.mark.parametrize(
    ("k", "says"), [(0, r"in 1\.\.4, the number of points, got 0"), (5, "got 5"), (1, "classes 2, got 1")]
)
def test_numbers_of_clusters_that_are_refused(k: int, says: str) -> None:
    points = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=says):
        kmeans(points, torch.tensor([0, 1, -1, -1]), k)


def test_other_arguments_that_are_refused() -> None:
    points = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"label \(N,\), got \(4, 2\) and \(3,\)"):
        kmeans(points, torch.zeros(3, dtype=torch.int64), 2)
    with pytest.raises(ValueError, match="at least 1, got 0 and 100"):
        kmeans(points, free(points), 2, restarts=0)
    with pytest.raises(ValueError, match="at least 1, got 10 and 0"):
        kmeans(points, free(points), 2, iterations=0)
    with pytest.raises(ValueError, match=r"in 1\.\.0, the number of points, got 1"):
        kmeans(points[:0], free(points[:0]), 1)


def test_copies_do_not_change_places_until_the_last_iteration() -> None:
    """More clusters than different points: as soon as every point lies on its centre, there is nothing left to do."""
    points = mixture(0, 20, 1, 8, 1.0)[0].repeat(5, 1)
    seen: list[tuple[int, int]] = []
    found = kmeans(points, free(points), 30, on_progress=lambda *at: seen.append(at))
    assert seen[-2][0] < 10 * len(points)
    assert found.inertia < 1e-9
    assert torch.bincount(found.assignment, minlength=30).min() >= 1


def test_sums_of_many_points_keep_their_digits() -> None:
    """Tens of thousands of numbers of one sign, added one after the other in float32, would lose three."""
    points = torch.rand(50_000, 2, generator=torch.Generator().manual_seed(0)) * 1e-3 + 0.1
    centre = kmeans(points, free(points), 1, restarts=1).centres[0]
    torch.testing.assert_close(centre.double(), points.double().mean(0), rtol=5e-7, atol=0)


# Reading the points


def test_inputs_are_not_modified() -> None:
    points, _ = mixture(0, 3, 5, 2, 1.0)
    label = free(points)
    label[0] = 0
    before = points.clone(), label.clone()
    kmeans(points, label, 3)
    assert torch.equal(points, before[0])
    assert torch.equal(label, before[1])


def test_never_more_than_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the sample for the first centres, no step takes hold of more points than fit into a block."""
    points, truth = mixture(0, 6, 120, 8, 0.5)
    label = half_labelled(truth, 2)
    whole = kmeans(points, label, 6)
    monkeypatch.setattr(blocks, "ELEMENTS", 512)
    monkeypatch.setattr(blocks, "FEWEST_ROWS", 16)
    monkeypatch.setattr(kmeans_module, "POOL", 16)
    sizes: list[int] = []
    read_block = Points.block

    def recorded(self: Points, rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return read_block(self, rows)

    monkeypatch.setattr(Points, "block", recorded)
    found = kmeans(points, label, 6)
    assert sizes.count(16 * 6) == 1  # the sample
    assert max(size for size in sizes if size != 16 * 6) == 512 // 8
    assert found.inertia == pytest.approx(whole.inertia, rel=1e-3)


def test_points_in_a_file_that_is_only_mapped(tmp_path: Path) -> None:
    points, truth = mixture(0, 6, 40, 8, 0.5)
    np.save(tmp_path / "points.npy", points.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "points.npy", mmap_mode="c"))
    one, two = (kmeans(p, half_labelled(truth, 3), 6) for p in (points, mapped))
    assert torch.equal(one.centres, two.centres)


def test_other_types_of_numbers() -> None:
    points, truth = mixture(0, 4, 20, 3, 0.1)
    expected = kmeans(points, half_labelled(truth, 2), 4)
    for other in (points.half(), points.bfloat16(), points.double(), points.requires_grad_()):
        found = kmeans(other, half_labelled(truth, 2).int(), 4)
        assert torch.equal(found.assignment, expected.assignment)
        assert not found.centres.requires_grad
        assert found.centres.dtype == (torch.float64 if other.dtype == torch.float64 else torch.float32)


def test_progress_grows_to_its_end() -> None:
    points, truth = mixture(0, 6, 40, 8, 0.5)
    seen: list[tuple[int, int]] = []
    kmeans(points, half_labelled(truth, 2), 6, on_progress=lambda done, total: seen.append((done, total)))
    assert len({total for _, total in seen}) == 1
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    assert 0 < seen[0][0] < seen[0][1]
