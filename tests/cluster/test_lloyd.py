"""Lloyd's iterations from a given start: against the slow form and scikit-learn, in any blocks, with empty clusters."""

from __future__ import annotations

import numpy as np
import pytest
import slow_kmeans
import torch
from clouds import free, half_labelled, mixture
from sklearn.cluster import KMeans
from torch import Tensor

from debgcd.cluster import lloyd as blocks
from debgcd.cluster.lloyd import Finished, fix, lloyd, one_thread_each, read


def run(points: Tensor, label: Tensor, starts: Tensor, iterations: int = 300) -> list[Finished]:
    """All restarts, in their order, with centres where they are (not relative to the middle)."""
    seen = read(points)
    fixed, _ = fix(seen, label, starts.shape[1])
    with one_thread_each(points.device) as each:
        found = lloyd(seen, fixed, starts - seen.middle, iterations=iterations, each=each, advance=lambda passes: None)
        ended = sorted(found, key=lambda one: one.restart)
    return [Finished(one.restart, one.centres + seen.middle, one.chosen) for one in ended]


def some_starts(points: Tensor, restarts: int, k: int, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.stack([points[rng.choice(len(points), k, replace=False)] for _ in range(restarts)])


@pytest.mark.parametrize("known", [0, 3])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("iterations", [1, 2, 100])
def test_as_the_slow_form_from_the_same_start(seed: int, known: int, iterations: int) -> None:
    """Seven restarts at once, which end at different times, each as if it were alone."""
    points, truth = mixture(seed, 9, 12, 3, 0.8)
    points = points.double()
    label = half_labelled(truth, known)
    starts = some_starts(points, 7, 9, seed)
    ended = run(points, label, starts, iterations)
    assert [one.restart for one in ended] == list(range(7))
    for one, start in zip(ended, starts, strict=True):
        chosen, centres, _ = slow_kmeans.lloyd(points.tolist(), label.tolist(), start.tolist(), iterations)
        assert one.chosen.tolist() == [k for k, fixed in zip(chosen, label.tolist(), strict=True) if fixed < 0]
        torch.testing.assert_close(one.centres, torch.tensor(centres, dtype=torch.float64))


@pytest.mark.parametrize(
    ("clusters", "size", "width", "spread"), [(5, 40, 2, 0.5), (12, 30, 8, 1.0), (20, 25, 64, 2.0), (3, 300, 4, 3.0)]
)
def test_as_scikit_learn_from_the_same_start(clusters: int, size: int, width: int, spread: float) -> None:
    points, _ = mixture(clusters, clusters, size, width, spread)
    starts = some_starts(points, 3, clusters, seed=1)
    for one, start in zip(run(points, free(points), starts), starts, strict=True):
        other = KMeans(clusters, init=start.numpy(), n_init=1, tol=0, max_iter=300).fit(points.numpy())
        assert 2 < other.n_iter_ < 300
        assert one.chosen.tolist() == other.labels_.tolist()
        torch.testing.assert_close(one.centres, torch.from_numpy(other.cluster_centers_), rtol=1e-5, atol=1e-5)


def test_blocks_of_any_size_and_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    points, truth = mixture(0, 12, 20, 6, 1.0)
    label = half_labelled(truth, 4)
    starts = some_starts(points, 4, 12, seed=0)
    whole = run(points, label, starts)
    monkeypatch.setattr(blocks, "ELEMENTS", 1)
    threads = torch.get_num_threads()
    for rows in (7, 100):
        monkeypatch.setattr(blocks, "FEWEST_ROWS", rows)
        for number in (1, 3):
            torch.set_num_threads(number)
            try:
                pieces = run(points, label, starts)
                assert torch.get_num_threads() == number
            finally:
                torch.set_num_threads(threads)
            for one, other in zip(whole, pieces, strict=True):
                assert torch.equal(one.chosen, other.chosen)
                torch.testing.assert_close(one.centres, other.centres)


def test_sums_go_on_over_any_number_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    points, truth = mixture(0, 5, 40, 3, 1.0)
    label, starts = half_labelled(truth, 2), some_starts(points, 2, 5, seed=0)
    whole = run(points, label, starts)
    monkeypatch.setattr("debgcd.cluster.lloyd.SUMMED", 7)
    for one, other in zip(whole, run(points, label, starts), strict=True):
        assert torch.equal(one.chosen, other.chosen)
        torch.testing.assert_close(one.centres, other.centres)


def test_points_far_from_the_origin_and_near_each_other() -> None:
    """Expanded squares of float32 would lose every difference: these are of size 1 at a distance of 10 000."""
    points, _ = mixture(3, 8, 30, 5, 0.5)
    points = (64 * points).round() / 64  # so that the shift is exact
    starts = some_starts(points, 3, 8, seed=0)
    near, far = run(points, free(points), starts), run(points + 8192, free(points), starts + 8192)
    for one, other in zip(near, far, strict=True):
        assert torch.equal(one.chosen, other.chosen)


def test_an_empty_cluster_takes_the_point_that_is_worst_served() -> None:
    """Three centres, one of them far from everything: it gets the outlier, which a plain step would leave to centre 1."""
    points = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [9.0]])
    start = torch.tensor([[[0.1], [5.0], [1000.0]]])
    (found,) = run(points, free(points), start, iterations=1)
    assert found.chosen.tolist() == [0, 0, 0, 1, 1, 2]
    assert found.centres[2].item() == pytest.approx(9.0)
    label = torch.tensor([-1, -1, -1, -1, -1, 1])  # the outlier is labelled, so the next worst has to go
    (found,) = run(points, label, start, iterations=1)
    assert found.chosen.tolist() in ([2, 0, 0, 1, 1], [0, 0, 2, 1, 1], [0, 0, 0, 1, 2])


@pytest.mark.parametrize("known", [0, 2])
@pytest.mark.parametrize("seed", range(8))
def test_many_empty_clusters_as_in_the_slow_form(seed: int, known: int) -> None:
    """Most centres start where no point is."""
    points, truth = mixture(seed, 4, 9, 2, 0.7)
    points = points.double()
    label = half_labelled(truth, known)
    starts = some_starts(points, 3, 8, seed)
    starts[:, 3:] += torch.arange(1, 6, dtype=torch.float64)[:, None] * 100
    for iterations in (1, 2, 50):
        for one, start in zip(run(points, label, starts, iterations), starts, strict=True):
            chosen, centres, _ = slow_kmeans.lloyd(points.tolist(), label.tolist(), start.tolist(), iterations)
            assert one.chosen.tolist() == [k for k, fixed in zip(chosen, label.tolist(), strict=True) if fixed < 0]
            torch.testing.assert_close(one.centres, torch.tensor(centres, dtype=torch.float64))


def test_no_cluster_is_emptied_to_fill_another() -> None:
    points = torch.tensor([[0.0], [10.0], [11.0]])
    start = torch.tensor([[[0.0], [10.4], [500.0]]])  # the point at 0 is served at no cost, the other two are a pair
    (found,) = run(points + torch.tensor([[-3.0], [0.0], [0.0]]), free(points), start)  # now it is worst, but alone
    assert sorted(found.chosen.tolist()) == [0, 1, 2]
