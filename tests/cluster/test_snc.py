"""Selective neighbour clustering against a slow form, and what CiPR relies on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from debgcd.cluster.graphs import levels, merged_to


def clouds(
    seed: int, classes: int = 6, each: int = 12, known: int = 3, spread: float = 0.7
) -> tuple[Tensor, Tensor, Tensor]:
    """Points around random directions, their labels (half of the known classes), and the truth."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randperm(classes * each, generator=rng) % classes
    centres = 1.5 * torch.randn(classes, 10, generator=rng)
    points = centres[truth] + spread * torch.randn(len(truth), 10, generator=rng)
    label = torch.where((truth < known) & (torch.rand(len(truth), generator=rng) < 0.5), truth, -1)
    label[[int((truth == i).nonzero()[0]) for i in range(known)]] = torch.arange(known)
    return torch.nn.functional.normalize(points, dim=1), label, truth


def groups(partition: np.ndarray | list[int]) -> set[frozenset[int]]:
    found: dict[int, set[int]] = {}
    for i, cluster in enumerate(partition):
        found.setdefault(int(cluster), set()).add(i)
    return {frozenset(members) for members in found.values()}


Rows = list[list[float]]


def cosine(a: list[float], b: list[float]) -> float:
    lengths = math.sqrt(math.fsum(x * x for x in a) * math.fsum(x * x for x in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / lengths


def slow_links(rows: Rows, label: list[int]) -> list[int]:
    """Every point links to its nearest neighbour; a labelled one to the next of its chain of at most ceil(sqrt(n))."""
    n = len(rows)
    link = [max((j for j in range(n) if j != i), key=lambda j, i=i: cosine(rows[i], rows[j])) for i in range(n)]
    for y in {y for y in label if y >= 0}:
        own = [i for i in range(n) if label[i] == y]
        longest = math.ceil(math.sqrt(len(own)))
        while own:
            left, own = own[:longest], own[longest:]
            at = left.pop(0)
            while left:
                following = max(left, key=lambda j, at=at: cosine(rows[at], rows[j]))
                left.remove(following)
                link[at] = at = following
            link[at] = at
    return link


def slow_step(rows: Rows, label: list[int], limit: float) -> tuple[list[int], float]:
    """Pairs with a common point among themselves and what they link to; a distance counts once per common point."""
    n, link = len(rows), slow_links(rows, label)
    cluster, farthest = list(range(n)), 0.0
    joined = []
    for i in range(n):
        for j in range(i):
            common = sum(a == b for a in (i, link[i]) for b in (j, link[j]))
            if common:
                distance = common * (1 - cosine(rows[i], rows[j]))
                farthest = max(farthest, distance)
                joined += [(i, j)] if distance <= limit else []
    for _ in range(n):  # the smallest number reaches all of a component
        for i, j in joined:
            cluster[i] = cluster[j] = min(cluster[i], cluster[j])
    order = sorted(set(cluster))
    return [order.index(c) for c in cluster], farthest


def slow_means(rows: Rows, cluster: list[int]) -> Rows:
    parts = [[row for row, c in zip(rows, cluster, strict=True) if c == wanted] for wanted in range(max(cluster) + 1)]
    return [[math.fsum(column) / len(part) for column in zip(*part, strict=True)] for part in parts]


def slow_classes(cluster: list[int], label: list[int]) -> list[int]:
    return [max(y for y, c in zip(label, cluster, strict=True) if c == wanted) for wanted in range(max(cluster) + 1)]


def slow_levels(rows: Rows, label: list[int]) -> list[list[int]]:
    cluster, limit, found = list(range(len(rows))), math.inf, []
    while True:
        means = slow_means(rows, cluster)
        parts, farthest = slow_step(means, slow_classes(cluster, label), limit)
        count = max(parts) + 1
        if count == len(means) or count == 1:
            return found
        cluster = [parts[c] for c in cluster]
        limit = farthest if limit == math.inf else limit
        found.append(cluster)


def slow_merge(rows: Rows, label: list[int], k: int) -> list[int]:
    """From the coarsest level with k clusters or more, the shortest link of all is joined until k are left."""
    levels = [list(range(len(rows))), *slow_levels(rows, label)]
    cluster = [level for level in levels if max(level) + 1 >= k][-1]
    while max(cluster) + 1 > k:
        means = slow_means(rows, cluster)
        link = slow_links(means, slow_classes(cluster, label))
        i = max((i for i in range(len(link)) if link[i] != i), key=lambda i: cosine(means[i], means[link[i]]))
        a, b = sorted((i, link[i]))
        cluster = [a if c == b else c - (c > b) for c in cluster]
    return cluster


@pytest.mark.parametrize("spread", [0.7, 1.2])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("unit", [True, False])
def test_all_levels_and_the_merge_to_k_are_those_of_the_slow_form(seed: int, spread: float, unit: bool) -> None:
    """Points of any length: the mean of a cluster is that of its points, not of their directions."""
    points, label, _ = clouds(seed, spread=spread)
    if not unit:
        points = points * torch.randn(len(points), 1, generator=torch.Generator().manual_seed(seed)).exp()
    rows, y = points.double().tolist(), label.tolist()
    slow = slow_levels(rows, y)
    assert [groups(level) for level in levels(points.double(), label)] == [groups(level) for level in slow]
    for k in (3, 6, 11):
        assert groups(merged_to(points.double(), label, k)) == groups(slow_merge(rows, y, k))


@pytest.mark.parametrize("seed", range(12))
def test_many_joins_one_after_another_are_those_of_the_slow_form(seed: int) -> None:
    """Points without clusters: after each join, links to and from the joined cluster turn elsewhere."""
    rng = torch.Generator().manual_seed(seed)
    points = torch.randn(60, 3, generator=rng, dtype=torch.float64)
    points /= points.norm(dim=1, keepdim=True)
    label = torch.where(torch.rand(60, generator=rng) < 0.2, torch.randint(0, 2, (60,), generator=rng), -1)
    for k in (2, 7, 12):
        assert groups(merged_to(points, label, k)) == groups(slow_merge(points.tolist(), label.tolist(), k))


def test_the_limit_of_the_first_level_keeps_far_clusters_apart() -> None:
    """Four pairs: the nearest two of them are farther apart than the points of any pair, so that they stay four."""
    pairs = torch.tensor([[1.0, 0.00], [1.0, 0.01], [1.0, 0.05], [1.0, 0.06]])
    found = levels(torch.cat([pairs, -pairs]), torch.full((8,), -1))
    assert [int(level.max()) + 1 for level in found] == [4]


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
def test_merged_to_k_no_two_known_classes_are_one(k: int) -> None:
    points, label, truth = clouds(1)
    found = merged_to(points, label, k)
    assert sorted(set(found.tolist())) == list(range(k))
    for y in range(3):
        clusters = found[(label == y).numpy()]
        assert not set(clusters.tolist()) & set(found[((label >= 0) & (label != y)).numpy()].tolist())
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
