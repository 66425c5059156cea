"""Splits and merges that the page suggests, for the categories as the reviewer has them now; in the worker process of `similar`."""

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

Ids = NDArray[np.int64]


def prepare(run: Path, cache: Path) -> list[dict[str, Any]]:
    """Have in the cache what the suggestions are made from; returns the labels that look wrong."""
    from debgcd.report.untuned import untuned  # in the worker alone, as in `similar`

    return [asdict(doubt) for doubt in untuned(finished_run(run), cache).doubts]


def suggested(run: Path, cache: Path, rows: Ids, category: Ids, status: Sequence[str]) -> list[dict[str, Any]]:
    """The suggestions, best first: kind, categories, probability, and of a split the images that leave and that stay.

    rows: (N,) the training images of the page's; category: (N,) of each, known classes first; status: (K,) in the review. The images of a split
    are numbered as those of the page; of many images, they are those of a sample.
    """
    from debgcd.report.suggest import suggestions
    from debgcd.report.untuned import untuned

    opened = finished_run(run)
    if not opened.estimate.exists():
        return []
    seen, label = untuned(opened, cache), opened.manifest.training_labels
    k = len(status)
    whole = np.where(label >= 0, label, k)  # k: images that are not on the page any more
    whole[rows] = category
    at = np.full(len(label), -1)
    at[rows] = np.arange(len(rows))
    found = suggestions(seen.structure, whole[seen.there], label[seen.there], [*status, REJECTED])
    told = []
    for one in found[:SHOWN]:
        of = seen.there[seen.structure.row]
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
    return told
