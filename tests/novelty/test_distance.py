"""Novelty by distance: the radius against a slow form, ½ at the radius, and classes of one image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.evaluate import novelty_auroc
from debgcd.losses import novelty
from debgcd.novelty import one_vs_all as module
from debgcd.novelty.one_vs_all import DistanceDetector

WIDTH, KNOWN = 6, 3


def images(count: int, noise: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit features around KNOWN directions and two unlabelled ones, and the number of the direction."""
    generator = torch.Generator().manual_seed(seed)
    directions = normalize(torch.randn(KNOWN + 2, WIDTH, generator=generator), dim=1)
    truth = torch.arange(count) % (KNOWN + 2)
    return normalize(directions[truth] + noise * torch.randn(count, WIDTH, generator=generator) / WIDTH**0.5), truth


def fitted(unit: Tensor, label: Tensor, known: int = KNOWN) -> DistanceDetector:
    detector = DistanceDetector(unit.shape[1], known)
    detector.fit(unit, label)
    return detector


def slow_fit(unit: list[list[float]], label: list[int], known: int) -> tuple[float, float]:
    """Radius and spread: each labelled image's distance to the nearest class mean, itself left out of its own."""

    def mean(rows: list[list[float]]) -> list[float]:
        return [sum(column) / len(rows) for column in zip(*rows, strict=True)]

    nearest = []
    for i, y in enumerate(label):
        if y < 0 or label.count(y) == 1:
            continue
        distances = []
        for k in range(known):
            rows = [unit[j] for j in range(len(unit)) if label[j] == k and j != i]
            distances.append(math.dist(unit[i], mean(rows)))
        nearest.append(min(distances))
    middle = sum(nearest) / len(nearest)
    return float(np.quantile(nearest, 0.95)), (sum((d - middle) ** 2 for d in nearest) / len(nearest)) ** 0.5


@pytest.mark.parametrize("block", [4096, 4])
@pytest.mark.parametrize("seed", range(4))
def test_radius_and_spread_against_the_slow_form(seed: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMAGES_PER_BLOCK", block)
    unit, truth = images(40, noise=1.0, seed=seed)
    label = torch.where((truth < KNOWN) & (torch.arange(40) % 3 > 0), truth, -1)
    label[(label == 2).nonzero()[1:, 0]] = -1  # a class of one image has a mean, but no distance of its own
    detector = fitted(unit, label)
    radius, spread = slow_fit(unit.tolist(), label.tolist(), KNOWN)
    assert float(detector.radius) == pytest.approx(radius, rel=1e-4)
    assert float(detector.spread) == pytest.approx(spread, rel=1e-4)


def test_novelty_is_a_half_at_the_radius_and_grows_with_the_distance_to_the_nearest_class() -> None:
    detector = DistanceDetector(2, 1)
    detector.centres.copy_(torch.tensor([[1.0, 0.0]]))
    detector.radius.fill_(1.0)
    detector.spread.fill_(0.25)
    angles = torch.tensor([0.0, 30, 60, 90, 180]) * math.pi / 180
    x = 7 * torch.stack([angles.cos(), angles.sin()], 1)  # the length of a feature does not matter
    s = novelty(detector(x)).tolist()
    for angle, found in zip(angles.tolist(), s, strict=True):
        distance = 2 * math.sin(angle / 2)
        assert found == pytest.approx(1 / (1 + math.exp((1.0 - distance) / 0.25)), abs=1e-5)
    assert s[2] == pytest.approx(0.5, abs=1e-5)  # 60 degrees: a distance of 1
    two = DistanceDetector(2, 2)
    two.centres.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    two.radius.copy_(detector.radius)
    two.spread.copy_(detector.spread)
    near = novelty(two(x)).tolist()
    assert near[:4] == pytest.approx(s[:4], abs=1e-6) and near[4] == pytest.approx(s[0], abs=1e-6)


def test_new_images_score_above_known_ones() -> None:
    unit, truth = images(200)
    label = torch.where((truth < KNOWN) & (torch.arange(200) < 100), truth, -1)
    s = novelty(fitted(unit, label)(unit))[100:]
    assert novelty_auroc(s.numpy(), (truth[100:] >= KNOWN).numpy()) > 0.95
    assert (s[truth[100:] < KNOWN] < 0.5).float().mean() > 0.8


def test_only_labelled_images_count() -> None:
    unit, truth = images(60)
    label = torch.where((truth < KNOWN) & (torch.arange(60) < 30), truth, -1)
    other = torch.where((label >= 0)[:, None], unit, unit.roll(1, 1))
    one, two = fitted(unit, label), fitted(other, label)
    assert all(torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("known", [1, 3])
def test_one_image_a_class(known: int) -> None:
    """Nothing tells how large a class is: ½ lies half way to an unrelated direction."""
    unit = torch.eye(WIDTH)
    label = torch.where(torch.arange(WIDTH) < known, torch.arange(WIDTH), -1)
    detector = fitted(unit, label, known)
    s = novelty(detector(unit))
    assert s.isfinite().all()
    assert (s[:known] < 0.2).all() and (s[known:] > 0.8).all()
    half = torch.tensor([[1 - 0.25, (1 - 0.75**2) ** 0.5, *[0.0] * (WIDTH - 2)]])  # √½ from the first axis
    assert novelty(fitted(unit, torch.where(label == 0, 0, -1), 1)(half)).item() == pytest.approx(0.5, abs=1e-5)


def test_copies_of_one_image_and_features_that_say_nothing() -> None:
    unit = torch.eye(WIDTH)[torch.tensor([0, 0, 0, 1, 1, 2])]
    label = torch.tensor([0, 0, -1, 1, 1, -1])
    s = novelty(fitted(unit, label, 2)(unit))
    assert s.isfinite().all()
    assert s[5] > 0.99 and (s[:5] - 0.5).abs().max() < 0.1
    nothing = torch.zeros(6, WIDTH)
    torch.testing.assert_close(novelty(fitted(nothing, label, 2)(nothing)), torch.full((6,), 0.5))


def test_nothing_of_it_is_trained() -> None:
    assert not list(DistanceDetector(WIDTH, KNOWN).parameters())
