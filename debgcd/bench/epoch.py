"""An epoch, and a whole schedule, computed from measured times of its parts: a real one takes the plain way hours.

What is assumed: all images are as large as VGA. Decoding runs in worker processes on the same cores as everything else, on
both sides, so its time on one core divided by the number of cores is added. The plain way trains on fresh views and
evaluates after every epoch, on the unlabelled training images and on the test images; this program evaluates after every
`run.eval_every` epochs, on the bank's centre crops where there is a bank, and decodes and computes the test images each
time. Matching clusters to classes is left out on both sides, and so is the cache of decoded images that a run without a bank
may have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from debgcd.bench.decode import decode_seconds
from debgcd.bench.lines import Line, compare
from debgcd.bench.networks import from_bank, half_labelled, ours, plain, random_images, trunk_type
from debgcd.bench.photos import photographs
from debgcd.bench.session import DataSet, Session, Shape
from debgcd.bench.step import bank_for, step_seconds
from debgcd.bench.timing import Work
from debgcd.data.loader import default_workers
from debgcd.machine import cores
from debgcd.progress import progress
from debgcd.train.bank import open_bank
from debgcd.train.infer import infer

HEADS = ("detector", "debiased")  # what an evaluation asks for beside the classifier


@dataclass(frozen=True)
class Costs:
    """Seconds an image."""

    step: float  # of training, tokens included
    unlabelled: float  # of an evaluation
    test: float


def measure(session: Session) -> list[Line]:
    return [line for shape in session.shapes for line in _lines(session, shape)]


def epoch_seconds(data: DataSet, costs: Costs, eval_every: int) -> float:
    """An epoch and its share of an evaluation."""
    drawn = data.train // data.batch * data.batch
    return drawn * costs.step + (data.unlabelled * costs.unlabelled + data.test * costs.test) / eval_every


def _lines(session: Session, shape: Shape) -> list[Line]:
    sizes, config = session.sizes, session.config()
    data, every = sizes.data, config.run.eval_every
    steps, took = step_seconds(session, shape), _seconds(session, shape)
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

    def line(kind: str, mine: float, theirs: float, unit: str, goal: float | None = None, note: str = "") -> Line:
        divisor = {"min": 60, "h": 3600}[unit]
        return compare(
            "epoch", what + kind, unit, mine / divisor, theirs / divisor, at_least=goal, computed=True, note=note
        )

    large = shape.name == "ViT-B/16"
    note = "" if trunk_type() == "bfloat16" else "8× are asked of a machine with bfloat16, and this one has none"
    return [
        line("2 tuned blocks, no bank", fresh2, plain2, "min"),
        line("2 tuned blocks, bank built", bank2, plain2, "min", goal=6.0 if large else None),
        line("1 tuned block, bank built", bank1, plain1, "min", goal=20.0 if large else None),
        line(
            f"2 tuned blocks, {data.epochs} epochs and building the bank of {config.views.bank_views} views",
            data.epochs * bank2 + building,
            data.epochs * plain2,
            "h",
            goal=8.0 if large and not note else None,
            note=note if large else "",
        ),
    ]


def _seconds(session: Session, shape: Shape) -> dict[str, float]:
    """Seconds an image: bank-2 and bank-1 (a step at the data set's own batch), plain and fresh (evaluation of new
    images), look-2 and look-1 (evaluation from the bank), build (a view of the bank, decoding and writing included)."""
    sizes, batch = session.sizes, session.sizes.data.batch
    images = random_images(2 * shape.batch, sizes.views.size)
    label = half_labelled(batch, sizes.known)
    paths = photographs(session, sizes.small, sizes.small_photos)[: sizes.built]
    views = replace(sizes.views, bank="on", bank_views=sizes.built_views)
    caches = (session.folder / f"bank-{shape.width}-{turn}" for turn in range(session.repeats + 1))
    with progress(f"epoch, {shape.name}") as report:
        two, one, whole = ours(session, shape, 2), ours(session, shape, 1), plain(session, shape, 2)
        bank2, bank1 = bank_for(session, two, batch), bank_for(session, one, batch)
        numbers = np.arange(batch, dtype=np.int64)

        def build() -> None:
            open_bank(two.network.backbone, 2, paths, views, next(caches), default_workers(), lambda done, total: None)

        works = {
            "bank-2": Work(lambda: two.step(from_bank(bank2, batch), label), batch),
            "bank-1": Work(lambda: one.step(from_bank(bank1, batch), label), batch),
            "plain": Work(lambda: infer(whole.network, whole.method, [whole.trunk(images)], HEADS), len(images)),
            "fresh": Work(lambda: infer(two.network, two.method, [two.trunk(images)], HEADS), len(images)),
            "look-2": Work(lambda: infer(two.network, two.method, bank2.centre(numbers), HEADS), batch),
            "look-1": Work(lambda: infer(one.network, one.method, bank1.centre(numbers), HEADS), batch),
            "build": Work(build, len(paths) * (views.bank_views + 1)),
        }
        return session.seconds(works, report)
