"""Splits and merges that the features suggest, those that would put most images right first.

Two new categories may be one; a category may be two: its halves by 2-means. What is measured of each, in `merges` and `splits`,
gives a probability; its weights are fitted, and the suggestions measured, by `benchmarks/quality/trust.py`. A category is in one
suggestion at most, so that all of them can be accepted. They change K: they are shown only where K was estimated, because
half of those that a right K leaves are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from debgcd.cluster.kmeans import kmeans
from debgcd.cluster.structure import Structure, category_means, together
from debgcd.report.trust import Floats, Ids, parts_of, rows_per_category, trust
from debgcd.review.state import OPEN, REJECTED
from debgcd.run.categories import Category

LIKELY = {"merge": 0.8, "split": 0.6}  # least probability of a suggestion
FEWEST = 3  # unlabelled images of a category that is merged, and of each part of a split
RESTARTS = 4

MERGE = {"start": -0.317, "together": 4.579, "cosine": 2.118, "lead": 2.447, "size": -1.194}
SPLIT = {"start": 0.549, "neighbours": -2.774, "cosine": -3.519, "known": 1.643, "size": 0.613}


@dataclass(frozen=True)
class Suggestion:
    """Merge the second category into the first; or split the first: `images` begin a category of their own."""

    kind: str  # "merge" or "split"
    categories: list[int]
    images: Ids  # of a split, the unlabelled images that leave; numbered as the N images
    probability: float
    gain: float  # images that are expected to be put right


Halves = list[tuple[Suggestion, dict[str, float]]]


def suggestions(
    found: Structure, category: Ids, label: Ids, status: Sequence[str], halves: Halves | None = None
) -> list[Suggestion]:
    """Of N images in K categories, known classes first; label (N,) in 0..M-1 or -1: labelled images stay where they are.

    status: (K,) of a review. What a person accepted or named is not split, and merged only with what is open; what was rejected
    is left alone. halves: see `splits`, if they are known.
    """
    k, known = len(status), int(label.max()) + 1
    halves = splits(found, category, label, k) if halves is None else halves
    candidates = [one for one, _ in (*merges(found, category, label, k), *halves)]
    kept, used = [], set[int]()
    for one in sorted(candidates, key=lambda each: -each.gain):
        changes = [c for c in one.categories if one.kind == "split" or c >= known]
        asked = any(status[c] == OPEN for c in changes) and all(status[c] != REJECTED for c in one.categories)
        if one.probability >= LIKELY[one.kind] and asked and not used & set(one.categories):
            kept.append(one)
            used |= set(one.categories)
    return kept


def trust_of(
    found: Structure, category: Ids, label: Ids, k: int, halves: Halves | None = None
) -> tuple[Floats, dict[str, Floats]]:
    """Trust (K,) and its parts; at most 1 - p · the smaller part's share for a category that with probability p is two.

    halves: see `splits`, if they are known.
    """
    parts = parts_of(found, category, k)
    score = trust(parts, int(label.max()) + 1)
    for one, _ in splits(found, category, label, k) if halves is None else halves:
        if one.probability >= LIKELY["split"]:
            (c,), leaves = one.categories, np.isin(found.row, one.images)
            share = leaves.sum() / max(1, int(((category == c) & (label < 0))[found.row].sum()))
            score[c] = min(score[c], 1 - one.probability * min(share, 1 - share))
    return score, parts


def sentence(one: Suggestion, categories: Sequence[Category], size: Ids) -> str:
    """A suggestion in words; size: (K,) unlabelled images of each category."""
    first, *second = (categories[c].name for c in one.categories)
    if second:
        return f"{first} and {second[0]} may be one: {size[one.categories[0]]} + {size[one.categories[1]]} images"
    leave = len(one.images)
    return f"{first} looks like two: {size[one.categories[0]] - leave} + {leave} images"


def merges(found: Structure, category: Ids, label: Ids, k: int) -> list[tuple[Suggestion, dict[str, float]]]:
    """Every pair of new categories, with its evidence."""
    own, known = category[found.row], int(label.max()) + 1
    size = np.bincount(category[label < 0], minlength=k)
    usual, same = _usual(size), together(found, own, k)
    means = _unit(np.nan_to_num(category_means(found.shifted, own, k)))
    cosine = means @ means.T
    pairs = []
    for a, b in combinations(np.flatnonzero(size >= FEWEST).tolist(), 2):
        if a < known:
            continue
        others = np.delete(cosine[[a, b]], [a, b], axis=1)
        evidence = {
            "together": float(same[a, b] / max(1e-3, min(same[a, a], same[b, b]))),
            "cosine": float(cosine[a, b]),
            "lead": float(cosine[a, b] - others.max(initial=0.0)),  # over the nearest other category of either
            "size": float(size[a] + size[b]) / usual,
        }
        p = probability(MERGE, evidence)
        pairs.append((Suggestion("merge", [a, b], np.empty(0, np.int64), p, p * min(size[a], size[b])), evidence))
    return pairs


def splits(found: Structure, category: Ids, label: Ids, k: int) -> Halves:
    """Every category in two parts, with its evidence."""
    own, known, free = category[found.row], int(label.max()) + 1, label[found.row] < 0
    size = np.bincount(category[label < 0], minlength=k)
    usual, halves = _usual(size), []
    for c, rows in enumerate(rows_per_category(own, k)):
        if int(free[rows].sum()) < 2 * FEWEST:
            continue
        points = torch.from_numpy(found.shifted[rows])
        half = kmeans(points, torch.full((len(rows),), -1), 2, restarts=RESTARTS).assignment.numpy().astype(bool)
        # a known class stays where its labels are, a new category where most of its images are
        stays = np.bincount(half[~free[rows]] if c < known else half, minlength=2).argmax()
        leaves = half != bool(stays)
        leaving = rows[leaves & free[rows]]
        if min(len(leaving), int((~leaves & free[rows]).sum())) < FEWEST:
            continue
        first, second = rows[~leaves], rows[leaves]
        means = _unit(np.stack([found.shifted[first].mean(0), found.shifted[second].mean(0)]))
        evidence = {
            "neighbours": max(_near(found, first, second), _near(found, second, first)),
            "cosine": float(means[0] @ means[1]),
            "known": float(c < known),
            "size": float(size[c]) / usual,
        }
        p = probability(SPLIT, evidence)
        halves.append((Suggestion("split", [c], found.row[leaving], p, p * len(leaving)), evidence))
    return halves


def probability(weights: dict[str, float], evidence: dict[str, float]) -> float:
    """σ(start + Σ w · evidence)."""
    return 1 / (1 + float(np.exp(-weights["start"] - sum(weights[name] * value for name, value in evidence.items()))))


def _usual(size: Ids) -> float:
    """The size of the middle one of the categories that have images."""
    return float(np.median(size[size > 0])) if size.any() else 1.0


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _near(found: Structure, first: Ids, second: Ids) -> float:
    """The share of the images nearest to the first that are among the second."""
    return float(np.isin(found.near[first], second).mean())
