"""Selective neighbour clustering against a slow form, and what CiPR relies on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from debgcd.cluster.snc import levels, merged_to


def clouds(seed: int, classes: int = 6, each: int = 20, known: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Points around random directions, their labels (half of the known classes), and the truth."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randperm(classes * each, generator=rng) % classes
    centres = 1.5 * torch.randn(classes, 10, generator=rng)
    points = centres[truth] + 0.7 * torch.randn(len(truth), 10, generator=rng)
    label = torch.where((truth < known) & (torch.rand(len(truth), generator=rng) < 0.5), truth, -1)
    label[[int((truth == i).nonzero()[0]) for i in range(known)]] = torch.arange(known)
    return torch.nn.functional.normalize(points, dim=1), label, truth


def groups(partition: np.ndarray | list[int]) -> set[frozenset[int]]:
    found: dict[int, set[int]] = {}
    for i, cluster in enumerate(partition):
        found.setdefault(int(cluster), set()).add(i)
    return {frozenset(members) for members in found.values()}


def slow_first_level(points: Tensor, label: list[int]) -> set[frozenset[int]]:
    """Every point links to its nearest neighbour; a labelled one to the next of its chain of at most ceil(sqrt(n))."""
    rows = points.double().tolist()
    n = len(rows)

    def cosine(i: int, j: int) -> float:
        return math.fsum(a * b for a, b in zip(rows[i], rows[j], strict=True))

    link = {i: max((j for j in range(n) if j != i), key=lambda j, i=i: cosine(i, j)) for i in range(n)}
    for y in {y for y in label if y >= 0}:
        own = [i for i in range(n) if label[i] == y]
        longest = math.ceil(math.sqrt(len(own)))
        while own:
            left, own = own[:longest], own[longest:]
            at = left.pop(0)
            while left:
                following = max(left, key=lambda j, at=at: cosine(at, j))
                left.remove(following)
                link[at] = at = following
            link[at] = at
    cluster = list(range(n))
    for _ in range(n):  # the smallest number reaches all of a component
        for i, j in link.items():
            cluster[i] = cluster[j] = min(cluster[i], cluster[j])
    return groups(cluster)


@pytest.mark.parametrize("seed", range(6))
def test_the_first_level_is_that_of_the_slow_form(seed: int) -> None:
    points, label, _ = clouds(seed)
    assert groups(levels(points, label)[0]) == slow_first_level(points, label.tolist())


@pytest.mark.parametrize("seed", range(6))
def test_each_level_joins_whole_clusters_and_never_two_known_classes(seed: int) -> None:
    points, label, _ = clouds(seed)
    found = levels(points, label)
    assert len(found) > 1
    for fine, coarse in zip(found, found[1:], strict=False):
        assert len(set(zip(fine.tolist(), coarse.tolist(), strict=True))) == fine.max() + 1 > coarse.max() + 1
    for partition in found:
        for members in groups(partition):
            assert len({int(label[i]) for i in members} - {-1}) <= 1


@pytest.mark.parametrize("k", [3, 4, 6, 9, 40])
def test_merged_to_k_the_known_classes_come_first(k: int) -> None:
    points, label, truth = clouds(1)
    found = merged_to(points, label, k)
    assert sorted(set(found.tolist())) == list(range(k))
    labelled = (label >= 0).numpy()
    assert (found[labelled] == label.numpy()[labelled]).all()
    if k == 6:
        new = (truth >= 3).numpy()
        assert len(set(zip(found[new].tolist(), truth.numpy()[new].tolist(), strict=True))) < 3 + 5


def test_two_points_and_all_labelled() -> None:
    points = torch.eye(2)
    assert levels(points, torch.tensor([-1, -1]))[0].tolist() == [0, 0]
    assert merged_to(points, torch.tensor([0, 1]), 2).tolist() == [0, 1]


def test_the_first_two_levels_have_as_many_clusters_as_the_authors_function() -> None:
    """Numbers of the public code of CiPR (MIT licence) on these points."""
    index = torch.arange(60.0)
    points = torch.stack([torch.sin((j + 1.3) * (index % 6) + 0.05 * j * index) for j in range(8)], 1)
    points = torch.nn.functional.normalize(points + 0.3 * torch.sin(index[:, None] * torch.arange(1.0, 9.0)), dim=1)
    label = torch.where((index % 6 < 3) & (index % 4 < 2), index % 6, -1).long()
    found = levels(points, label)
    assert [int(level.max()) + 1 for level in found[:2]] == [14, 4]
