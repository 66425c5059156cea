"""What a folder or list holds, what is broken, what a run would do, and about how long it would take."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from debgcd.data.manifest import Manifest, lost_classes, scan
from debgcd.errors import DebgcdError
from debgcd.inference.model import views_label
from debgcd.machine import cache_folder
from debgcd.methods import METHODS
from debgcd.options import Config
from debgcd.progress import progress
from debgcd.train.bank import bank_bytes, token_shape
from debgcd.train.decide import decide
from debgcd.train.loop import length
from debgcd.train.quality import Level, Quality, expected, levels
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
    quality: Quality | None
    levels: dict[Quality, Level]  # what each quality would cost; empty where none was chosen


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


def _plan(manifest: Manifest, asked: Config) -> Plan:
    config, backbone = decide(asked, manifest)
    images, paths, kinds = len(manifest.training_rows), manifest.training_paths, METHODS[config.method].views
    cost = expected(config, backbone, manifest)
    assert config.backbone.name is not None
    return Plan(
        method=config.method,
        preset=config.preset,
        k=config.k,
        backbone=config.backbone.name,
        image_size=config.views.crop,
        views=views_label(config),
        bank_bytes=bank_bytes(images, config.views, token_shape(backbone, config.views.crop), kinds)
        if config.views.bank == "on"
        else 0,
        batch=length(config.schedule, images).batch,
        steps=cost.steps,
        seconds=cost.seconds,
        quality=asked.quality,
        levels=levels(asked, config, paths, cost),
    )
