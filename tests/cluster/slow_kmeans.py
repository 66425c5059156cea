"""Semi-supervised k-means written from its description (Vaze et al. 2022), with loops, in float64."""

from __future__ import annotations

import math

Point = list[float]


def squared(a: Point, b: Point) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def mean(points: list[Point]) -> Point:
    return [sum(axis) / len(points) for axis in zip(*points, strict=True)]


def nearest(points: list[Point], label: list[int], centres: list[Point]) -> list[int]:
    """A labelled point to its class, another one to the nearest centre."""
    chosen = []
    for point, fixed in zip(points, label, strict=True):
        distances = [squared(point, centre) for centre in centres]
        chosen.append(fixed if fixed >= 0 else distances.index(min(distances)))
    return chosen


def assign(points: list[Point], label: list[int], centres: list[Point]) -> list[int]:
    """The same, and an empty cluster gets the worst served point."""
    chosen = nearest(points, label, centres)
    for empty in [k for k in range(len(centres)) if k not in chosen]:
        costs = [
            -1.0 if fixed >= 0 or chosen.count(k) == 1 else squared(point, centres[k])
            for point, fixed, k in zip(points, label, chosen, strict=True)
        ]
        if max(costs) >= 0:
            worst = costs.index(max(costs))
            chosen[worst] = empty
            centres = [points[worst] if k == empty else centre for k, centre in enumerate(centres)]
    return chosen


def average(points: list[Point], chosen: list[int], centres: list[Point]) -> list[Point]:
    moved = []
    for k, centre in enumerate(centres):
        mine = [point for point, cluster in zip(points, chosen, strict=True) if cluster == k]
        moved.append(mean(mine) if mine else centre)
    return moved


def lloyd(
    points: list[Point], label: list[int], centres: list[Point], iterations: int
) -> tuple[list[int], list[Point], float]:
    """Clusters, centres and inertia after at most so many iterations; every free point is with its nearest centre."""
    before: list[int] = []
    for _ in range(iterations):
        chosen = assign(points, label, centres)
        if chosen == before:
            break
        centres, before = average(points, chosen, centres), chosen
    else:
        before = nearest(points, label, centres)
    return before, centres, sum(squared(point, centres[k]) for point, k in zip(points, before, strict=True))


def plus_plus(
    points: list[Point], label: list[int], given: dict[int, Point], draws: dict[int, list[float]]
) -> dict[int, Point]:
    """Greedy k-means++ over the free points: `draws` holds, for each cluster to find, the random numbers of its candidates."""
    free = [point for point, fixed in zip(points, label, strict=True) if fixed < 0]
    centres = dict(given)
    for cluster, numbers in draws.items():
        chance = [min(squared(point, centre) for centre in centres.values()) if centres else 1.0 for point in free]
        if not sum(chance):
            chance = [1.0] * len(free)
        best, lowest = free[0], math.inf
        for number in numbers:
            passed, i = 0.0, 0
            while i < len(free) - 1 and passed + chance[i] <= number * sum(chance):
                passed, i = passed + chance[i], i + 1
            left = sum(min(squared(p, centre) for centre in [*centres.values(), free[i]]) for p in free)
            if left < lowest:
                best, lowest = free[i], left
        centres[cluster] = best
    return centres
