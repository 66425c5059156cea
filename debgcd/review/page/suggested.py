"""What the page suggests, and whom it trusts, for the categories as the reviewer has them now; in the worker process of `similar`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd.review.state import REJECTED
from debgcd.run.directory import finished_run

SHOWN = 20  # suggestions at most
CERTAIN = 0.7  # least share of other clusterings, see `kept_together`, for an image to be certain (docs/review.md has what it gives)

Ids = NDArray[np.int64]


def prepare(run: Path, cache: Path) -> list[dict[str, Any]]:
    """Have in the cache what the suggestions are made from; returns the labels that look wrong."""
    from debgcd.report.untuned import untuned  # in the worker alone, as in `similar`

    return [asdict(doubt) for doubt in untuned(finished_run(run), cache).doubts]


def suggested(run: Path, cache: Path, rows: Ids, category: Ids, status: Sequence[str]) -> dict[str, Any]:
    """`suggestions`, best first: kind, categories, probability, and of a split the images that leave and that stay; none where K was
    given. `trust`: (K,) of each category, None if it cannot be told. `certain` and `doubtful`: images that belong to their category
    by other clusterings, too, and those that do not.

    rows: (N,) the training images of the page's; category: (N,) of each, known classes first; status: (K,) in the review. Images
    are numbered as those of the page; of many images, they are those of a sample.
    """
    from debgcd.cluster.structure import kept_together
    from debgcd.report.suggest import splits, suggestions, trust_of
    from debgcd.report.untuned import untuned

    opened = finished_run(run)
    seen, label = untuned(opened, cache), opened.manifest.training_labels
    k = len(status)
    whole = np.where(label >= 0, label, k)  # k: images that are not on the page any more
    whole[rows] = category
    at = np.full(len(label), -1)
    at[rows] = np.arange(len(rows))
    of = seen.there[seen.structure.row]  # the training images of the sample
    kept = kept_together(seen.structure, whole[of], k + 1) >= CERTAIN
    shown = at[of] >= 0
    asked = seen.structure, whole[seen.there], label[seen.there]
    halves = splits(*asked, k + 1)
    trust, _ = trust_of(*asked, k + 1, halves)
    told = []
    if opened.estimate.exists():
        for one in suggestions(*asked, [*status, REJECTED], halves)[:SHOWN]:
            sample = at[of[(whole[of] == one.categories[0]) & (label[of] < 0)]]
            leaves = at[seen.there[one.images]]
            told.append(
                {
                    "kind": one.kind,
                    "categories": one.categories,
                    "probability": one.probability,
                    "leaves": leaves.tolist(),
                    "stays": np.setdiff1d(sample, leaves).tolist() if one.kind == "split" else [],
                }
            )
    return {
        "suggestions": told,
        "trust": [None if np.isnan(one) else round(float(one), 3) for one in trust[:k]],
        "certain": at[of[shown & kept]].tolist(),
        "doubtful": at[of[shown & ~kept]].tolist(),
    }
