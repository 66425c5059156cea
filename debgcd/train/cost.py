"""The seconds that a plan takes, from a small trial on this machine, and those of each `--quality`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from debgcd import config as configuration
from debgcd.config.schedules import Progress, run_length
from debgcd.config.schema import Config
from debgcd.data.sampler import Draws
from debgcd.methods import create
from debgcd.methods.base import Batch, Method, Sizes
from debgcd.model.backbone import Backbone, pick_device
from debgcd.model.load import BEST, BEST_BUILT_IN
from debgcd.system.progress import duration
from debgcd.tokens.bank import stored_kinds
from debgcd.train.plan import SIZE, Plan, Quality, resolve_auto
from debgcd.train.setup import build

# Compared with lite0, per pixel: multiply-adds; of the last one, time with random weights on one core
RELATIVE_WORK = {"lite0": 1.0, "lite1": 1.3, "lite2": 1.5, BEST: 8.7}


@dataclass(frozen=True)
class Cost:
    """The expected time of a run on this machine, in parts that scale with pixels and steps."""

    view: float  # seconds of the trunk per view
    step: float  # seconds per training step on tokens
    kept: int  # views that the trunk computes once: those of the bank, or the centre crops
    drawn: float  # views that the trunk computes at each step
    steps: int
    first_stage: float = 0.0  # seconds

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.first_stage + (self.kept + self.drawn * self.steps) * self.view + self.steps * self.step


@dataclass(frozen=True)
class Level:
    """What a quality means for these images."""

    image_size: int
    backbone: str
    steps: int
    seconds: float  # about

    def __str__(self) -> str:
        return f"{self.image_size} px, {self.backbone}, {self.steps} steps, about {duration(self.seconds)}"


def expected_cost(plan: Plan) -> Cost:
    """The cost of a run and its first stage. A trial measures both; it leaves the run's random numbers and weights unchanged."""
    config, images, length = plan.config, len(plan.manifest.training_rows), plan.length
    sizes = Sizes(plan.backbone.width, plan.k, len(plan.manifest.classes), images)
    method = create(replace(config, k=plan.k), sizes)
    bank = config.views.bank == "on"
    view, step = _time_trial(method, plan.backbone, length.batch)
    kept = images * (len(stored_kinds(method.views)) * config.views.bank_views + 1 if bank else 1)
    drawn = len(method.views) * length.batch * (config.views.fresh if bank else 1)
    first_stage = 0.0 if plan.first is None else expected_cost(plan.first).seconds
    return Cost(view, step, kept, drawn, length.steps, first_stage)


def quality_decides(asked: Config) -> bool:
    """Whether pixels or steps depend on the quality: not if both are given, nor if the run starts from another run."""
    return asked.quality is not None and asked.start is None and "auto" in (asked.views.size, asked.schedule.steps)


def alternatives(plan: Plan, cost: Cost) -> dict[Quality, Level]:
    """Size, steps and time of each quality, by scaling `cost`; empty unless `quality_decides`."""
    asked, paths = plan.asked, plan.manifest.training_paths
    if asked.quality is None or not quality_decides(asked):
        return {}
    chosen, levels = configuration.compose("small", quality=asked.quality), {}
    for name in SIZE:
        preset = configuration.compose("small", quality=name)
        # a backbone that the user chose stays
        follows = asked.backbone.name == chosen.backbone.name
        backbone = replace(asked.backbone, name=preset.backbone.name) if follows else asked.backbone
        if backbone.name is None:
            # of `best`: what the plan found, or else the built-in one, because only a run of that quality asks the hub
            backbone = replace(backbone, name=plan.config.backbone.name if name == asked.quality else BEST_BUILT_IN)
        schedule = replace(asked.schedule, steps_times=preset.schedule.steps_times)
        other = replace(asked, backbone=backbone)
        other = other if name == asked.quality else replace(other, quality=name, schedule=schedule)
        other = resolve_auto(other, paths)
        steps = run_length(other.schedule, len(paths), cost.steps > 0).steps
        slower = (other.views.crop / plan.config.views.crop) ** 2 * _work(other) / _work(plan.config)
        times = {part: getattr(cost, part) * slower for part in ("view", "step", "first_stage")}
        scaled = replace(cost, **times, steps=steps)
        levels[name] = Level(other.views.crop, str(other.backbone.name), steps, scaled.seconds)
    return levels


def describe(quality: Quality, levels: dict[Quality, Level]) -> str:
    """One line: size, steps and time of the chosen quality, then those of the others."""
    others = "; ".join(f"{name}: {level}" for name, level in levels.items() if name != quality)
    return f"quality: {quality}, {levels[quality]} ({others}; choose with --quality)"


def _work(config: Config) -> float:
    """The backbone's work per pixel relative to lite0; 1 for one that RELATIVE_WORK does not list."""
    return RELATIVE_WORK.get(config.backbone.name or "", 1.0)


def _time_trial(method: Method, backbone: Backbone, batch: int) -> tuple[float, float]:
    """Seconds of the trunk per view, and of a training step on a batch of tokens."""
    config = method.config
    # the run's own random numbers stay as they are
    with torch.random.fork_rng(devices=[]):
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
    trial = Batch.of(tokens, Draws(numbers, numbers % method.sizes.images), label, device)

    def step() -> Tensor:
        loss = method.loss(network, trial, Progress(1, 2, 1)).total
        loss.backward()
        return loss

    seconds = _seconds(step) * batch / rows
    # no optimiser has changed the backbone, which the run will use
    network.zero_grad()
    return trunk, seconds


def _seconds(work: Callable[[], Tensor]) -> float:
    """Minimum over a few repeats: other load can only add time, and the first repeat also allocates memory."""
    seconds: list[float] = []
    while len(seconds) < 4 and sum(seconds) < 3:
        begun = time.monotonic()
        # reading a value waits until a GPU has computed it
        float(work().detach().sum())
        seconds.append(time.monotonic() - begun)
    return min(seconds)
