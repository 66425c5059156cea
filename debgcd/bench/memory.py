"""Peak memory of training with the view bank, and of building one: it must not grow with the number of images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from debgcd.bench.apart import anonymous_bytes, apart
from debgcd.bench.lines import Line
from debgcd.bench.networks import ours, random_vit, read_bank, write_random_bank
from debgcd.bench.photos import photographs
from debgcd.bench.session import Session, Shape
from debgcd.config import BackboneConfig, Config
from debgcd.data.rows import Manifest
from debgcd.model.load import load_backbone
from debgcd.progress import say
from debgcd.train.bank import open_bank, token_shape
from debgcd.train.loop import train
from debgcd.train.run import create as create_run
from debgcd.train.setup import prepare

MOST = 3.0  # GiB
FLAT = 1.1  # times, from the smallest number of images to the largest
TUNED_BLOCKS = 2
EVERY = 4  # of so many images one is unlabelled, and evaluated: more of them take longer, not more memory


def measure(session: Session) -> list[Line]:
    if anonymous_bytes() is None:
        note = "this system has no /proc/self/status that tells RssAnon"
        return [Line("memory", "training with the bank", "GiB", None, note=note)]
    shape = session.shapes[0]  # the smallest
    sizes = session.sizes
    what = f"{shape.name}, peak RssAnon, "
    peaks = [_training_peak(session, shape, images) for images in sizes.memory_images]
    note = f"bank of random tokens, {sizes.memory_views} views; {sizes.memory_steps} steps and an evaluation"
    lines = [
        Line("memory", f"{what}training with the bank, {images:,} images", "GiB", peak, at_most=MOST, note=note)
        for images, peak in zip(sizes.memory_images, peaks, strict=True)
    ]
    first, last = sizes.memory_images[0], sizes.memory_images[-1]
    growth = f"{what}{last:,} images against {first:,}"
    lines.append(Line("memory", growth, "times", peaks[-1] / peaks[0], at_most=FLAT))
    peak, views = _building_peak(session, shape)
    building = f"{what}building the bank, {sizes.memory_built} images of {views} views"
    return [*lines, Line("memory", building, "GiB", peak, at_most=MOST, note="decoding in the same process")]


def _training_peak(session: Session, shape: Shape, images: int) -> float:
    sizes, (_, weights) = session.sizes, random_vit(session, shape)
    say(f"memory, {shape.name}, {images} images:")
    backbone = ours(session, shape, TUNED_BLOCKS).network.backbone
    bank = session.folder / f"memory-{images}.bank"
    rows = (images, sizes.memory_views + 1, *token_shape(backbone, sizes.views.size))
    config = session.config()
    config = replace(
        config,
        backbone=BackboneConfig(str(weights), None, backbone.identity.sha256, TUNED_BLOCKS),
        views=replace(config.views, bank="on", bank_views=sizes.memory_views),
        schedule=replace(config.schedule, steps=sizes.memory_steps, batch=sizes.data.batch),
        run=replace(config.run, device="cpu"),
    )
    write_random_bank(bank, rows)
    try:
        _, peak = apart(train_on_bank, config, sizes.known, bank, rows, session.folder / f"memory-{images}")
    finally:
        bank.unlink()
    assert peak is not None
    return peak / 2**30


def train_on_bank(config: Config, known: int, bank: Path, rows: tuple[int, ...], folder: Path) -> None:
    """The whole of a run after its bank was built, on a bank's file: steps, evaluation, model and predictions."""
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
    backbone = load_backbone(config.backbone.name, tuned_blocks=TUNED_BLOCKS, image_size=config.views.size)
    run = create_run(folder, config, manifest)
    train(run, prepare(run, backbone, read_bank(bank, rows)))


def _building_peak(session: Session, shape: Shape) -> tuple[float, int]:
    sizes, (_, weights) = session.sizes, random_vit(session, shape)
    paths = photographs(session, sizes.small, sizes.memory_built)
    say(f"memory, {shape.name}, building a bank:")
    config = replace(session.config(), views=replace(sizes.views, bank="on"))
    _, peak = apart(build_bank, config, str(weights), paths, session.folder / "memory-cache")
    assert peak is not None
    return peak / 2**30, config.views.bank_views + 1


def build_bank(config: Config, weights: str, paths: list[Path], cache: Path) -> None:
    """Build a bank in this process alone."""
    backbone = load_backbone(weights, tuned_blocks=TUNED_BLOCKS, image_size=config.views.size)
    open_bank(backbone, TUNED_BLOCKS, paths, config.views, cache, 0, lambda done, total: None)
