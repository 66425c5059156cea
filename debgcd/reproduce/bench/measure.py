"""The parts of a benchmark: each is a function from a session to its lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.data.image.decode import decode
from debgcd.data.loader import default_workers
from debgcd.data.manifest import from_paths
from debgcd.data.views import CENTRE, crop_view, resize_short_side
from debgcd.infer.infer import infer
from debgcd.infer.predict import predict
from debgcd.model.backbone import pick_precision
from debgcd.model.lite import load_lite
from debgcd.model.load import load_backbone
from debgcd.reproduce.bench.networks import (
    CPU,
    TUNED_BLOCKS,
    alternate_labels,
    bank_for,
    from_bank,
    ours,
    photographs,
    plain,
    random_images,
    random_vit,
    require_same_loss,
    trainee,
    trunk_type,
)
from debgcd.reproduce.bench.session import (
    DataSet,
    Line,
    Session,
    Shape,
    Work,
    once,
    silent,
)
from debgcd.run.categories import categories
from debgcd.run.model_folder import Model
from debgcd.system.machine import cores, facts
from debgcd.system.progress import progress, say
from debgcd.tokens.bank import open_bank

# Factors, of ViT-B/16 only: the step without a bank, and four lines of the epoch.
GOALS = {"step": 2.0, "epoch 2 blocks": 6.0, "epoch 1 block": 20.0, "schedule": 8.0}


def goal(shape: Shape, name: str) -> float | None:
    return GOALS[name] if shape.name == "ViT-B/16" else None


# A training step of DebGCD: ours without and with the bank, and the plain one. Same weights, same batch.


def measure_step(session: Session) -> list[Line]:
    lines = []
    for shape in session.shapes:
        seconds = {name: per_image * shape.batch for name, per_image in step_seconds(session, shape).items()}
        what = f"{shape.name}, {shape.batch} images, "
        for kind, name, least in (
            ("2 tuned blocks", "fresh-2", goal(shape, "step")),
            ("2 tuned blocks, from the bank", "bank-2", None),
            ("1 tuned block, from the bank", "bank-1", None),
        ):
            lines.append(Line("step", what + kind, "s", seconds[name], seconds[f"plain-{name[-1]}"], at_least=least))
    return lines


@once
def step_seconds(session: Session, shape: Shape) -> dict[str, float]:
    """Seconds per image of each kind of step: fresh-2, plain-2, bank-2, bank-1, plain-1 (the number of tuned blocks)."""
    images = random_images(2 * shape.batch, session.sizes.views.crop)
    label = alternate_labels(shape.batch, session.sizes.known)
    with progress(f"step, {shape.name}") as report:
        fresh2, plain2 = ours(session, shape, 2), plain(session, shape, 2)
        bank1, plain1 = ours(session, shape, 1), plain(session, shape, 1)
        bank2 = ours(session, shape, 2)
        require_same_loss(fresh2, plain2, images, label)
        require_same_loss(bank1, plain1, images, label)
        tokens2, tokens1 = (bank_for(session, each, shape.batch) for each in (bank2, bank1))
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


def epoch_seconds(data: DataSet, costs: Costs, eval_every: int) -> float:
    """An epoch and its share of an evaluation."""
    drawn = data.train // data.batch * data.batch
    return drawn * costs.step + (data.unlabelled * costs.unlabelled + data.test * costs.test) / eval_every


def measure_epoch(session: Session) -> list[Line]:
    return [line for shape in session.shapes for line in _epoch_lines(session, shape)]


def _epoch_lines(session: Session, shape: Shape) -> list[Line]:
    sizes, config = session.sizes, session.config()
    data, every = sizes.data, config.run.eval_every
    steps, parts = step_seconds(session, shape), _part_seconds(session, shape)
    decoding = {who: t / cores() for who, t in decode_seconds(session, sizes.small, sizes.small_photos).items()}
    look = parts["plain"] + decoding["plain"]
    plain2, plain1 = (
        epoch_seconds(data, Costs(steps[f"plain-{n}"] + decoding["plain"], look, look), 1) for n in (2, 1)
    )
    look = parts["fresh"] + decoding["ours"]
    fresh2 = epoch_seconds(data, Costs(steps["fresh-2"] + decoding["ours"], look, look), every)
    bank2, bank1 = (epoch_seconds(data, Costs(parts[f"bank-{n}"], parts[f"look-{n}"], look), every) for n in (2, 1))
    building = data.train * (config.views.bank_views + 1) * parts["build"]
    least, note = goal(shape, "schedule"), ""
    if least is not None and trunk_type() != "bfloat16":
        least, note = None, "8× are asked of a machine with bfloat16, and this one has none"
    whole = f"2 tuned blocks, {data.epochs} epochs and building the bank of {config.views.bank_views} views"

    def line(kind: str, own: float, other: float, least: float | None = None) -> Line:
        what, (unit, seconds) = (
            f"{shape.name}, {data.name}'s size, {kind}",
            ("h", 3600) if kind == whole else ("min", 60),
        )
        noted = note if kind == whole else ""
        return Line("epoch", what, unit, own / seconds, other / seconds, at_least=least, computed=True, note=noted)

    return [
        line("2 tuned blocks, no bank", fresh2, plain2),
        line("2 tuned blocks, bank built", bank2, plain2, goal(shape, "epoch 2 blocks")),
        line("1 tuned block, bank built", bank1, plain1, goal(shape, "epoch 1 block")),
        line(whole, data.epochs * bank2 + building, data.epochs * plain2, least),
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


# Decoding and prediction: from a JPEG file to 256 pixels against Pillow, and from files to categories.

LEAST_COSINE = 0.999
DECODE_GOALS = {"12 MP": 8.0}


def measure_decode(session: Session) -> list[Line]:
    sizes, lines = session.sizes, []
    short = sizes.views.short_side
    for name, size, count in (("12 MP", sizes.large, sizes.large_photos), ("VGA", sizes.small, sizes.small_photos)):
        paths = photographs(session, size, count)
        megabytes = sum(path.stat().st_size for path in paths) / len(paths) / 1e6
        seconds = decode_seconds(session, size, count)
        own, other = (1000 * seconds[who] for who in ("ours", "plain"))
        what = f"{name} JPEG ({megabytes:.2g} MB) to short side {short}"
        lines.append(Line("decode", what, "ms", own, other, at_least=DECODE_GOALS.get(name)))
        lines.append(_same_features(name, paths, short, sizes.views.crop))
    return lines


@once
def decode_seconds(session: Session, size: tuple[int, int], count: int) -> dict[str, float]:
    """Seconds per image on one core, "ours" and "plain"."""
    short = session.sizes.views.short_side
    threads = torch.get_num_threads()
    with progress(f"decode, {size[0]} × {size[1]}") as report:
        paths = photographs(session, size, count)
        torch.set_num_threads(1)  # as in a loader's worker; Pillow uses one as well
        try:
            works = {
                "ours": Work(lambda: [own_way(path, short) for path in paths], count),
                "plain": Work(lambda: [plain_way(path, short) for path in paths], count),
            }
            return session.seconds(works, report)
        finally:
            torch.set_num_threads(threads)


def own_way(path: Path, short: int) -> Tensor:
    """(3, h, w) uint8, as a run reads its images."""
    return resize_short_side(decode(path, short), short)


def plain_way(path: Path, short: int) -> NDArray[np.uint8]:
    """(h, w, 3) uint8: all pixels decoded, then resized, as public code does through torchvision."""
    with Image.open(path) as image:
        rgb = image.convert("RGB")
    width, height = rgb.size
    least = min(width, height)
    return np.asarray(rgb.resize((short * width // least, short * height // least), Image.Resampling.BICUBIC))


def _same_features(name: str, paths: list[Path], short: int, size: int) -> Line:
    """The cosine between lite0's features of both decodings."""
    plain = [torch.from_numpy(plain_way(path, short).copy()).permute(2, 0, 1) for path in paths]
    crops = [
        torch.stack([crop_view(image, CENTRE[0], size) for image in images])
        for images in ([own_way(path, short) for path in paths], plain)
    ]
    backbone = load_lite(0)
    with torch.no_grad():
        ours, theirs = (normalize(backbone.tail(backbone.trunk(images)), dim=1) for images in crops)
    least = float((ours * theirs).sum(1).min())
    note = ""
    if len(paths) > 1:
        others = (ours @ ours.T)[~torch.eye(len(paths), dtype=torch.bool)]
        note = f"between different photographs at most {float(others.max()):.3f}"
    what = f"{name}: least cosine of lite0's features between both, {len(paths)} photographs"
    return Line("decode", what, "cosine", least, at_least=LEAST_COSINE, note=note)


def measure_predict(session: Session) -> list[Line]:
    sizes, lines = session.sizes, []
    networks = [("lite0", "lite0", *sizes.lite_pixels, sizes.predicted[0])]
    for shape in session.shapes[:1]:  # the smallest
        folder = str(random_vit(session, shape)[1])
        networks.append((shape.name, folder, sizes.views.short_side, sizes.views.crop, sizes.predicted[1]))
    for name, source, resize, crop, count in networks:
        say(f"predict, {name}:")
        model = _model(session, source, resize, crop)
        manifest = from_paths(photographs(session, sizes.small, count))
        work = Work(lambda model=model, manifest=manifest: list(predict(model, manifest)), count)  # type: ignore[misc]
        seconds = session.seconds({name: work})[name]  # without a report: `predict` has its own
        lines.append(Line("predict", f"{name} at {crop} px, {count} VGA files to categories", "images/s", 1 / seconds))
    return lines


def _model(session: Session, source: str, resize: int, crop: int) -> Model:
    config, known = session.config(), session.sizes.known
    precision = pick_precision("auto", CPU)
    one = trainee(config, known, load_backbone(source, tuned_blocks=TUNED_BLOCKS, image_size=crop, precision=precision))
    config = replace(config, views=replace(config.views, resize=resize, size=crop))
    names = categories([f"class {i:03d}" for i in range(known)], session.sizes.k)
    return Model(one.network, one.method, config, names, images=1, sha256="")


MEASURES: dict[str, Callable[[Session], list[Line]]] = {
    "step": measure_step,
    "epoch": measure_epoch,
    "decode": measure_decode,
    "predict": measure_predict,
}


def run(
    session: Session, measures: Mapping[str, Callable[[Session], list[Line]]], show: Callable[[list[Line]], None]
) -> dict[str, Any]:
    """Take these measures and show each as soon as it is done; returns all results as JSON data."""
    results: dict[str, Any] = {**facts(), "trunk": trunk_type(), "repeats": session.repeats, "lines": []}
    for measure in measures.values():
        lines = measure(session)
        show(lines)
        results["lines"] += [line.to_json() for line in lines]
    return results
