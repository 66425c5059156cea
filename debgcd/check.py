"""What a folder or list holds, what is broken, what a run would do, and about how long it would take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from debgcd.data.manifest import Manifest, lost_classes, scan
from debgcd.data.sampler import Draws
from debgcd.errors import DebgcdError
from debgcd.inference.card import views_label
from debgcd.machine import cache_folder
from debgcd.methods import create
from debgcd.methods.base import Batch, Method, Sizes
from debgcd.model.backbone import Backbone
from debgcd.options import Config
from debgcd.progress import progress
from debgcd.schedules import Progress
from debgcd.train.bank import bank_bytes, stored_kinds, token_shape
from debgcd.train.decide import decide
from debgcd.train.loop import length, sgd
from debgcd.train.setup import build
from debgcd.train.start import require_ready


@dataclass(frozen=True)
class Plan:
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
    seconds: float  # about; measured on this machine with a few images


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
    plan: Plan | None
    cache: str
    cache_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(manifest: Manifest, config: Config) -> tuple[Findings, Manifest]:
    """Decode every image, count, and plan the run that `config` describes; also the manifest it would use."""
    listed = manifest
    with progress("reading images") as report:
        manifest = scan(manifest, config.run.workers, report)
    cache = cache_folder(config.run.cache)
    label = manifest.training_labels
    classes = Counter(name for name in manifest.labels if name is not None)
    problem, plan = None, None
    try:
        require_ready(manifest, config)
        plan = _plan(manifest, config)
    except DebgcdError as error:
        problem = str(error)
    found = Findings(
        images=len(manifest),
        labelled=int((label >= 0).sum()),
        unlabelled=int((label < 0).sum()),
        test=len(manifest.test_rows),
        with_truth=sum(truth is not None for truth in manifest.truths),
        classes=dict(sorted(classes.items())),
        skipped=[{"file": entry.file, "reason": entry.reason} for entry in manifest.skipped],
        warnings=lost_classes(listed, manifest) + _warnings(classes),
        problem=problem,
        plan=plan,
        cache=str(cache),
        cache_bytes=sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) if cache.is_dir() else 0,
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


def _plan(manifest: Manifest, config: Config) -> Plan:
    config, backbone = decide(config, manifest)
    images, known, k = len(manifest.training_rows), len(manifest.classes), config.k
    if k is None:
        config = replace(config, k=min(2 * known, images))  # the time hardly depends on it
    assert config.k is not None
    method = create(config, Sizes(backbone.width, config.k, known, images))
    long = length(config.schedule, images, method.trains)
    bank = config.views.bank == "on"
    trunk, step = _measure(method, backbone, long.batch)
    kept = images * (len(stored_kinds(method.views)) * config.views.bank_views + 1 if bank else 1)
    passes = kept + len(method.views) * long.batch * long.steps * (config.views.fresh if bank else 1)
    assert config.backbone.name is not None
    return Plan(
        method=config.method,
        preset=config.preset,
        k=k,
        backbone=config.backbone.name,
        image_size=config.views.size,
        views=views_label(config),
        bank_bytes=bank_bytes(images, config.views, token_shape(backbone, config.views.size), method.views)
        if bank
        else 0,
        batch=long.batch,
        steps=long.steps,
        seconds=passes * trunk + long.steps * step,
    )


def _measure(method: Method, backbone: Backbone, batch: int) -> tuple[float, float]:
    """Seconds of the trunk for one image, and of a training step on tokens, from a small try."""
    config, network = method.config, build(method, backbone)
    images = torch.zeros(32, 3, config.views.size, config.views.size, dtype=torch.uint8)
    trunk = _seconds(lambda: backbone.trunk(images)) / len(images)
    if not method.trains:
        return trunk, 0.0
    rows = min(batch, 32)
    tokens = torch.randn(len(method.views) * rows, *token_shape(backbone, config.views.size))
    numbers = np.arange(rows)
    label = np.where(numbers % 2, numbers % method.sizes.known, -1)
    some = Batch.of(tokens, Draws(numbers, numbers % method.sizes.images), label, "cpu")
    optimiser = sgd(network, config.schedule)

    def step() -> None:
        optimiser.zero_grad()
        method.loss(network, some, Progress(1, 2, 1)).total.backward()
        optimiser.step()

    return trunk, _seconds(step) * batch / rows


def _seconds(work: Callable[[], object]) -> float:
    work()  # the first call also allocates
    begun = time.monotonic()
    work()
    return time.monotonic() - begun
