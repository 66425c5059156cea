"""What a folder or list holds, what is broken, what a run would do, and about how long it would take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from debgcd.config.schema import Config
from debgcd.data.copies import Copies, copies_in_words, find_copies, names_in_words
from debgcd.data.manifest import Manifest, lost_classes
from debgcd.data.scan import scan
from debgcd.errors import DebgcdError
from debgcd.novelty.suspicious_labels import CLEARLY, check_labels, shares_of_labels, suspicious_labels
from debgcd.novelty.vote import UNEVEN
from debgcd.run.model_folder import views_label
from debgcd.system.files import bytes_in
from debgcd.system.machine import cache_folder
from debgcd.system.progress import progress
from debgcd.train.cost import Level, alternatives, expected_cost
from debgcd.train.plan import Plan, Quality, make_plan, require_ready
from debgcd.train.setup import frozen_features, open_tokens


@dataclass(frozen=True)
class PlannedRun:
    """What `debgcd train` would do with these images."""

    method: str
    preset: str
    k: int | None  # None: estimated when the run starts
    backbone: str
    image_size: int
    views: str
    bank_bytes: int  # 0 without a bank
    batch: int
    steps: int
    first: tuple[str, int] | None  # method and steps of a first stage
    seconds: float  # about; measured on this machine with a few images
    quality: Quality | None
    levels: dict[Quality, Level]  # what each quality would cost; empty where none was chosen


@dataclass(frozen=True)
class Doubt:
    """A label that looks wrong."""

    file: str
    label: str
    neighbours: str  # the label that most of the nearest labelled images have
    certainty: float  # 0..1, see `suspicious_labels`


@dataclass(frozen=True)
class Findings:
    """What `debgcd check` found."""

    images: int
    labelled: int
    unlabelled: int
    test: int
    with_truth: int
    classes: dict[str, int]  # labelled images of each known class
    skipped: list[dict[str, str]]
    warnings: list[str]
    problem: str | None  # why a run would be refused; None if it would start
    plan: PlannedRun | None
    cache: str
    cache_bytes: int
    copies: list[Copies]  # exact ones first
    doubts: list[Doubt] | None = None  # the most certain first; None: not asked

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(manifest: Manifest, config: Config, labels: bool = False) -> tuple[Findings, Manifest]:
    """Decode every image, count, and plan the run that `config` describes; also the manifest it would use.

    labels: also compare each label with those of similar images, which takes a pass of all images through the backbone.
    """
    listed = manifest
    with progress("reading images") as report:
        manifest = scan(manifest, config.run.workers, report)
    cache = cache_folder(config.run.cache)
    with progress("looking for copies") as report:
        copies = find_copies(manifest, cache, report)
    label = manifest.training_labels
    classes = Counter(name for name in manifest.labels if name is not None)
    problem, plan = None, None
    try:
        require_ready(manifest, config)
        plan = _planned(make_plan(config, manifest))
    except DebgcdError as error:
        problem = str(error)
    doubtful, uneven = _labels(manifest, config) if labels else (None, [])
    found = Findings(
        images=len(manifest),
        labelled=int((label >= 0).sum()),
        unlabelled=int((label < 0).sum()),
        test=len(manifest.test_rows),
        with_truth=sum(truth is not None for truth in manifest.truths),
        classes=dict(sorted(classes.items())),
        skipped=[{"file": entry.file, "reason": entry.reason} for entry in manifest.skipped],
        warnings=[
            *lost_classes(listed, manifest),
            *_warnings(classes),
            *names_in_words(classes),
            *_torn(manifest),
            *copies_in_words(copies),
            *uneven,
        ],
        problem=problem,
        plan=plan,
        cache=str(cache),
        cache_bytes=bytes_in(cache),
        copies=copies,
        doubts=doubtful,
    )
    return found, manifest


def _warnings(classes: Counter[str]) -> list[str]:
    found = []
    single = sorted(name for name, count in classes.items() if count == 1)
    if single:
        found.append(
            f"known classes with one labelled image only: {len(single)}, e.g. {single[0]!r}; two or more are better"
        )
    if len(classes) == 1:
        found.append("there is only one known class; what makes a class is learned better from several")
    if "-1" in classes:
        found.append("a class is named '-1'; if that was meant as unlabelled, leave the label empty")
    return found


def _torn(manifest: Manifest) -> list[str]:
    """At most one line: groups in both splits, so that the test images are not new to the model."""
    training, test = ({manifest.groups[row] for row in rows} for rows in (manifest.training_rows, manifest.test_rows))
    torn = sorted(name for name in training & test if name is not None)
    if not torn:
        return []
    return [
        f"groups with training and test images: {len(torn)}, e.g. {torn[0]!r}; accuracy on the test split is flattered"
    ]


def _labels(manifest: Manifest, config: Config) -> tuple[list[Doubt], list[str]]:
    """The labels that look wrong, and warnings about all of them: they do not fit the images, or are given in uneven shares."""
    label = torch.from_numpy(manifest.training_labels)
    if len(manifest.classes) < 2:
        return [], ["labels cannot be compared with each other: fewer than two classes have labelled images"]
    plan = make_plan(replace(config, method="sskmeans"), manifest)
    tokens = open_tokens(plan.config, manifest, plan.backbone, plan.cache)
    features = frozen_features(plan.backbone, tokens, manifest.training_paths).cpu()
    group = torch.from_numpy(manifest.training_groups)
    log_rate, spread = shares_of_labels(features, label, group)
    warnings = check_labels(features, label, group).warnings
    return doubtful_labels(manifest, features), warnings + _uneven(manifest.classes, log_rate.exp().tolist(), spread)


def doubtful_labels(manifest: Manifest, features: Tensor) -> list[Doubt]:
    """The labels that look wrong, the clearest first, by frozen features of the training images (N, width)."""
    label, group = torch.from_numpy(manifest.training_labels), torch.from_numpy(manifest.training_groups)
    labelled = label >= 0
    other, certainty = suspicious_labels(features[labelled], label[labelled], group[labelled])
    found = [
        Doubt(str(manifest.paths[row]), manifest.labels[row] or "", manifest.classes[one], round(sure, 3))
        for row, one, sure in zip(
            manifest.training_rows[labelled.numpy()], other.tolist(), certainty.tolist(), strict=True
        )
        if sure >= CLEARLY
    ]
    return sorted(found, key=lambda doubt: -doubt.certainty)


def _uneven(classes: Sequence[str], rate: list[float], spread: float) -> list[str]:
    if spread <= UNEVEN:
        return []
    few, many = classes[int(np.argmax(rate))], classes[int(np.argmin(rate))]
    return [
        f"labels are given in uneven shares (spread of log r_c {spread:.1f}, more than {UNEVEN}): around {few!r} there are "
        f"{max(rate):.1f} times as many unlabelled images per labelled one as around the mean class, around {many!r} "
        f"{min(rate):.1f} times; label about the same share of each class, else missing labels look like new classes"
    ]


def _planned(plan: Plan) -> PlannedRun:
    config, cost, first = plan.config, expected_cost(plan), plan.first
    assert config.backbone.name is not None
    return PlannedRun(
        method=config.method,
        preset=config.preset,
        k=config.k,
        backbone=config.backbone.name,
        image_size=config.views.crop,
        views=views_label(config),
        bank_bytes=plan.bank_bytes + (0 if first is None else first.bank_bytes),
        batch=plan.length.batch,
        steps=cost.steps,
        first=None if first is None else (first.config.method, first.length.steps),
        seconds=cost.seconds,
        quality=plan.asked.quality,
        levels=alternatives(plan, cost),
    )
