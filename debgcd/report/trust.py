"""How far to trust each category, from what is known without any truth.

    trust = σ(a + Σ w · logit(part) + known · KNOWN): about the share of the category's images that belong together

The parts are in 0..1, by the features before training, which no answer can have bent to itself (cluster/structure.py):

    together      how often two of its images are in one cluster, over eight other clusterings
    neighbours    share of the images nearest to its own that are in it too
    separation    mean of (b − a) / b over its images: a, b = distance to the own and to the nearest other category's mean

`suggest.trust_of` lowers it for a category that looks like two. a and w are fitted, and the result is measured, by `benchmarks/quality/trust.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debgcd.cluster.structure import Structure, nearness, separation, together

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

WEIGHTS = {"together": 0.446, "neighbours": 0.179, "separation": 0.432}
START, KNOWN = 1.775, -1.393  # KNOWN: a known class takes in images of classes next to it
CLIP = 0.02  # of a part: a few images can all agree by chance


def parts_of(found: Structure, category: Ids, k: int) -> dict[str, Floats]:
    """The parts (K,) of each category; category: (N,) of all images. nan with fewer than two images."""
    own = category[found.row]
    parts = {
        "together": together(found, own, k).diagonal(),
        "neighbours": nearness(found, own, k).diagonal(),
        "separation": separation(found, own, k),
    }
    size = np.bincount(own, minlength=k)
    return {name: np.where(size > 1, part, np.nan) for name, part in parts.items()}


def trust(parts: dict[str, Floats], known: int) -> Floats:
    """The share of each category's images that are expected to be of one class, (K,); nan where a part is."""
    score = sum(
        (weight * logit(parts[name]) for name, weight in WEIGHTS.items()), start=np.full(len(parts["together"]), START)
    )
    score[:known] += KNOWN
    return 1 / (1 + np.exp(-score))


def logit(share: Floats) -> Floats:
    """log(p / (1 - p)), p kept CLIP away from 0 and 1."""
    share = np.clip(share, CLIP, 1 - CLIP)
    return np.log(share / (1 - share))


def order_of_interest(trust: Floats, size: Ids, known: int) -> list[int]:
    """Categories, most interesting first: new before known, then by trust · size, the images that it is likely right about."""
    worth = np.nan_to_num(trust) * size
    return sorted(range(len(size)), key=lambda c: (c < known, -worth[c], c))


def rows_per_category(category: Ids, k: int) -> list[Ids]:
    """For each of k categories the rows that have it, in order; negative entries belong to none."""
    order = np.argsort(category, kind="stable")
    return np.split(order, np.searchsorted(category[order], np.arange(k)))[1:]
