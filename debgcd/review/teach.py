"""Label these next: the images whose answers teach most.

Each category gets a share of the answers by the doubt in it: the sum over its images of 1 minus the lead of the most probable
category. Its images are parted by k-means, one part per answer, and the most typical image of each part is asked for. The most
doubtful images alone teach less: they are odd ones, and a class learned from an odd image misleads (docs/review.md has both).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FLOOR = 0.1  # doubt of an image that the model is sure of: it may be wrong all the same

Ids = NDArray[np.int64]


def teach_most(
    feature: NDArray[np.float32], category: Ids, lead: NDArray[np.float64], scene: Sequence[str | None], count: int
) -> list[int]:
    """The rows of at most `count` images, the most useful first; one per scene, as far as there are others.

    feature: (N, d) unit rows, 0 where there is none; category: (N,); lead: (N,) of the most probable category over the second,
    0..1; scene: (N,) names of bursts and the like, None for none.
    """
    there = np.linalg.norm(feature, axis=1) > 0
    members = [np.flatnonzero((category == c) & there) for c in range(int(category.max(initial=-1)) + 1)]
    doubt = np.array([float((FLOOR + 1 - lead[own]).sum()) for own in members])
    turns = _turns(doubt, np.array([len(own) for own in members]), count)
    asked = {c: iter(_typical(feature, members[c], turns.count(c), scene)) for c in set(turns)}
    return [next(asked[c]) for c in turns]


def _turns(doubt: NDArray[np.float64], size: Ids, count: int) -> list[int]:
    """Whose turn it is for each answer: always the category with the most doubt per answer so far; none gets more than its images."""
    given = np.zeros(len(doubt), np.int64)
    turns = []
    for _ in range(min(count, int(size.sum()))):
        c = int(np.where(given < size, doubt / (given + 1), -1.0).argmax())
        given[c] += 1
        turns.append(c)
    return turns


def _typical(feature: NDArray[np.float32], own: Ids, parts: int, scene: Sequence[str | None]) -> list[int]:
    """The most typical image of each part of a category, of the largest part first; of a scene that was taken only at need."""
    import torch  # in a worker of the page alone: its server needs neither its memory nor the seconds it takes

    from debgcd.cluster.kmeans import kmeans

    free = torch.full((len(own),), -1)
    part = kmeans(torch.from_numpy(feature[own]), free, parts).assignment.numpy()
    groups = sorted((own[part == p] for p in range(parts)), key=len, reverse=True)
    chosen: list[int] = []
    taken: set[str] = set()
    for images in groups:
        order = images[np.argsort(-(feature[images] @ feature[images].sum(0)), kind="stable")].tolist()
        # the others are for an empty part, and for one that has only scenes that were taken
        fresh = [image for image in dict.fromkeys([*order, *own.tolist()]) if image not in chosen]
        best = next((image for image in fresh if scene[image] is None or scene[image] not in taken), fresh[0])
        chosen.append(best)
        taken.add(str(scene[best]))
    return chosen
