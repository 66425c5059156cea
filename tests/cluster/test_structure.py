"""What features say of categories, against its definition written slowly."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from debgcd.cluster import structure as module
from debgcd.cluster.structure import (
    CLUSTERINGS,
    NEAR,
    Structure,
    category_means,
    kept_together,
    nearness,
    separation,
    structure,
    together,
)


def random_structure(seed: int, n: int = 40) -> Structure:
    random = np.random.default_rng(seed)
    point = random.normal(size=(n, 5)).astype(np.float32)
    near = np.stack([random.permutation(np.delete(np.arange(n), i))[:6] for i in range(n)])
    return Structure(np.arange(n), point, point, random.integers(0, 7, (3, n)), near)


@pytest.mark.parametrize("seed", range(3))
def test_together_counts_pairs(seed: int) -> None:
    found, k = random_structure(seed), 5
    category = np.random.default_rng(seed + 9).integers(0, k - 1, 40)  # the last category is empty
    slow = np.zeros((k, k))
    for a, b in product(range(k), repeat=2):
        pairs = [(i, j) for i in range(40) for j in range(40) if i != j and (category[i], category[j]) == (a, b)]
        if pairs:
            slow[a, b] = np.mean([[cluster[i] == cluster[j] for cluster in found.cluster] for i, j in pairs])
    assert together(found, category, k) == pytest.approx(slow)


@pytest.mark.parametrize("seed", range(3))
def test_an_image_is_kept_together_with_others_of_its_category(seed: int) -> None:
    found, k = random_structure(seed), 6
    category = np.random.default_rng(seed + 9).integers(0, k - 2, 40)
    category[0] = k - 2  # alone; the last category is empty
    slow = np.zeros(40)
    for i in range(40):
        others = [j for j in range(40) if j != i and category[j] == category[i]]
        if others:
            slow[i] = np.mean([[cluster[i] == cluster[j] for j in others] for cluster in found.cluster])
    assert kept_together(found, category, k) == pytest.approx(slow)
    per_category = [kept_together(found, category, k)[category == c].mean() for c in range(k - 2)]
    assert per_category == pytest.approx(together(found, category, k).diagonal()[: k - 2])


@pytest.mark.parametrize("seed", range(3))
def test_nearness_counts_the_nearest(seed: int) -> None:
    found, k = random_structure(seed), 4
    category = np.random.default_rng(seed).integers(0, k - 1, 40)
    slow = np.zeros((k, k))
    for a, b in product(range(k), repeat=2):
        mine = [i for i in range(40) if category[i] == a]
        if mine:
            slow[a, b] = np.mean([[category[j] == b for j in found.near[i]] for i in mine])
    assert nearness(found, category, k) == pytest.approx(slow)


@pytest.mark.parametrize("seed", range(3))
def test_separation_is_how_much_nearer_the_own_mean_is(seed: int) -> None:
    found, k = random_structure(seed), 4
    category = np.random.default_rng(seed).integers(0, k - 1, 40)
    means, slow = category_means(found.point, category, k), np.zeros(k)
    for c in range(k - 1):
        shares = []
        for i in np.flatnonzero(category == c):
            far = [float(np.linalg.norm(found.point[i] - mean)) for mean in means]
            other = min(far[d] for d in range(k - 1) if d != c)
            shares.append(max(0.0, (other - far[c]) / other))
        slow[c] = np.mean(shares)
    assert separation(found, category, k) == pytest.approx(slow, abs=1e-5)


def test_one_category_is_separate() -> None:
    found = random_structure(0)
    assert separation(found, np.zeros(40, np.int64), 1).tolist() == [1.0]


def groups(sizes: list[int], seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Points around far centres, and which centre."""
    random = np.random.default_rng(seed)
    of = np.repeat(np.arange(len(sizes)), sizes)
    return torch.from_numpy(np.eye(8)[of] * 5 + random.normal(size=(len(of), 8)) * 0.3).float(), of


def test_groups_are_found_together_and_near() -> None:
    feature, of = groups([30, 30, 30, 30])
    label = np.where((np.arange(len(of)) % 2 == 0) & (of < 2), of, -1)
    found = structure(feature, label, of, 4)
    assert found.row.tolist() == list(range(120)) and found.cluster.shape == (len(CLUSTERINGS), 120)
    assert found.near.shape == (120, NEAR) and not (found.near == np.arange(120)[:, None]).any()
    assert (nearness(found, of, 4).diagonal() > 0.9).all() and (together(found, of, 4).diagonal() > 0.5).all()
    again = structure(feature, label, of, 4)
    assert all(np.array_equal(value, vars(again)[name]) for name, value in vars(found).items())


def test_of_many_images_a_sample_has_some_of_each_category(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 40)
    feature, of = groups([100, 60, 20, 4])
    found = structure(feature, np.where(np.arange(len(of)) % 5 == 0, np.minimum(of, 1), -1), of, 4)
    assert len(found.row) == 40 and (np.diff(found.row) > 0).all()
    sizes = np.bincount(of[found.row], minlength=4)
    assert sizes.min() >= 3 and sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("count", [2, 3])
def test_very_few_images(count: int) -> None:
    feature, of = groups([count])
    found = structure(feature, np.full(count, -1), of, 1)
    assert found.near.shape == (count, count - 1)
    assert together(found, of, 1).tolist()[0][0] <= 1 and nearness(found, of, 1).tolist() == [[1.0]]
