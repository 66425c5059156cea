"""Shared by the accuracy benchmarks: a resumable grid of runs, and subsets of data sets."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.manifest import Manifest
from debgcd.demo import digits
from debgcd.errors import DataError
from debgcd.reproduce.counts import read_first
from debgcd.reproduce.experiments import part
from debgcd.run.directory import Run, require_new
from debgcd.system.progress import say
from debgcd.train.train import resume, train


def finished_run(manifest: Manifest, config: Config, folder: Path) -> Run:
    """The run in this folder: finished before, resumed, or started now."""
    say(f"\n{folder}")
    if (folder / "config.yaml").exists():
        return resume(folder)
    require_new(folder)
    return train(manifest, config, folder)


def scores(run: Run) -> dict[str, Any]:
    """Scores on the unlabelled images, from evaluation.json: accuracy of the GCD classifier, AUROC, final K."""
    found = json.loads(run.evaluation.read_text("utf-8"))
    return {**found["unlabelled"]["gcd"]["accuracy"], "auroc": found["unlabelled"]["auroc"], "k": found["k"]}


def settings(base: Config, seed: int, values: Mapping[str, Any]) -> Config:
    """The configuration of one cell of the grid."""
    return configuration.override(base, {**values, "seed": seed}, where="grid")


def classes_in_turn(manifest: Manifest, images: int) -> Manifest:
    """Whole classes, known and new ones alternating by name, up to this number of images."""
    train = manifest.select([i for i, split in enumerate(manifest.splits) if split == "train"])
    known = list(train.classes)
    new = sorted({truth for truth in train.truths if truth is not None} - set(known))
    chosen: set[str] = set()
    for pair in zip(known, new, strict=False):
        for name in pair:
            if sum(truth in chosen or truth == name for truth in train.truths) <= images:
                chosen.add(name)
    return train.select([i for i, truth in enumerate(train.truths) if truth in chosen])


def images_of(name: str, roots: Sequence[Path], work: Path, cache: Path, classes: int, images: int) -> Manifest:
    """All of the digits, or a subset of a benchmark's training images: at most `images` from at most `classes` classes."""
    if name == "digits":
        return digits(work / "digits")
    if not roots:
        sys.exit(f"no --root given; give the folder of {name}")
    try:
        manifest = read_first(name, roots, cache).manifest
    except DataError as error:
        sys.exit(str(error))
    return part(manifest.select(manifest.training_rows), classes, images)


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    values = list(values)
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


def write_between(page: Path, script: str, text: str) -> None:
    """Replace the text between the two markers of a script in a page."""
    begin, end = f"<!-- written by {script} -->", f"<!-- end of {script} -->"
    before, rest = page.read_text("utf-8").split(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", "utf-8")
