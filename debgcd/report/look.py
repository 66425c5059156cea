"""What the report shows of a finished run: its features, what the untouched network sees in it, trust, suggestions."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.nn.functional import normalize

from debgcd.check import Doubt
from debgcd.cluster.structure import category_means
from debgcd.data.image.crop import Picture
from debgcd.grow.features import run_features
from debgcd.report.suggest import Suggestion, splits, suggestions, trust_of
from debgcd.report.trust import Floats, Ids, rows_per_category
from debgcd.report.untuned import untuned
from debgcd.review.log import read_review, reviewed_predictions
from debgcd.run.categories import Category, merged_numbers
from debgcd.run.directory import Run
from debgcd.run.predictions import TOP, Prediction


@dataclass(frozen=True)
class Look:
    """A run and its network's answers for the training images that can still be read.

    Images are numbered as the training rows of the manifest. `there` are the numbers of the P images that can be read;
    arrays of length P are in that order.
    """

    run: Run
    categories: list[Category]
    every: list[Category]  # also those that were merged into another
    rows: dict[int, Prediction]  # of the unlabelled images, by number
    label: Ids  # (N,) of all training images, -1 where unlabelled
    category: Ids  # (N,) the label, or the predicted category
    there: Ids  # (P,)
    feature: NDArray[np.float32]  # (P, width), unit rows
    means: NDArray[np.float32]  # (K, width)
    trust: Floats  # (K,)
    parts: dict[str, Floats]  # (K,) each
    suggestions: list[Suggestion]  # images by number, categories by position
    doubts: list[Doubt]  # labels that look wrong

    @cached_property
    def paths(self) -> list[Picture]:
        return self.run.manifest.training_paths

    @cached_property
    def scenes(self) -> list[str | None]:
        """The group of each training image in the manifest."""
        return [self.run.manifest.groups[row] for row in self.run.manifest.training_rows]

    @cached_property
    def members(self) -> list[Ids]:
        """The unlabelled images of each category."""
        return rows_per_category(np.where(self.label < 0, self.category, -1), len(self.categories))

    @cached_property
    def base(self) -> str:
        """The folder that all images are in."""
        return os.path.commonpath([Path(path).parent for path in self.paths])

    @cached_property
    def size(self) -> Ids:
        """(K,) number of unlabelled images of each category."""
        return np.array([len(images) for images in self.members])


def look(run: Run, cache: Path) -> Look:
    """Ask the run's network about all of its training images that are still there."""
    predictions, every = reviewed_predictions(run.folder)
    categories, number = _living(every)
    into = {one.id: categories[number[one.category]].id for one in every}
    for row in predictions:
        row["category"] = int(number[row["category"]])
        for name in (f"top{i}_id" for i in range(1, TOP + 1)):
            row[name] = into.get(row[name])
    label, paths = run.manifest.training_labels, run.manifest.training_paths
    by_path = {row["path"]: row for row in predictions}
    rows = {i: by_path[str(paths[i])] for i in np.flatnonzero(label < 0).tolist()}
    category = label.copy()
    category[list(rows)] = [row["category"] for row in rows.values()]
    seen, k = untuned(run, cache), len(categories)
    there, feature = seen.there, normalize(run_features(run, cache)[seen.there].float(), dim=1).numpy()
    asked = seen.structure, category[there], label[there]
    halves = splits(*asked, k)
    score, parts = trust_of(*asked, k, halves)
    review = read_review(run.folder)
    status = [review.categories[one.id].status for one in categories]
    suggested = []
    if run.estimate.exists():
        suggested = suggestions(*asked, status, halves)
    means = category_means(feature, category[there], k)
    return Look(
        run=run,
        categories=categories,
        every=every,
        rows=rows,
        label=label,
        category=category,
        there=there,
        feature=feature,
        means=means,
        trust=score,
        parts=parts,
        suggestions=[replace(one, images=there[one.images]) for one in suggested],
        doubts=seen.doubts,
    )


def _living(every: list[Category]) -> tuple[list[Category], Ids]:
    """The categories that were not merged into another, renumbered; and for each category the new number of its successor."""
    categories = [category for category in every if category.merged_into is None]
    number = {category.category: i for i, category in enumerate(categories)}
    renumbered = [replace(category, category=i) for i, category in enumerate(categories)]
    return renumbered, np.array([number[successor] for successor in merged_numbers(every)])
