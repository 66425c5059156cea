"""What a run leaves open is decided here, once, before anything is trained; each decision is said in one line.

Preset, pixels, steps, method, backbone, precision, which model is kept, view bank, image cache; and K, which needs the features.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd import config as configuration
from debgcd.cluster.estimate_k import Estimate, Way, estimate_k
from debgcd.config.schema import Config, ViewsConfig
from debgcd.data.image.crop import Picture
from debgcd.data.manifest import Manifest
from debgcd.errors import DataError, UsageError
from debgcd.methods import METHODS
from debgcd.methods.base import Method
from debgcd.model.backbone import Backbone, gains_from_bf16, pick_device, pick_precision
from debgcd.model.load import load_backbone, load_default
from debgcd.run.directory import Run
from debgcd.run.model_folder import Model, load_model
from debgcd.system import distributed
from debgcd.system.files import amount, write_json, write_text
from debgcd.system.machine import cache_folder
from debgcd.system.progress import progress, say
from debgcd.tokens.bank import bank_bytes, has_bank, stored_kinds
from debgcd.tokens.image_cache import decide_image_cache
from debgcd.train.loop import length
from debgcd.train.quality import settle
from debgcd.train.setup import StartFeatures, standardised

FEW_IMAGES = 5000  # 200 epochs of the paper are too few steps below this


def choose_preset(manifest: Manifest, quality: str | None = None) -> str:
    """`small` without a GPU, for few images or where a quality is asked for, else `paper`."""
    images = len(manifest.training_rows)
    if quality is not None:
        name, why = "small", f"quality {quality} is one of its values"
    elif pick_device("auto").type == "cpu":
        name, why = "small", "there is no GPU"
    elif images < FEW_IMAGES:
        name, why = "small", f"there are only {images} images"
    else:
        name, why = "paper", f"there are {images} images and a GPU"
    say(f"preset: {name}, because {why} (choose another with --preset)")
    return name


def decide(config: Config, manifest: Manifest) -> tuple[Config, Backbone]:
    """The configuration with all but K decided, and its backbone."""
    cache, paths = cache_folder(config.run.cache), manifest.training_paths
    start = None
    if config.start is not None:
        folder, start = _load_start(config.start, cache)
        config = _from_start(config, folder, start)
    config = settle(config, paths)
    if METHODS[config.method].trains and not length(config.schedule, len(paths)).steps:
        say("method: sskmeans, because nothing is trained in 0 steps: semi-supervised k-means on frozen features")
        config = configuration.override(config, {"method": "sskmeans"}, "0 steps")
    config, backbone = _decide_backbone(config, cache)
    if start is not None and backbone.width != start.network.backbone.width:
        raise UsageError(
            f"{config.method} has features of {backbone.width} values, but the run that it starts from "
            f"({start.config.method}) has {start.network.backbone.width}; choose another with --start"
        )
    if config.model_kept == "best-old" and not METHODS[config.method].trains:
        config = replace(config, model_kept="last")  # there is only one
    elif config.model_kept == "best-old" and not manifest.tests_known_classes:
        say("model kept: the last, because there is no test image of a known class to choose the best by")
        config = replace(config, model_kept="last")
    long, views = length(config.schedule, len(paths), METHODS[config.method].trains), config.views
    if not long.steps:
        views = replace(views, bank_views=0)  # the centre crops are all it needs
    elif views.bank != "off" and not views.bank_views:
        raise UsageError(
            "views.bank_views is 0, but a view bank for training needs 2 or more; raise it, or turn the bank off"
        )
    bank = decide_bank(METHODS[config.method], backbone, paths, views, cache)
    if METHODS[config.method].cut.early and METHODS[config.method].first is not None:
        config = configuration.override(config, {"first": {"bank": views.bank}}, "first stage")
    draws = long.steps * long.batch / len(paths) * (views.fresh if bank else 1.0)
    keep = decide_image_cache(config.run.image_cache, len(paths), views.short_side, draws, cache)
    views = replace(views, bank="on" if bank else "off")
    return replace(config, views=views, run=replace(config.run, image_cache="on" if keep else "off")), backbone


def _load_start(place: str, cache: Path) -> tuple[Path, Model]:
    """The model of a run or the model itself, and its absolute path."""
    folder = Path(place).absolute()
    if not folder.is_dir():
        raise UsageError(f"there is no run {folder} to start from; choose another with --start")
    folder = folder / "model" if (folder / "model").is_dir() else folder
    return folder, load_model(folder, backbone=None, cache=cache, device="cpu")


def _from_start(config: Config, folder: Path, found: Model) -> Config:
    """Where the run starts from, as an absolute path with the model's hash; the network is cut as there."""
    there, wanted = found.config.backbone, config.backbone
    if not there.tuned_blocks and METHODS[config.method].trains:
        raise UsageError(
            f"nothing was tuned in {folder} ({found.config.method}), so {config.method} could train its heads alone; "
            "leave --start out, or choose a run that was trained"
        )
    views = replace(config.views, size=found.config.views.size, resize=found.config.views.resize)
    name = None if wanted.name is None else _absolute(wanted.name)
    pairs = {"backbone.name": (name, there.name), "backbone.tuned_blocks": (wanted.tuned_blocks, there.tuned_blocks)}
    pairs |= {f"views.{key}": (getattr(config.views, key), getattr(views, key)) for key in ("size", "resize")}
    for key, (asked, has) in pairs.items():
        if asked not in (None, "auto", has):
            raise UsageError(f"{key} is {asked}, but the run starts from {folder}, where it is {has}; leave it out")
    say(
        f"start: the network of {folder} ({found.config.method}, {len(found.categories)} categories): {there.name}, "
        f"{there.tuned_blocks} tuned blocks, {views.size} px, as there"
    )
    return replace(config, start=str(folder), start_sha256=found.sha256, backbone=there, views=views)


def _absolute(name: str) -> str:
    """The name of a backbone; of a file or folder its absolute path, because a run may be resumed from another folder."""
    return os.path.abspath(name) if Path(name).exists() else name


def _decide_backbone(config: Config, cache: Path) -> tuple[Config, Backbone]:
    wanted, cut, size = config.backbone, METHODS[config.method].cut, config.views.crop
    tuned = cut.tuned if wanted.tuned_blocks is None else wanted.tuned_blocks
    device = pick_device(config.run.device)
    precision = pick_precision(config.run.precision, device)
    if precision == "bf16" and not gains_from_bf16(device):
        say("precision: bf16, which this device emulates slowly (choose another with --set run.precision=fp32)")
    if wanted.name is None:
        backbone, line = load_default(tuned_blocks=tuned, image_size=size, cache=cache, precision=precision)
        say(line)
    else:
        name = _absolute(wanted.name)
        say(f"backbone: {name} (choose another with --backbone)")
        backbone = load_backbone(
            name,
            tuned_blocks=tuned,
            image_size=size,
            revision=wanted.revision,
            cache=cache,
            precision=precision,
        )
    identity = backbone.identity
    chosen = replace(
        wanted,
        name=identity.name,
        revision=identity.revision,
        sha256=identity.sha256,
        tuned_blocks=tuned,
    )
    config = replace(config, backbone=chosen, run=replace(config.run, precision=precision))
    return config, METHODS[config.method].prompted(backbone, config)


def run_backbone(run: Run, cache: Path | None = None) -> Backbone:
    """The backbone that a run began with; cache: where its weights are, if not where the run has them."""
    wanted, precision = run.config.backbone, run.config.run.precision
    assert wanted.name is not None and wanted.tuned_blocks is not None and precision != "auto"
    backbone = load_backbone(
        wanted.name,
        tuned_blocks=wanted.tuned_blocks,
        image_size=run.config.views.crop,
        revision=wanted.revision,
        cache=cache_folder(run.config.run.cache) if cache is None else cache,
        precision=precision,
    )
    if backbone.identity.sha256 != wanted.sha256:
        raise DataError(
            f"the weights of {wanted.name} are not those the run in {run.folder} began with (their sha256 differs); "
            "put the original ones back"
        )
    return METHODS[run.config.method].prompted(backbone, run.config)


def decide_bank(
    method: type[Method], backbone: Backbone, paths: Sequence[Picture], views: ViewsConfig, cache: Path
) -> bool:
    """Whether the run has a view bank; "auto" takes one if it is there or fits into half of the free disk."""
    if views.bank == "off" or views.fresh == 1:
        return False
    if method.cut.early:
        say(f"view bank: off, because {method.__name__} trains {method.cut.early}, so the trunk's tokens change")
        return False
    kinds, needed = stored_kinds(method.views), max(Counter(method.views).values())
    if 0 < views.bank_views < needed:  # without any, the bank is of centre crops alone
        raise UsageError(
            f"views.bank_views is {views.bank_views}, but a step draws {needed} different views of one kind; "
            f"use {needed} or more"
        )
    size = bank_bytes(len(paths), views, backbone.token_shape(views.crop), kinds)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    takes = views.bank == "on" or size <= free / 2 or has_bank(backbone, paths, views, cache, kinds)
    which = f"{views.bank_views} views" if views.bank_views else "the centre crops"
    which += f" of each of {len(kinds)} kinds" if views.bank_views and len(kinds) > 1 else ""
    say(
        f"view bank: {'on' if takes else 'off'} ({amount(size)} for {which} of {len(paths)} images; "
        f"{amount(free)} free in {cache})"
    )
    return takes


def decide_k(run: Run, backbone: Backbone, start: StartFeatures) -> Run:
    """Estimate K for a run that leaves it open; written to estimate.json and config.yaml, so that `resume` keeps it."""
    features = standardised(backbone, start())
    k = distributed.from_rank0(lambda: _estimated_k(run, features))
    config = replace(run.config, k=k, prune=True)
    if distributed.rank() == 0:
        write_text(run.folder / "config.yaml", configuration.dump(config))
    return replace(run, config=config)


def _estimated_k(run: Run, features: Tensor) -> int:
    label = run.manifest.training_labels
    found = estimate(features, label, run.config.seed)
    k = min(found.k * run.config.k_times, len(label))
    times = f", {run.config.k_times} times that is" if run.config.k_times > 1 else ";"
    say(f"categories: about {found.k} ({found.low} to {found.high}){times} K = {k} (choose another with --k)")
    write_json(run.folder / "estimate.json", found.to_json())
    return k


def estimate(
    features: Tensor, label: NDArray[np.int64], seed: int, way: Way = "consensus", most: int | None = None
) -> Estimate:
    """`estimate_k` with a progress bar, and a warning where little can be told."""
    if label.max() == 0:
        say("categories: one known class cannot tell how wide a category is; give K instead of estimating it")
    with progress("estimating K") as report:
        return estimate_k(features.cpu(), torch.from_numpy(label), way=way, most=most, seed=seed, on_progress=report)
