"""Peak memory: of training with the view bank, of building one, and as images and categories grow in number.

Parts of benchmarks/performance.py. Each measurement runs in its own process, see `apart`.
"""

from __future__ import annotations

import multiprocessing
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from debgcd.config.schema import BackboneConfig, Config
from debgcd.data.fingerprints import Contents
from debgcd.data.manifest import Manifest
from debgcd.data.sampler import Sampler, half_labelled
from debgcd.errors import DebgcdError
from debgcd.evaluate import score
from debgcd.infer.infer import infer
from debgcd.model.backbone import Backbone
from debgcd.model.load import load_backbone
from debgcd.reproduce.bench.networks import (
    TUNED_BLOCKS,
    ours,
    photographs,
    random_bank,
    random_vit,
    trainee,
)
from debgcd.reproduce.bench.session import Line, Session, Shape, Work, interleave, silent
from debgcd.run.categories import categories
from debgcd.run.directory import create_run
from debgcd.run.predictions import prediction_table, to_csv
from debgcd.system.progress import progress, say
from debgcd.tokens.bank import open_bank
from debgcd.tokens.sources import CENTRE_BATCH
from debgcd.train.finish import finish
from debgcd.train.loop import fit
from debgcd.train.setup import prepare

SAMPLING_SECONDS = 0.01  # between two readings of the memory
STATUS = Path("/proc/self/status")


def anonymous_bytes() -> int | None:
    """RssAnon of this process; None if the system does not report it.

    These are the pages that the process itself has filled. Pages of a mapped file do not count, because the system can
    reclaim them at any time.
    """
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


class Peak:
    """The maximum of `anonymous_bytes` while the block runs, sampled by a thread."""

    bytes: int | None = None

    def __enter__(self) -> Peak:
        self._stop = threading.Event()
        self._look()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLING_SECONDS):
            self._look()

    def _look(self) -> None:
        now = anonymous_bytes()
        if now is not None:
            self.bytes = max(now, self.bytes or 0)


def apart(work: Callable[..., Any], *arguments: Any) -> tuple[Any, int | None]:
    """The result of `work` (a module-level function) in a fresh process, and the peak memory of that process."""
    context = multiprocessing.get_context("spawn")  # a fork would start with the memory of this process
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_watched, args=(sender, work, arguments))
    # Ctrl-C reaches the whole group; this process handles it and ends the child, which ignores it
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.start()
    signal.signal(signal.SIGINT, handler)
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        raise DebgcdError(
            f"the process that measures {work.__name__} ended with code {process.exitcode} before it finished; "
            "see its message above; without one, the system stopped it, most often for lack of memory"
        ) from None
    finally:
        process.kill()
        process.join()
        receiver.close()


def _watched(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with Peak() as peak:
        result = work(*arguments)
    sender.send((result, peak.bytes))


MOST_GIB = 3.0
FLAT = 1.1  # allowed growth from the smallest number of images to the largest
EVERY = 4  # one image in four is unlabelled and evaluated: more of them take longer, but no more memory


@dataclass(frozen=True)
class Load:
    """How much work these parts do: the default is for the page, a small one for tests."""

    images: tuple[int, int] = (1500, 6000)
    views: int = 2
    steps: int = 3
    built: int = 32  # two batches of the bank's builder
    scaling: tuple[tuple[int, int], ...] = ((10**4, 100), (10**5, 100), (10**6, 100), (10**4, 10**3), (10**4, 10**4))
    scaling_width: int = 256  # of the synthetic features


FOR_THE_PAGE = Load()


def measure_memory(session: Session, load: Load = FOR_THE_PAGE) -> list[Line]:
    """Training with the bank and building one: memory must not grow with the number of images."""
    if anonymous_bytes() is None:
        note = "this system has no /proc/self/status that tells RssAnon"
        return [Line("memory", "training with the bank", "GiB", None, note=note)]
    shape, sizes = session.shapes[0], session.sizes  # the smallest
    what = f"{shape.name}, peak RssAnon, "
    peaks = [_training_peak(session, shape, load, images) for images in load.images]
    note = f"bank of random tokens, {load.views} views; {load.steps} steps and an evaluation"
    lines = [
        Line("memory", f"{what}training with the bank, {images:,} images", "GiB", peak, at_most=MOST_GIB, note=note)
        for images, peak in zip(load.images, peaks, strict=True)
    ]
    growth = f"{what}{load.images[-1]:,} images against {load.images[0]:,}"
    lines.append(Line("memory", growth, "times", peaks[-1] / peaks[0], at_most=FLAT))
    say(f"memory, {shape.name}, building a bank:")
    config = replace(session.config(), views=replace(sizes.views, bank="on"))
    paths = photographs(session, sizes.small, load.built)
    weights = str(random_vit(session, shape)[1])
    peak = _peak_gib(build_bank, config, weights, paths, session.folder / "memory-cache")
    building = f"{what}building the bank, {load.built} images of {config.views.bank_views + 1} views"
    return [*lines, Line("memory", building, "GiB", peak, at_most=MOST_GIB, note="decoding in the same process")]


def _peak_gib(work: Callable[..., None], *arguments: Any) -> float:
    _, peak = apart(work, *arguments)
    assert peak is not None
    return peak / 2**30


def _training_peak(session: Session, shape: Shape, load: Load, images: int) -> float:
    sizes, (_, weights) = session.sizes, random_vit(session, shape)
    say(f"memory, {shape.name}, {images} images:")
    backbone = ours(session, shape, TUNED_BLOCKS).network.backbone
    bank = session.folder / f"memory-{images}-bank"
    rows = (images, load.views + 1, *backbone.token_shape(sizes.views.crop))
    config = session.config()
    config = replace(
        config,
        backbone=BackboneConfig(str(weights), None, backbone.identity.sha256, TUNED_BLOCKS),
        views=replace(config.views, bank="on", bank_views=load.views),
        schedule=replace(config.schedule, steps=load.steps, batch=sizes.data.batch),
        run=replace(config.run, device="cpu"),
    )
    random_bank(bank, rows)
    try:
        return _peak_gib(train_on_bank, config, sizes.known, bank, rows, session.folder / f"memory-{images}")
    finally:
        shutil.rmtree(bank)


def train_on_bank(config: Config, known: int, bank: Path, rows: tuple[int, ...], folder: Path) -> None:
    """A whole run on an existing bank: steps, evaluation, model and predictions."""
    assert config.backbone.name is not None and config.k is not None
    number = np.arange(rows[0])
    free = number % EVERY == 0
    truth = np.where(free, number // EVERY % config.k, number % known)
    names = [f"class {category:05d}" for category in truth]
    manifest = Manifest(
        paths=tuple(folder / f"{i}.jpg" for i in range(rows[0])),
        labels=tuple(None if unlabelled else name for name, unlabelled in zip(names, free, strict=True)),
        truths=tuple(names),
        splits=("train",) * rows[0],
        groups=(None,) * rows[0],
    )
    backbone = load_backbone(config.backbone.name, tuned_blocks=TUNED_BLOCKS, image_size=config.views.crop)
    run = create_run(folder, config, manifest, Contents(manifest.paths, [b""] * rows[0], []))
    setup = prepare(run, backbone, random_bank(bank, rows))
    finish(run, setup, fit(run, setup))


def build_bank(config: Config, weights: str, paths: list[Path], cache: Path) -> None:
    """Build a bank without worker processes."""
    backbone = load_backbone(weights, tuned_blocks=TUNED_BLOCKS, image_size=config.views.crop)
    open_bank(backbone, paths, config.views, cache, 0, silent)


# Time and memory against the number of images N and of categories K, on synthetic features without a backbone.

RIGHT = 0.7  # share of correct predictions in the input of the scores


def measure_scaling(session: Session, load: Load = FOR_THE_PAGE) -> list[Line]:
    lines, width = [], load.scaling_width
    with progress("scaling") as report:
        for done, (images, k) in enumerate(load.scaling, 1):
            config = session.config()
            options = replace(config.options, heads=replace(session.sizes.heads, hidden=width))
            seconds, peak = apart(scale, replace(config, k=k, options=options), images, width, session.repeats)
            report(done, len(load.scaling))
            what = f"{images:,} images, {k:,} categories: "
            lines += [Line("scaling", what + name, "s", value) for name, value in seconds.items()]
            if peak is not None:
                lines.append(Line("scaling", what + "peak RssAnon", "GiB", peak / 2**30))
    return lines


class Features(Backbone):
    """The images are their own features."""

    standardise = False

    def __init__(self, width: int):
        super().__init__()
        self.width, self.tail_blocks, self.tuned = width, 0, nn.ModuleList()

    def tokens(self, pixels: Tensor) -> Tensor:
        return pixels

    def tail(self, tokens: Tensor) -> Tensor:
        return tokens


def scale(config: Config, images: int, width: int, repeats: int) -> dict[str, float]:
    """Seconds of a training step, of predicting all images, and of scoring them; half of the K categories are known."""
    assert config.k is not None
    known, random = max(1, config.k // 2), np.random.default_rng(0)
    one = trainee(config, known, Features(width))
    truth = random.integers(0, config.k, images)
    label = np.where((truth < known) & (random.random(images) < 0.5), truth, -1)
    sampler = Sampler(half_labelled(label), min(config.schedule.batch, images), config.seed)
    features = torch.randn(2 * sampler.batch, width, generator=torch.Generator().manual_seed(0))
    predicted = np.where(random.random(images) < RIGHT, truth, random.integers(0, config.k, images))

    def step() -> None:
        one.step(features, torch.from_numpy(label[sampler.draws(0).image]))

    def batches() -> Iterator[Tensor]:
        for start in range(0, images, CENTRE_BATCH):
            yield features[: min(CENTRE_BATCH, images - start)]

    def predictions() -> None:
        paths = [Path(f"{i}.jpg") for i in range(images)]
        names = categories([f"class {i:05d}" for i in range(known)], config.k or known)
        to_csv(prediction_table(paths, infer(one.network, one.method, batches()), names, None))

    seconds = {"step of the heads": interleave({"step": Work(step)}, repeats, time.perf_counter)["step"]}
    once_timed: dict[str, Callable[[], object]] = {
        "predictions.csv from features": predictions,
        "scores, matching included": lambda: score(truth, predicted, known),
    }
    for name, work in once_timed.items():
        begun = time.perf_counter()
        work()
        seconds[name] = time.perf_counter() - begun
    return seconds
