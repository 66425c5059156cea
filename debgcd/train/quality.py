"""How many pixels and steps a run takes where its configuration says auto, and what each quality costs in time.

The sizes were measured on frozen lite0: photographs gain until 160 px and nothing beyond, tiny images lose above 96 px.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from debgcd import config as configuration
from debgcd.config.schedules import Progress
from debgcd.config.schema import LARGEST, Config
from debgcd.data.image.crop import Picture
from debgcd.data.image.decode import Unusable, short_side
from debgcd.data.manifest import Manifest
from debgcd.data.sampler import Draws
from debgcd.methods import METHODS, create
from debgcd.methods.base import Batch, Method, Sizes
from debgcd.model.backbone import Backbone, pick_device
from debgcd.model.lite import VARIANTS
from debgcd.system.progress import duration
from debgcd.tokens.bank import stored_kinds
from debgcd.train.loop import length
from debgcd.train.setup import build

Quality = Literal["fast", "balanced", "best"]
SIZE: dict[Quality, int] = {"fast": 96, "balanced": 160, "best": 160}
TINY, TINY_SIZE = 24, 96  # short side of images that have no detail to show, and their size
MANY, MANY_SIZE = 20_000, 128  # images whose views take hours without a GPU, and their size at `balanced`
VIT_SIZE = 224  # a whole number of patches of 8, 14, 16 or 32 pixels
LOOKED_AT = 200  # images whose size is read
PER_IMAGE, LEAST, MOST = 0.15, 60, 3000  # steps; the most only without a GPU
WORK = {"lite0": 1.0, "lite1": 1.3, "lite2": 1.5}  # multiply-adds per pixel compared with lite0


def settle(config: Config, paths: Sequence[Picture]) -> Config:
    """The configuration with numbers for views.size, views.resize and schedule.steps where they are auto."""
    views, schedule = config.views, config.schedule
    alone = pick_device(config.run.device).type == "cpu"
    if schedule.steps == "auto":
        steps = max(LEAST, PER_IMAGE * len(paths))
        steps = schedule.steps_times * (min(steps, MOST) if alone else steps)
        steps *= config.options.first.second if METHODS[config.method].first else 1
        schedule = replace(schedule, steps=max(1, round(steps)))
    if views.size == "auto":
        views = replace(views, size=_size(config, paths, alone))
    if views.resize == "auto":
        views = replace(views, resize=min(round(views.crop * 8 / 7), LARGEST))
    return replace(config, views=views, schedule=schedule)


def _size(config: Config, paths: Sequence[Picture], alone: bool) -> int:
    """The side of the crop that suits the backbone, the images and the quality."""
    if config.backbone.name not in VARIANTS:
        return VIT_SIZE
    quality = config.quality or "balanced"
    if _median_short_side(paths) < TINY:
        return TINY_SIZE
    return MANY_SIZE if quality == "balanced" and alone and len(paths) > MANY else SIZE[quality]


def _median_short_side(paths: Sequence[Picture]) -> float:
    """Of some of the images, evenly spaced; only their headers are read."""
    sides = []
    for i in np.linspace(0, len(paths) - 1, min(LOOKED_AT, len(paths)), dtype=int):
        with suppress(Unusable):  # the run itself says so when it decodes the file
            sides.append(short_side(paths[i]))
    return statistics.median(sides) if sides else TINY


@dataclass(frozen=True)
class Cost:
    """What a run takes, in seconds on this machine."""

    view: float  # of one view in the trunk
    step: float  # of one step on tokens
    kept: int  # views computed once
    drawn: float  # views computed at each step
    steps: int
    before: float = 0.0  # of a first stage

    @property
    def seconds(self) -> float:
        return self.before + (self.kept + self.drawn * self.steps) * self.view + self.steps * self.step


@dataclass(frozen=True)
class Level:
    """What a quality would do with these images."""

    image_size: int
    backbone: str
    steps: int
    seconds: float  # about

    def __str__(self) -> str:
        return f"{self.image_size} px, {self.backbone}, {self.steps} steps, about {duration(self.seconds)}"


def expected(config: Config, backbone: Backbone, manifest: Manifest) -> Cost:
    """The cost of a run that is decided, from a small try that changes nothing."""
    images, known = len(manifest.training_rows), len(manifest.classes)
    k = config.k or min(2 * known, images)  # the time hardly depends on it
    method = create(replace(config, k=k), Sizes(backbone.width, k, known, images))
    long = length(config.schedule, images, method.trains)
    bank = config.views.bank == "on"
    view, step = _measure(method, backbone, long.batch)
    kept = images * (len(stored_kinds(method.views)) * config.views.bank_views + 1 if bank else 1)
    drawn = len(method.views) * long.batch * (config.views.fresh if bank else 1)
    return Cost(view, step, kept, drawn, long.steps)


def decides(asked: Config) -> bool:
    """Whether the quality chooses anything: not where pixels and steps are given, nor where they are those of another run."""
    return asked.quality is not None and asked.start is None and "auto" in (asked.views.size, asked.schedule.steps)


def levels(asked: Config, decided: Config, paths: Sequence[Picture], cost: Cost) -> dict[Quality, Level]:
    """What each quality would cost, by scaling with pixels and steps; empty where the quality decides nothing.

    asked: the configuration before it was decided.
    """
    quality = asked.quality
    if quality is None or not decides(asked):
        return {}
    mine, found = configuration.compose("small", quality=quality), {}
    for name in SIZE:
        there = configuration.compose("small", quality=name)
        follows = asked.backbone.name == mine.backbone.name  # else the user's own backbone stays
        backbone = replace(asked.backbone, name=there.backbone.name) if follows else asked.backbone
        schedule = replace(asked.schedule, steps_times=there.schedule.steps_times)
        other = asked if name == quality else replace(asked, quality=name, backbone=backbone, schedule=schedule)
        other = settle(other, paths)
        steps = length(other.schedule, len(paths), cost.steps > 0).steps
        slower = (other.views.crop / decided.views.crop) ** 2 * _work(other) / _work(decided)
        times = {name: getattr(cost, name) * slower for name in ("view", "step", "before")}
        scaled = replace(cost, **times, steps=steps)
        found[name] = Level(other.views.crop, str(other.backbone.name), steps, scaled.seconds)
    return found


def told(quality: Quality, found: dict[Quality, Level]) -> str:
    """One line: what was chosen, and what more or less would cost."""
    others = "; ".join(f"{name}: {level}" for name, level in found.items() if name != quality)
    return f"quality: {quality}, {found[quality]} ({others}; choose with --quality)"


def _work(config: Config) -> float:
    return WORK.get(config.backbone.name or "", 1.0)


def _measure(method: Method, backbone: Backbone, batch: int) -> tuple[float, float]:
    """Seconds of the trunk for one image, and of a training step on tokens, from a small try."""
    config = method.config
    with torch.random.fork_rng(devices=[]):  # the run's own random numbers stay as they are
        device = pick_device(config.run.device)
        network = build(method, backbone).to(device)
        size = config.views.crop
        images = torch.zeros(32, 3, size, size, dtype=torch.uint8)
        trunk = _seconds(lambda: backbone.trunk(images)) / len(images)
        if not method.trains:
            return trunk, 0.0
        rows = min(batch, 32)
        tokens = torch.randn(len(method.views) * rows, *backbone.token_shape(size), device=device)
    numbers = np.arange(rows)
    label = np.where(numbers % 2, numbers % method.sizes.known, -1)
    some = Batch.of(tokens, Draws(numbers, numbers % method.sizes.images), label, device)

    def step() -> Tensor:
        loss = method.loss(network, some, Progress(1, 2, 1)).total
        loss.backward()
        return loss

    seconds = _seconds(step) * batch / rows
    network.zero_grad()  # the backbone goes on into the run; no optimiser has changed it
    return trunk, seconds


def _seconds(work: Callable[[], Tensor]) -> float:
    """The shortest of a few tries: whatever else the machine does only makes them longer. The first also allocates."""
    found: list[float] = []
    while len(found) < 4 and sum(found) < 3:
        begun = time.monotonic()
        float(work().detach().sum())  # waits for a GPU
        found.append(time.monotonic() - begun)
    return min(found)
