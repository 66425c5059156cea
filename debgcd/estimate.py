"""How many categories there are: asked of images before any training, or of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from debgcd import config as configuration
from debgcd.cluster.estimate_k import Estimate, Way
from debgcd.config.schema import Config
from debgcd.data.fingerprints import read_contents
from debgcd.data.manifest import Manifest, lost_classes, require_trainable
from debgcd.data.scan import scan
from debgcd.run.directory import open_run, require_same_images
from debgcd.system.machine import cache_folder
from debgcd.system.progress import progress, say
from debgcd.train.plan import estimate, make_plan, run_backbone
from debgcd.train.setup import centre_tokens, frozen_features, open_tokens


def from_images(manifest: Manifest, config: Config, way: Way, most: int | None = None) -> Estimate:
    """From the frozen features of images; they are kept in the cache for the next question."""
    features, label = features_of(manifest, config)
    return estimate(features, label, config.seed, way, most)


def features_of(manifest: Manifest, config: Config) -> tuple[Tensor, NDArray[np.int64]]:
    """The frozen features (N, width) of all training images that can be read, and their labels (N,), -1 for none."""
    listed = manifest
    with progress("reading images") as report:
        manifest = scan(manifest, config.run.workers, report)
    require_trainable(manifest, None)
    for line in lost_classes(listed, manifest):
        say(f"known classes: {line}")
    plan = make_plan(replace(config, method="sskmeans"), manifest)
    tokens = open_tokens(plan.config, manifest, plan.backbone, plan.cache)
    return frozen_features(plan.backbone, tokens, manifest.training_paths), manifest.training_labels


def from_run(folder: Path, changes: Mapping[str, Any], way: Way, most: int | None = None) -> Estimate:
    """From the frozen features of a run's images; `changes` to its configuration: another seed, cache, device.

    Not from those that the run has learned: training pulls each of its K categories together, also where several make up
    one class, so that tuned features tell how many categories it was given, not how many there are.
    """
    run = open_run(folder)
    run = replace(run, config=configuration.override(run.config, changes, where="the command line"))
    backbone, cache = run_backbone(run), cache_folder(run.config.run.cache)
    require_same_images(run, read_contents(run.manifest.paths, cache))
    tokens = centre_tokens(run.config, run.manifest, backbone, cache)
    frozen = frozen_features(backbone, tokens, run.manifest.training_paths)
    return estimate(frozen, run.manifest.training_labels, run.config.seed, way, most)
