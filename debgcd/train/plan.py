"""The plan of a run: everything that its configuration leaves open, decided once, before anything is trained.

Start, pixels, steps, method, backbone, precision, which model is kept, view bank, image cache; each decision is printed in one line.
K needs the features of the images, so it comes later (`set_k`).

The sizes were measured on frozen lite0: photographs gain until 160 px and nothing beyond, tiny images lose above 96 px.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd import config as configuration
from debgcd.cluster.discover import discover
from debgcd.cluster.estimate_k import Estimate, Way, estimate_k
from debgcd.config.schedules import RunLength, run_length
from debgcd.config.schema import LARGEST, Config, ViewsConfig
from debgcd.data.image.crop import Picture
from debgcd.data.image.decode import Unusable, short_side
from debgcd.data.manifest import Manifest, require_trainable
from debgcd.errors import DataError, UsageError
from debgcd.methods import METHODS, require_method, require_package
from debgcd.methods.base import FirstStage, Method
from debgcd.model.backbone import Backbone, gains_from_bf16, pick_device, pick_precision
from debgcd.model.lite import VARIANTS
from debgcd.model.load import best_backbone, load_backbone, load_default
from debgcd.novelty.so_far import Before
from debgcd.run.directory import Run
from debgcd.run.model_folder import Model, load_model
from debgcd.system import distributed
from debgcd.system.files import amount, write_json, write_text
from debgcd.system.machine import cache_folder
from debgcd.system.progress import progress, say
from debgcd.tokens.bank import bank_bytes, missing_views, stored_kinds
from debgcd.tokens.image_cache import decide_image_cache
from debgcd.train.continue_run import read_before

Quality = Literal["fast", "balanced", "best"]
SIZE: dict[Quality, int] = {"fast": 96, "balanced": 160, "best": 160}
TINY, TINY_SIZE = 24, 96  # images with a smaller median short side have no detail to show; the crop's side for them
MANY_IMAGES, MANY_SIZE = 20_000, 128  # above this, views take hours without a GPU; the crop's side then at `balanced`
VIT_SIZE = 224  # a whole number of patches of 8, 14, 16 or 32 pixels
HEADERS_READ = 200  # images whose size is read from the file's header, to find the median
STEPS_PER_IMAGE, FEWEST_STEPS = 0.15, 60
MOST_STEPS = 3000  # without a GPU
FEW_IMAGES = 5000  # 200 epochs of the paper are too few steps below this


@dataclass(frozen=True)
class Plan:
    """A run with everything but K decided."""

    asked: Config  # as the user and the presets gave it
    config: Config
    backbone: Backbone
    manifest: Manifest

    @property
    def cache(self) -> Path:
        return cache_folder(self.config.run.cache)

    @property
    def method(self) -> type[Method]:
        return METHODS[self.config.method]

    @property
    def length(self) -> RunLength:
        return run_length(self.config.schedule, len(self.manifest.training_rows), self.method.trains)

    @property
    def k(self) -> int:
        """K; before it is estimated a guess, for costs and sizes: twice the number of known classes."""
        guess = 2 * len(self.manifest.classes) * self.config.k_times
        return self.config.k or min(guess, len(self.manifest.training_rows))

    @property
    def bank_bytes(self) -> int:
        """Size of the run's own view bank; 0 without one."""
        if self.config.views.bank != "on":
            return 0
        views, kinds = self.config.views, stored_kinds(self.method.views)
        return bank_bytes(len(self.manifest.training_rows), views, self.backbone.token_shape(views.crop), kinds)

    @cached_property
    def first(self) -> Plan | None:
        """The plan of the first stage; None if the method has none or the run starts from another run."""
        if self.method.first is None or self.config.start is not None:
            return None
        with redirect_stderr(StringIO()):  # these lines are printed when that stage begins
            return make_plan(first_stage(self.config, self.method.first), self.manifest)


def require_ready(manifest: Manifest, config: Config) -> None:
    """Refuse what cannot be trained, before any work is done."""
    require_method(config.method)
    require_package(config.method)
    pick_device(config.run.device)
    require_trainable(manifest, config.k)


def choose_preset(manifest: Manifest, quality: str | None = None) -> str:
    """The preset if the user gives none: `small` without a GPU, for few images or with a quality, else `paper`."""
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


def make_plan(asked: Config, manifest: Manifest) -> Plan:
    """The plan of a new run: everything but K is decided, and each decision printed."""
    cache, paths, config, start = cache_folder(asked.run.cache), manifest.training_paths, asked, None
    if config.start is not None:
        folder, start = _load_start(config.start, cache)
        config = _from_start(config, folder, start)
    if config.quality == "best" and config.backbone.name is None:
        name, line = best_backbone(cache)
        say(line)
        config = configuration.override(config, {"backbone": {"name": name}}, "quality best")
    config = resolve_auto(config, paths)
    if METHODS[config.method].trains and not run_length(config.schedule, len(paths)).steps:
        say("method: pim, because nothing is trained in 0 steps: a linear head on frozen features")
        config = configuration.override(config, {"method": "pim"}, "0 steps")
    config, backbone = _choose_backbone(config, cache)
    if start is not None and backbone.width != start.network.backbone.width:
        raise UsageError(
            f"{config.method} has features of {backbone.width} values, but the run that it starts from "
            f"({start.config.method}) has {start.network.backbone.width}; choose another with --start"
        )
    config = _choose_model_kept(config, manifest)
    return Plan(asked, _choose_storage(config, backbone, paths, cache), backbone, manifest)


def plan_of(run: Run) -> Plan:
    """The plan of an existing run, to resume it: its configuration leaves nothing open but K."""
    return Plan(run.config, run.config, run_backbone(run), run.manifest)


def resolve_auto(config: Config, paths: Sequence[Picture]) -> Config:
    """The configuration with numbers for views.size, views.resize and schedule.steps where they are auto."""
    views, schedule = config.views, config.schedule
    no_gpu = pick_device(config.run.device).type == "cpu"
    if schedule.steps == "auto":
        steps = max(FEWEST_STEPS, STEPS_PER_IMAGE * len(paths))
        steps = schedule.steps_times * (min(steps, MOST_STEPS) if no_gpu else steps)
        steps *= config.options.first.second if METHODS[config.method].first else 1
        schedule = replace(schedule, steps=max(1, round(steps)))
    if views.size == "auto":
        views = replace(views, size=_size(config, paths, no_gpu))
    if views.resize == "auto":
        views = replace(views, resize=min(round(views.crop * 8 / 7), LARGEST))
    return replace(config, views=views, schedule=schedule)


def _size(config: Config, paths: Sequence[Picture], no_gpu: bool) -> int:
    """The side of the crop that suits the backbone, the images and the quality."""
    if config.backbone.name not in VARIANTS:
        return VIT_SIZE
    quality = config.quality or "balanced"
    if _median_short_side(paths) < TINY:
        return TINY_SIZE
    return MANY_SIZE if quality == "balanced" and no_gpu and len(paths) > MANY_IMAGES else SIZE[quality]


def _median_short_side(paths: Sequence[Picture]) -> float:
    """Median over some of the images, evenly spaced; only their headers are read."""
    sides = []
    for i in np.linspace(0, len(paths) - 1, min(HEADERS_READ, len(paths)), dtype=int):
        with suppress(Unusable):  # `scan` reports it
            sides.append(short_side(paths[i]))
    return statistics.median(sides) if sides else TINY


def _load_start(start: str, cache: Path) -> tuple[Path, Model]:
    """The absolute path of the model folder that `start` (a run directory or a model folder) names, and the model in it."""
    folder = Path(start).absolute()
    if not folder.is_dir():
        raise UsageError(f"there is no run {folder} to start from; choose another with --start")
    folder = folder / "model" if (folder / "model").is_dir() else folder
    return folder, load_model(folder, backbone=None, cache=cache, device="cpu")


def _from_start(config: Config, folder: Path, start: Model) -> Config:
    """The configuration with backbone, crop, absolute path and hash of the model to start from."""
    given, wanted = start.config.backbone, config.backbone
    if not given.tuned_blocks and METHODS[config.method].trains:
        raise UsageError(
            f"nothing was tuned in {folder} ({start.config.method}), so {config.method} could train its heads alone; "
            "leave --start out, or choose a run that was trained"
        )
    views = replace(config.views, size=start.config.views.size, resize=start.config.views.resize)
    name = None if wanted.name is None else _absolute(wanted.name)
    pairs = {"backbone.name": (name, given.name), "backbone.tuned_blocks": (wanted.tuned_blocks, given.tuned_blocks)}
    pairs |= {f"views.{key}": (getattr(config.views, key), getattr(views, key)) for key in ("size", "resize")}
    for key, (asked, has) in pairs.items():
        if asked not in (None, "auto", has):
            raise UsageError(f"{key} is {asked}, but the run starts from {folder}, where it is {has}; leave it out")
    say(
        f"start: the network of {folder} ({start.config.method}, {len(start.categories)} categories): {given.name}, "
        f"{given.tuned_blocks} tuned blocks, {views.size} px, as there"
    )
    return replace(config, start=str(folder), start_sha256=start.sha256, backbone=given, views=views)


def _absolute(name: str) -> str:
    """The name of a backbone; for a file or folder its absolute path, because a run may be resumed from another folder."""
    return os.path.abspath(name) if Path(name).exists() else name


def _choose_backbone(config: Config, cache: Path) -> tuple[Config, Backbone]:
    """The configuration with backbone and precision decided, and the backbone."""
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
    """The backbone of an existing run. cache: the folder of its weights, if not the run's own cache folder."""
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


def _choose_model_kept(config: Config, manifest: Manifest) -> Config:
    """The configuration with `model_kept: last` instead of `best-old`, if there are no steps or no test images to choose by."""
    if config.model_kept != "best-old":
        return config
    trains = METHODS[config.method].trains
    if trains and manifest.tests_known_classes:
        return config
    if trains:
        say("model kept: the last, because there is no test image of a known class to choose the best by")
    return replace(config, model_kept="last")


def _choose_storage(config: Config, backbone: Backbone, paths: Sequence[Picture], cache: Path) -> Config:
    """The configuration with views.bank and run.image_cache decided."""
    method, views = METHODS[config.method], config.views
    length = run_length(config.schedule, len(paths), method.trains)
    if not length.steps:
        views = replace(views, bank_views=0)  # without training, only centre crops are needed
    elif views.bank != "off" and not views.bank_views:
        raise UsageError(
            "views.bank_views is 0, but a view bank for training needs 2 or more; raise it, or turn the bank off"
        )
    bank = decide_bank(method, backbone, paths, views, cache)
    if method.cut.early and method.first is not None:
        config = configuration.override(config, {"first": {"bank": views.bank}}, "first stage")
    draws = length.steps * length.batch / len(paths) * (views.fresh if bank else 1.0)
    keep = decide_image_cache(config.run.image_cache, len(paths), views.short_side, draws, cache)
    views = replace(views, bank="on" if bank else "off")
    return replace(config, views=views, run=replace(config.run, image_cache="on" if keep else "off"))


def decide_bank(
    method: type[Method], backbone: Backbone, paths: Sequence[Picture], views: ViewsConfig, cache: Path
) -> bool:
    """Whether the run has a view bank; "auto": if the bank exists already or fits into half of the free disk."""
    if views.bank == "off" or views.fresh == 1:
        return False
    if method.cut.early:
        say(f"view bank: off, because {method.__name__} trains {method.cut.early}, so the trunk's tokens change")
        return False
    kinds, needed = stored_kinds(method.views), max(Counter(method.views).values())
    if 0 < views.bank_views < needed:  # with 0, the bank holds only centre crops
        raise UsageError(
            f"views.bank_views is {views.bank_views}, but a step draws {needed} different views of one kind; "
            f"use {needed} or more"
        )
    size = bank_bytes(len(paths), views, backbone.token_shape(views.crop), kinds)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    use_bank = views.bank == "on" or size <= free / 2 or not missing_views(backbone, paths, views, cache, kinds)
    which = f"{views.bank_views} views" if views.bank_views else "the centre crops"
    which += f" of each of {len(kinds)} kinds" if views.bank_views and len(kinds) > 1 else ""
    say(
        f"view bank: {'on' if use_bank else 'off'} ({amount(size)} for {which} of {len(paths)} images; "
        f"{amount(free)} free in {cache})"
    )
    return use_bank


def first_stage(config: Config, method: str) -> Config:
    """The configuration of the first stage: that of the second without the keys that belong to one of the two methods alone.

    Values that the package sets for either method, such as its published rate, stay with that method; so do the extras.
    """
    dropped = configuration.own_keys(config.method) | configuration.own_keys(method)
    dropped |= {"method", "preset", "model_kept", "start", "start_sha256", "extras"}
    values = configuration.without(configuration.to_dict(config), dropped)
    given: FirstStage = config.options.first
    same_length = given.steps is None and given.epochs is None
    steps = config.schedule.steps if same_length else given.steps
    if same_length and isinstance(steps, int):
        steps = max(1, round(given.times * steps))
    values["schedule"] |= {"steps": steps, "epochs": given.epochs or config.schedule.epochs}
    values["prune"] = False  # the second stage starts from all K categories
    if METHODS[config.method].cut.early:  # the second stage cannot have a bank, the first one can
        del values["views"]["bank"], values["run"]["image_cache"]
        values["views"] |= {} if given.bank is None else {"bank": given.bank}
    own = configuration.compose(config.preset, method=method)
    return configuration.override(own, configuration.fitted(own, values, "first stage"), "first stage")


def set_k(run: Run, features: Tensor) -> Run:
    """The run with an estimated K, which is written to config.yaml, so that `resume` keeps it.

    A run that continues another one keeps its categories, and adds what is found in images of none of them. Otherwise all
    images are looked at (`estimate_k`), and estimate.json has the result.

    features: (N, width), standardised; no rows on ranks other than 0.
    """
    k = distributed.from_rank0(lambda: _estimated_k(run, features))
    config = replace(run.config, k=k, prune=True)
    if distributed.rank() == 0:
        write_text(run.folder / "config.yaml", configuration.dump(config))
    return replace(run, config=config)


def _estimated_k(run: Run, features: Tensor) -> int:
    label, factor = run.manifest.training_labels, run.config.k_times
    times = f", {factor} times that is" if factor > 1 else ";"
    continued = read_before(run)
    if continued is not None:
        so_far, more = _categories_so_far(
            continued.so_far(run.manifest), features, torch.from_numpy(label), run.config.seed
        )
        k = min((so_far + more) * factor, len(label))
        say(f"categories: {so_far} so far, {more} in images of none of them{times} K = {k} (choose another with --k)")
        return k
    estimated = estimate(features, label, run.config.seed)
    k = min(estimated.k * factor, len(label))
    say(
        f"categories: about {estimated.k} ({estimated.low} to {estimated.high}){times} K = {k} (choose another with --k)"
    )
    write_json(run.estimate, estimated.to_json())
    return k


def _categories_so_far(before: Before, features: Tensor, label: Tensor, seed: int) -> tuple[int, int]:
    """The number of categories so far, and how many more there are in images of none of them, counted as `debgcd add` does."""
    features, there = features.cpu(), before.category >= 0
    none = (label < 0) & (before.judge(features)[0] > 0.5)
    clusters = discover(features[there], before.category[there], features[none], None, seed)
    return before.count, int(clusters.max()) + 1 if len(clusters) else 0


def estimate(
    features: Tensor, label: NDArray[np.int64], seed: int, way: Way = "consensus", most: int | None = None
) -> Estimate:
    """`estimate_k` with a progress bar, and a warning if one known class is too little to estimate K from."""
    if label.max() == 0:
        say("categories: one known class cannot tell how wide a category is; give K instead of estimating it")
    with progress("estimating K") as report:
        return estimate_k(features.cpu(), torch.from_numpy(label), way=way, most=most, seed=seed, on_progress=report)
