"""What the report shows of a finished run: features, both classifiers, another view, trust."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.check import Doubt, doubtful_labels
from debgcd.cluster.kmeans import kmeans
from debgcd.data.image.crop import Picture
from debgcd.data.sampler import Draws
from debgcd.grow.features import of_readable
from debgcd.model.heads import classifiers
from debgcd.report.trust import Evidence, Floats, Ids, category_means, rows_per_category, trust
from debgcd.review.log import reviewed_predictions
from debgcd.run.categories import Category, merged_numbers
from debgcd.run.directory import Run
from debgcd.run.predictions import TOP, Prediction
from debgcd.system.progress import progress
from debgcd.tokens.sources import centre_batches
from debgcd.train.plan import run_backbone
from debgcd.train.setup import centre_tokens, frozen_features
from debgcd.train.train import open_setup

RESTARTS = 3  # of the second clustering


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
    there, (feature, others, other_view) = of_readable(run, cache, lambda there: _ask(run, there, cache))
    doubts = _doubts(run, there, cache)
    k, free = len(categories), label[there] < 0
    means = category_means(feature.numpy(), category[there], k)
    evidence = Evidence(
        category=category[there][free],
        feature=feature.numpy()[free],
        means=means,
        others={name: number[other[free]] for name, other in others.items()},
        other_view=None if other_view is None else number[other_view[free]],
        cluster=_second_clustering(feature, torch.from_numpy(label[there]), k, run.config.seed)[free],
        confidence=np.array([rows[i]["confidence"] for i in there[free].tolist()]),
    )
    score, parts = trust(evidence, k)
    return Look(run, categories, every, rows, label, category, there, feature.numpy(), means, score, parts, doubts)


def _living(every: list[Category]) -> tuple[list[Category], Ids]:
    """The categories that were not merged into another, renumbered; and for each category the new number of its successor."""
    categories = [category for category in every if category.merged_into is None]
    number = {category.category: i for i, category in enumerate(categories)}
    renumbered = [replace(category, category=i) for i, category in enumerate(categories)]
    return renumbered, np.array([number[successor] for successor in merged_numbers(every)])


@torch.no_grad()
def _ask(run: Run, there: Ids, cache: Path) -> tuple[Tensor, dict[str, Ids], Ids | None]:
    """Unit features (P, width), the categories by further classifiers, and by the first one from another view."""
    setup, views = open_setup(run, run.manifest.select(run.manifest.training_rows[there]), cache), run.config.views
    network, method, images = setup.network, setup.method, np.arange(len(there))
    feature: list[Tensor] = []
    others: dict[str, list[Tensor]] = {}
    other_view: list[Tensor] = []
    with progress("looking at the images") as report:
        for tokens in setup.tokens.centre(images):
            output = network(tokens, {*method.final_answers, *classifiers(network.heads)})
            feature.append(normalize(output.feature, dim=1).cpu())
            for name, p in list(method.scores(output).items())[1:]:
                others.setdefault(name, []).append(p.argmax(1).cpu())
            report(sum(map(len, feature)), len(images))
    if views.bank != "on" or views.bank_views:  # a bank of centre crops alone has no other view
        batches = list(centre_batches(images))
        for batch, tokens in zip(batches, setup.tokens.random(Draws(batch, batch) for batch in batches), strict=True):
            p = next(iter(method.scores(network(tokens[: len(batch)], method.final_answers)).values()))
            other_view.append(p.argmax(1).cpu())
    joined = {name: torch.cat(parts).numpy() for name, parts in others.items()}
    return torch.cat(feature), joined, torch.cat(other_view).numpy() if other_view else None


def _doubts(run: Run, there: Ids, cache: Path) -> list[Doubt]:
    """As `debgcd check --labels`, by the untuned backbone: the tuned one has learned the wrong labels too."""
    manifest = run.manifest.select(run.manifest.training_rows[there])
    if len(manifest.classes) < 2:
        return []
    backbone = run_backbone(run, cache)
    tokens = centre_tokens(run.config, manifest, backbone, cache)
    return doubtful_labels(manifest, frozen_features(backbone, tokens, manifest.training_paths).cpu())


def _second_clustering(feature: Tensor, label: Tensor, k: int, seed: int) -> Ids:
    """Clusters of the features by semi-supervised k-means: where they agree with the categories, two methods do."""
    with progress("clustering") as report:
        clusters = kmeans(feature, label, min(k, len(feature)), seed=seed, restarts=RESTARTS, on_progress=report)
    return clusters.assignment.numpy()
