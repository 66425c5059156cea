"""Times of training: a step, the trunk alone, and from them an epoch and a whole schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from debgcd.data.loader import default_workers
from debgcd.infer.infer import infer
from debgcd.model.backbone import Backbone, chunk_rows
from debgcd.reproduce.bench.decode import decode_seconds, photographs
from debgcd.reproduce.bench.networks import (
    TUNED_BLOCKS,
    alternate_labels,
    bank_for,
    from_bank,
    ours,
    plain,
    random_images,
    require_same_loss,
    trunk_type,
)
from debgcd.reproduce.bench.session import DataSet, Line, Session, Shape, Work, compare, silent
from debgcd.system.machine import cores
from debgcd.system.progress import progress
from debgcd.tokens.bank import open_bank

# Factors, of ViT-B/16 only: the step without a bank, the trunk against bare products, and three lines of the epoch.
GOALS = {"step": 2.0, "trunk": 0.7, "epoch 2 blocks": 6.0, "epoch 1 block": 20.0, "schedule": 8.0}


def goal(shape: Shape, name: str) -> float | None:
    return GOALS[name] if shape.name == "ViT-B/16" else None


# A training step of DebGCD: ours without and with the bank, and the plain one. Same weights, same batch.


def measure_step(session: Session) -> list[Line]:
    lines = []
    for shape in session.shapes:
        took = {name: seconds * shape.batch for name, seconds in step_seconds(session, shape).items()}
        what, least = f"{shape.name}, {shape.batch} images, ", goal(shape, "step")
        lines += [
            compare("step", what + "2 tuned blocks", "s", took["fresh-2"], took["plain-2"], at_least=least),
            compare("step", what + "2 tuned blocks, from the bank", "s", took["bank-2"], took["plain-2"]),
            compare("step", what + "1 tuned block, from the bank", "s", took["bank-1"], took["plain-1"]),
        ]
    return lines


def step_seconds(session: Session, shape: Shape) -> dict[str, float]:
    """Seconds per image of each kind of step: fresh-2, plain-2, bank-2, bank-1, plain-1 (the number of tuned blocks)."""
    return session.once(("step", shape), lambda: _step_seconds(session, shape))


def _step_seconds(session: Session, shape: Shape) -> dict[str, float]:
    images = random_images(2 * shape.batch, session.sizes.views.crop)
    label = alternate_labels(shape.batch, session.sizes.known)
    with progress(f"step, {shape.name}") as report:
        fresh2, plain2 = ours(session, shape, 2), plain(session, shape, 2)
        bank1, plain1 = ours(session, shape, 1), plain(session, shape, 1)
        bank2 = ours(session, shape, 2)
        require_same_loss(fresh2, plain2, images, label)
        require_same_loss(bank1, plain1, images, label)
        tokens2, tokens1 = (bank_for(session, one, shape.batch) for one in (bank2, bank1))
        works = {
            "fresh-2": lambda: fresh2.step(fresh2.trunk(images), label),
            "plain-2": lambda: plain2.step(plain2.trunk(images), label),
            "bank-2": lambda: bank2.step(from_bank(tokens2, shape.batch), label),
            "bank-1": lambda: bank1.step(from_bank(tokens1, shape.batch), label),
            "plain-1": lambda: plain1.step(plain1.trunk(images), label),
        }
        seconds = session.seconds({name: Work(run, shape.batch) for name, run in works.items()}, report)
        # after the same number of steps on both sides: a wrong gradient would show here
        require_same_loss(fresh2, plain2, images, label)
    return seconds


# The trunk as a share of the machine's own rate of matrix products. The reference is a trunk of bare products with the
# same shapes, number type and threads.

Product = tuple[int, int, int, int, int]  # count; batch, rows, inner and columns of the product for one image


def measure_trunk(session: Session) -> list[Line]:
    lines = []
    for shape in session.shapes:
        with progress(f"trunk, {shape.name}") as report:
            trunk = ours(session, shape, TUNED_BLOCKS).network.backbone
            size = session.sizes.views.crop
            bare = Products(products(shape, size, shape.depth - TUNED_BLOCKS))
            count = chunk_rows(random_images(1, size)) * cores()  # one chunk for each core, on both sides
            images, empty = random_images(count, size), random_images(count, 1)
            works = {
                "ours": Work(lambda: trunk.trunk(images), count),  # noqa: B023 (called within this iteration)
                "bare": Work(lambda: bare.trunk(empty), count),  # noqa: B023
            }
            seconds = session.seconds(works, report)
        rates = {name: bare.flops / seconds[name] / 1e9 for name in works}
        what = f"{shape.name}, products of {shape.depth - TUNED_BLOCKS} blocks in {trunk_type()}, against bare products"
        lines.append(compare("trunk", what, "GFLOP/s", rates["ours"], rates["bare"], at_least=goal(shape, "trunk")))
    return lines


def products(shape: Shape, size: int, blocks: int) -> list[Product]:
    """The matrix products of a trunk with this number of blocks, for one image."""
    patches, width = (size // shape.patch) ** 2, shape.width
    rows, head = patches + 1, width // shape.heads
    return [
        (1, 1, patches, 3 * shape.patch**2, width),
        (4 * blocks, 1, rows, width, width),  # query, key, value, output
        (blocks, shape.heads, rows, head, rows),
        (blocks, shape.heads, rows, rows, head),
        (blocks, 1, rows, width, shape.hidden),
        (blocks, 1, rows, shape.hidden, width),
    ]


class Products(Backbone):
    """A trunk of bare products; being a backbone, it is split into chunks and threads like the real one."""

    def __init__(self, wanted: list[Product]):
        super().__init__()
        self._wanted = wanted
        self.flops = sum(2 * count * batch * m * k * n for count, batch, m, k, n in wanted)  # per image
        self.tuned = nn.ModuleList()
        self.register_buffer("pixel_mean", torch.zeros(3, 1, 1))
        self.register_buffer("pixel_std", torch.ones(3, 1, 1))

    def tokens(self, pixels: Tensor) -> Tensor:
        """(N, 3, 1, 1): only N matters. Results go to one buffer, so that the allocator is not timed."""
        kind, rows = getattr(torch, trunk_type()), len(pixels)
        for count, batch, m, k, n in self._wanted:
            if batch == 1:  # one weight for all rows of all images
                a, b, out = (torch.ones(sides, dtype=kind) for sides in ((rows * m, k), (k, n), (rows * m, n)))
            else:
                a, b, out = (torch.ones(rows * batch, *sides, dtype=kind) for sides in ((m, k), (k, n), (m, n)))
            for _ in range(count):
                torch.matmul(a, b, out=out)
        return pixels

    def tail(self, tokens: Tensor) -> Tensor:
        raise TypeError("bare products have no tail")


# An epoch and a whole schedule, computed from the measured times of their parts: a real one takes the plain way hours.
#
# Assumptions: All images have VGA size. Decoding runs in worker processes on the same cores as everything else, so its
# time on one core divided by the number of cores is added, on both sides. The plain way trains on fresh views and
# evaluates after every epoch, on the unlabelled training images and on the test images. This program evaluates every
# `run.eval_every` epochs, on the bank's centre crops if there is a bank; it decodes and computes the test images each
# time. Not included, on both sides: matching clusters to classes. Not included either: the image cache that a run without
# a bank may have.


@dataclass(frozen=True)
class Costs:
    """Seconds per image."""

    step: float  # of training, including the tokens
    unlabelled: float  # of an evaluation
    test: float


def measure_epoch(session: Session) -> list[Line]:
    return [line for shape in session.shapes for line in _epoch_lines(session, shape)]


def epoch_seconds(data: DataSet, costs: Costs, eval_every: int) -> float:
    """An epoch and its share of an evaluation."""
    drawn = data.train // data.batch * data.batch
    return drawn * costs.step + (data.unlabelled * costs.unlabelled + data.test * costs.test) / eval_every


def _epoch_lines(session: Session, shape: Shape) -> list[Line]:
    sizes, config = session.sizes, session.config()
    data, every = sizes.data, config.run.eval_every
    steps, took = step_seconds(session, shape), _part_seconds(session, shape)
    decode = {who: t / cores() for who, t in decode_seconds(session, sizes.small, sizes.small_photos).items()}
    plain2, plain1 = (
        epoch_seconds(data, Costs(steps[f"plain-{n}"] + decode["plain"], *[took["plain"] + decode["plain"]] * 2), 1)
        for n in (2, 1)
    )
    look = took["fresh"] + decode["ours"]
    fresh2 = epoch_seconds(data, Costs(steps["fresh-2"] + decode["ours"], look, look), every)
    bank2, bank1 = (epoch_seconds(data, Costs(took[f"bank-{n}"], took[f"look-{n}"], look), every) for n in (2, 1))
    building = data.train * (config.views.bank_views + 1) * took["build"]
    what = f"{shape.name}, {data.name}'s size, "

    def line(kind: str, mine: float, theirs: float, unit: str, least: float | None = None, note: str = "") -> Line:
        mine, theirs = (seconds / {"min": 60, "h": 3600}[unit] for seconds in (mine, theirs))
        return compare("epoch", what + kind, unit, mine, theirs, at_least=least, computed=True, note=note)

    least, note = goal(shape, "schedule"), ""
    if least is not None and trunk_type() != "bfloat16":
        least, note = None, "8× are asked of a machine with bfloat16, and this one has none"
    whole = f"2 tuned blocks, {data.epochs} epochs and building the bank of {config.views.bank_views} views"
    return [
        line("2 tuned blocks, no bank", fresh2, plain2, "min"),
        line("2 tuned blocks, bank built", bank2, plain2, "min", goal(shape, "epoch 2 blocks")),
        line("1 tuned block, bank built", bank1, plain1, "min", goal(shape, "epoch 1 block")),
        line(whole, data.epochs * bank2 + building, data.epochs * plain2, "h", least, note),
    ]


def _part_seconds(session: Session, shape: Shape) -> dict[str, float]:
    """Seconds per image of the parts of an epoch.

    bank-2, bank-1: a step at the data set's own batch size; plain, fresh: evaluation of new images; look-2, look-1:
    evaluation from the bank; build: one view of the bank, including decoding and writing.
    """
    sizes, batch = session.sizes, session.sizes.data.batch
    images = random_images(2 * shape.batch, sizes.views.crop)
    label = alternate_labels(batch, sizes.known)
    paths = photographs(session, sizes.small, sizes.small_photos)[: sizes.built]
    views = replace(sizes.views, bank="on", bank_views=sizes.built_views)
    caches = (session.folder / f"bank-{shape.width}-{turn}" for turn in range(session.repeats + 1))
    with progress(f"epoch, {shape.name}") as report:
        two, one, whole = ours(session, shape, 2), ours(session, shape, 1), plain(session, shape, 2)
        bank2, bank1 = bank_for(session, two, batch), bank_for(session, one, batch)
        numbers = np.arange(batch, dtype=np.int64)

        def build() -> None:
            open_bank(two.network.backbone, paths, views, next(caches), default_workers(), silent)

        works = {
            "bank-2": Work(lambda: two.step(from_bank(bank2, batch), label), batch),
            "bank-1": Work(lambda: one.step(from_bank(bank1, batch), label), batch),
            "plain": Work(lambda: infer(whole.network, whole.method, [whole.trunk(images)]), len(images)),
            "fresh": Work(lambda: infer(two.network, two.method, [two.trunk(images)]), len(images)),
            "look-2": Work(lambda: infer(two.network, two.method, bank2.centre(numbers)), batch),
            "look-1": Work(lambda: infer(one.network, one.method, bank1.centre(numbers)), batch),
            "build": Work(build, len(paths) * (views.bank_views + 1)),
        }
        return session.seconds(works, report)
