"""The scatter within known classes taken out: against a slow form, and for what it is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from debgcd.cluster import prototypes as module
from debgcd.cluster.prototypes import SHRINKAGE, prototypes, whiten
from debgcd.evaluate import clustering_accuracy


def slow_scatter(points: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Covariance within classes by loops, shrunk towards a round one."""
    total, free = np.zeros((points.shape[1],) * 2), 0
    for c in sorted(set(label[label >= 0])):
        own = points[label == c]
        for row in own:
            total += np.outer(row - own.mean(0), row - own.mean(0))
        free += len(own) - 1
    total /= free
    return (1 - SHRINKAGE) * total + SHRINKAGE * np.trace(total) / len(total) * np.eye(len(total))


@pytest.mark.parametrize("seed", range(5))
def test_the_shrunk_scatter_becomes_the_identity(seed: int) -> None:
    random = np.random.default_rng(seed)
    points = random.normal(size=(60, 4)) @ random.normal(size=(4, 4))
    label = np.where(random.random(60) < 0.6, random.integers(0, 3, 60), -1)
    label[:3] = [0, 1, 2]
    found = whiten(torch.from_numpy(points), torch.from_numpy(label)).numpy()
    used, *_ = np.linalg.lstsq(points, found, rcond=None)  # the linear map
    np.testing.assert_allclose(points @ used, found, atol=1e-9)
    np.testing.assert_allclose(used, used.T, atol=1e-9)
    np.testing.assert_allclose(used @ slow_scatter(points, label) @ used, np.eye(4), atol=1e-9)


@pytest.mark.parametrize("label", [[-1] * 6, [0, 1, 2, -1, -1, -1]])
def test_without_two_images_of_a_class_points_stay(label: list[int]) -> None:
    points = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(whiten(points, torch.tensor(label)), points)


def test_copies_of_one_image_in_each_class_leave_points_as_they_are() -> None:
    points = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1], [3, 2]])
    assert torch.equal(whiten(points, torch.tensor([0, 0, 1, 1, -1])), points)


def noisy_axis() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Eight classes at the corners of a cube, four labelled, and one axis of large noise that says nothing."""
    random = torch.Generator().manual_seed(0)
    truth = torch.arange(400) % 8
    corners = torch.tensor([[(c >> i & 1) * 2.0 - 1 for i in range(3)] for c in range(8)])
    signal = corners[truth] + 0.3 * torch.randn(400, 3, generator=random)
    points = torch.cat([signal, 4 * torch.randn(400, 1, generator=random)], 1)
    label = torch.where((truth < 4) & (torch.arange(400) % 3 == 0), truth, -1)
    return points, label, truth


def test_new_classes_are_found_though_most_variance_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    points, label, truth = noisy_axis()

    def accuracy() -> float:
        # prototypes are directions of the points as they are, so the clustering behind them is what is judged
        found: list[torch.Tensor] = []
        real = module.kmeans
        monkeypatch.setattr(module, "kmeans", lambda *a, **k: found.append(real(*a, **k)) or found[-1])
        prototypes(points, label, 8)
        free = label < 0
        monkeypatch.setattr(module, "kmeans", real)
        return clustering_accuracy(truth[free], found[0].assignment[free], 4).all

    with_it = accuracy()
    monkeypatch.setattr(module, "whiten", lambda points, label: points)
    assert with_it > 0.9 > 0.7 > accuracy()
