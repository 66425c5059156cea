"""Time and memory against the number of images N and of categories K, on made-up features: no backbone in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from debgcd.bench.apart import apart
from debgcd.bench.lines import Line
from debgcd.bench.networks import Trainee
from debgcd.bench.session import Session
from debgcd.bench.timing import Work, interleave
from debgcd.config import Config
from debgcd.data.sampler import Sampler, half_labelled
from debgcd.evaluate import score
from debgcd.methods import create
from debgcd.model.backbone import Backbone
from debgcd.model.heads import reset_heads
from debgcd.model.network import Network
from debgcd.progress import progress
from debgcd.train.categories import categories
from debgcd.train.finish import prediction_rows, predictions_csv
from debgcd.train.infer import infer
from debgcd.train.loop import sgd
from debgcd.train.tokens import CENTRE_BATCH

RIGHT = 0.7  # of the images, in the scores' input


def measure(session: Session) -> list[Line]:
    sizes, lines = session.sizes, []
    width = sizes.scaling_width
    with progress("scaling") as report:
        for done, (images, k) in enumerate(sizes.scaling, 1):
            config = replace(session.config(), k=k, heads=replace(sizes.heads, hidden=width))
            found, peak = apart(scale, config, images, width, session.repeats)
            report(done, len(sizes.scaling))
            what = f"{images:,} images, {k:,} categories: "
            lines += [
                Line("scaling", what + "step of the heads", "s", found["step"]),
                Line("scaling", what + "predictions.csv from features", "s", found["predictions"]),
                Line("scaling", what + "scores, matching included", "s", found["scores"]),
            ]
            if peak is not None:
                lines.append(Line("scaling", what + "peak RssAnon", "GiB", peak / 2**30))
    return lines


class Features(Backbone):
    """Features that are given."""

    standardise = False

    def __init__(self, width: int):
        super().__init__()
        self.width, self.multiple, self.tuned = width, 1, nn.ModuleList()

    def tokens(self, pixels: Tensor) -> Tensor:
        return pixels

    def tail(self, tokens: Tensor) -> Tensor:
        return tokens


def scale(config: Config, images: int, width: int, repeats: int) -> dict[str, float]:
    """Seconds of a training step, of the predictions of all images, and of their scores; half of the K are known."""
    assert config.k is not None
    known, random = max(1, config.k // 2), np.random.default_rng(0)
    method = create(config, known)
    network = Network(Features(width), method.heads(width))
    reset_heads(network.heads, config.seed)
    one = Trainee(network, method, sgd(network, config.schedule))
    truth = random.integers(0, config.k, images)
    label = np.where((truth < known) & (random.random(images) < 0.5), truth, -1)
    sampler = Sampler(half_labelled(label), min(config.schedule.batch, images), config.seed)
    features = torch.randn(2 * sampler.batch, width, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        drawn = sampler.draws(0).image
        one.step(features, torch.from_numpy(label[drawn]))

    def batches() -> Iterator[Tensor]:
        for start in range(0, images, CENTRE_BATCH):
            yield features[: min(CENTRE_BATCH, images - start)]

    def predictions() -> None:
        paths = [Path(f"{i}.jpg") for i in range(images)]
        found = categories([f"class {i:05d}" for i in range(known)], config.k or known)
        predictions_csv(prediction_rows(paths, infer(network, method, batches()), found))

    predicted = np.where(random.random(images) < RIGHT, truth, random.integers(0, config.k, images))
    seconds = interleave({"step": Work(step)}, repeats, time.perf_counter, lambda done, total, note="": None)
    for name, work in (("predictions", predictions), ("scores", lambda: score(truth, predicted, known))):
        begun = time.perf_counter()
        work()
        seconds[name] = time.perf_counter() - begun
    return seconds
