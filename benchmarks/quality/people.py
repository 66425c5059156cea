"""Labels and images as people have them: uneven, few, wrong; nearly everything new or hardly anything; bursts, boxes.

.venv/bin/python benchmarks/quality/people.py --root DIR [--root DIR ...] [--jobs 2]

DIR as for run.py. 400 images of CIFAR-10 (10 classes) and of Oxford-IIIT Pet (20), half of the classes known; each case changes one
thing. Beside it a grid of known classes × labelled images on the same images. Resumable; results/people.json holds the runs, and
docs/results.md their tables.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for grid.py

from grid import images_of  # noqa: E402
from page import write_page  # noqa: E402

from debgcd import config as configuration  # noqa: E402
from debgcd.data.image.crop import Box, Crop  # noqa: E402
from debgcd.data.manifest import Manifest  # noqa: E402
from debgcd.reproduce.bench.networks import trunk_type  # noqa: E402
from debgcd.reproduce.grid import Cell, ImageList, cell, devices, finish  # noqa: E402
from debgcd.reproduce.table import result  # noqa: E402
from debgcd.system.files import read_json  # noqa: E402
from debgcd.system.machine import cache_folder, cores, facts  # noqa: E402

ROOT = HERE.parent.parent
IMAGES = 400
CLASSES = {"cifar10": 10, "pets": 20, "cub": 20}
RATES = (0.15, 0.5, 0.85)
VOTE, TRAINED = "vote", "one-vs-all"


@dataclass(frozen=True)
class Picked:
    """A set of images with the true class of each, known classes first, and those that have a label."""

    images: Manifest
    truth: np.ndarray  # (N,) class numbers
    known: int
    labelled: np.ndarray  # (N,) bool
    wrong: np.ndarray | None = None  # (N,) other labels

    def manifest(self) -> Manifest:
        """As training reads it."""
        said = self.truth if self.wrong is None else self.wrong
        return replace(
            self.images,
            labels=tuple(f"class-{c}" if has else None for c, has in zip(said, self.labelled, strict=True)),
            truths=tuple(f"class-{c}" for c in self.truth),
        )

    def keep(self, rows: np.ndarray) -> Picked:
        return replace(self, images=self.images.select(rows), truth=self.truth[rows], labelled=self.labelled[rows])


def base(whole: Manifest, classes: int, known: float = 0.5, share: float | list[float] = 0.5) -> Picked:
    """The same images for each share of known classes and of their labelled images; one share per class, or one for all."""
    random = np.random.RandomState(0)
    names = [truth or label for truth, label in zip(whole.truths, whole.labels, strict=True)]
    chosen = random.permutation(sorted({name for name in names if name is not None}))[:classes]
    rows, truth, labelled = [], [], []
    first = max(1, round(known * classes))
    for c, name in enumerate(chosen):
        here = random.permutation([row for row, found in enumerate(names) if found == name])[: IMAGES // classes]
        rate = share[c % len(share)] if isinstance(share, list) else share
        rows += here.tolist()
        truth += [c] * len(here)
        labelled += [c < first and i < max(1, round(rate * len(here))) for i in range(len(here))]
    return Picked(whole.select(rows), np.array(truth), first, np.array(labelled))


def new_share(picked: Picked, share: float) -> Picked:
    """Leave out new or unlabelled known images at random, until this share of the unlabelled ones is new."""
    random = np.random.RandomState(1)
    old = random.permutation(np.flatnonzero(~picked.labelled & (picked.truth < picked.known)))
    new = np.flatnonzero(picked.truth >= picked.known)  # class by class, so that few images are of few classes
    if share * len(old) / (1 - share) < len(new):
        new = new[: max(2, round(share * len(old) / (1 - share)))]
    else:
        old = old[: max(2, round(len(new) * (1 - share) / share))]
    return picked.keep(np.sort(np.concatenate([np.flatnonzero(picked.labelled), old, new])))


def long_tail(picked: Picked) -> Picked:
    """The largest class has ten times the images of the smallest."""
    classes = np.random.RandomState(2).permutation(picked.truth.max() + 1)
    kept = []
    for place, c in enumerate(classes):
        rows = np.flatnonzero(picked.truth == c)
        share = 10 ** (-place / (len(classes) - 1))
        for part in (rows[picked.labelled[rows]], rows[~picked.labelled[rows]]):
            kept += part[: max(1, round(share * len(part)))].tolist() if len(part) else []
    return picked.keep(np.sort(np.array(kept)))


def wrong_labels(picked: Picked, share: float = 0.05) -> Picked:
    """This share of the labels replaced by those of other known classes."""
    random, labels = np.random.RandomState(3), picked.truth.copy()
    rows = np.flatnonzero(picked.labelled)
    for row in random.permutation(rows)[: round(share * len(rows))]:
        labels[row] = (labels[row] + random.randint(1, picked.known)) % picked.known
    return replace(picked, wrong=labels)


def bursts(picked: Picked, grouped: bool) -> Picked:
    """Every third image is there three times, slightly shifted, as shots of one scene; labelled or not as the first."""
    rows, paths, groups = [], [], []
    for row, path in enumerate(picked.images.paths):
        shots = 3 if row % 3 == 0 else 1
        width, height = Image.open(path).size
        for shot in range(shots):
            box: Box = (shot * width // 20, shot * height // 20, width - width // 10, height - height // 10)
            rows.append(row)
            paths.append(Crop(Path(path), box) if shots > 1 else path)
            groups.append(f"scene-{row}" if grouped and shots > 1 else None)
    many = picked.keep(np.array(rows))
    return replace(many, images=replace(many.images, paths=tuple(paths), groups=tuple(groups)))


def boxed(picked: Picked, root: Path) -> Picked:
    """The birds of CUB in their boxes, which are those of the original files: 500 px on the longer side."""
    folder = next(root.rglob("bounding_boxes.txt")).parent
    lines = (folder / "images.txt").read_text("utf-8").splitlines()
    ids = dict(reversed(line.split()) for line in lines)
    boxes = {
        line.split()[0]: [float(number) for number in line.split()[1:]]
        for line in (folder / "bounding_boxes.txt").read_text("utf-8").splitlines()
    }
    crops = []
    for path in picked.images.paths:
        size = Image.open(path).size
        scale = min(1.0, max(size) / 500)
        x, y, w, h = (scale * number for number in boxes[ids["/".join(Path(path).parts[-2:])]])
        crops.append(Crop(Path(path), (x, y, min(w, size[0] - x), min(h, size[1] - y))))
    return replace(picked, images=replace(picked.images, paths=tuple(crops)))


def cases(name: str, whole: Manifest, roots: list[Path]) -> Iterator[tuple[str, str, Picked]]:
    """(what, detector, images) of each run on a set."""
    classes = CLASSES[name]
    if name == "cub":
        root = next(root for root in roots if any(root.rglob("bounding_boxes.txt")))
        yield "whole photographs", VOTE, base(whole, classes)
        yield "birds in their boxes", VOTE, boxed(base(whole, classes), root)
        return
    even = base(whole, classes)
    made: dict[str, Callable[[], Picked]] = {
        "even labels, half of each class": lambda: even,
        "uneven: 15, 50 or 85 % of a class": lambda: base(whole, classes, 0.5, list(RATES)),
        "5 labels per class": lambda: base(whole, classes, 0.5, 5 / (IMAGES // classes)),
        "2 known classes": lambda: base(whole, classes, 2 / classes),
        "5 % of the unlabelled images new": lambda: new_share(even, 0.05),
        "90 % new": lambda: new_share(even, 0.9),
        "long tail, 10 to 1": lambda: long_tail(even),
        "5 % wrong labels": lambda: wrong_labels(even),
    }
    for what, make in made.items():
        for detector in (TRAINED, VOTE):
            yield what, detector, make()
    yield "bursts of three", "vote, no groups", bursts(even, False)
    yield "bursts of three", VOTE, bursts(even, True)
    for known in (0.25, 0.5, 0.75):
        for share in (0.1, 0.5, 0.9):
            yield f"ratio {known} {share}", VOTE, base(whole, classes, known, share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "people", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="parallel runs; they share the cores")
    options = parser.parse_args()
    if options.jobs > 1:
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores() // options.jobs))
    cells: list[tuple[str, str, Picked, Cell]] = []
    for name in CLASSES:
        whole = images_of(name, options.root, options.work, cache_folder(options.cache), 10**6, 10**9)
        for what, detector, picked in cases(name, whole, options.root):
            kind = TRAINED if detector == TRAINED else VOTE
            start = {} if kind == VOTE else {"guides_start": False}
            fixed = {"k": len(set(picked.truth)), "run": {"cache": options.cache}, "detector": {"kind": kind, **start}}
            config = configuration.override(configuration.compose("small"), fixed, where=name)
            listed = ImageList.of(name, picked.manifest(), options.work)
            cells.append((what, detector, picked, cell(detector, 0, listed, config, options.work)))
    failed = finish([each for *_, each in cells], devices() * options.jobs)
    if failed:
        sys.exit("\n".join(f"{folder}: {reason}" for folder, reason in failed.items()))
    written = {
        **facts(),
        "trunk": trunk_type(),
        "command": "benchmarks/quality/people.py",
        "runs": [told(*each) for each in cells],
    }
    (HERE / "results" / "people.json").write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    write_page(HERE / "results", ROOT / "docs" / "results.md")


def told(what: str, detector: str, picked: Picked, each: Cell) -> dict[str, Any]:
    """Scores, and the share of new images as the run says and as it is."""
    found, model = result(each), read_json(each.folder / "model" / "config.json")
    free = ~picked.labelled
    return {
        "set": each.set,
        "case": what,
        "detector": detector,
        "images": int(free.sum()),
        **found.unlabelled,
        "new": float((picked.truth[free] >= picked.known).mean()),
        "said": model["novel"] and model["novel"].get("share"),
    }


if __name__ == "__main__":
    main()
