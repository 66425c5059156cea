"""The demo: ten handwritten digits, five known and five to be discovered. Nothing is downloaded."""

from __future__ import annotations

import io
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.image.decode import Unusable
from debgcd.data.manifest import Manifest, from_arrays, write_manifest
from debgcd.data.sources import read_manifest
from debgcd.data.thumbnails import square
from debgcd.errors import UsageError
from debgcd.review.log import reviewed_predictions
from debgcd.run.categories import Category
from debgcd.run.directory import Run, open_run, require_new
from debgcd.run.predictions import Prediction
from debgcd.system.files import read_json, readable, write_bytes, write_json
from debgcd.system.progress import say
from debgcd.train.finish import read_evaluation
from debgcd.train.plan import make_plan
from debgcd.train.setup import open_tokens
from debgcd.train.train import resume, train

METHODS = ("kmeans", "simgcd", "debgcd")
QUICK = ("pim",)  # nothing is trained
KNOWN, CLASSES = 5, 10

TILE, GAP, LABEL = 72, 4, 190  # pixels of an image, between images, of a category's name
INK, FAINT, EMPTY = "#1f2430", "#6b7280", "#e5e7eb"
KNOWN_COLOUR, NEW_COLOUR = "#2563a8", "#b4531a"


def demo(folder: Path, seed: int, cache: str | None = None, methods: Sequence[str] = METHODS) -> list[dict[str, Any]]:
    """Run the methods on the digits with the same backbone and budget. Resumable: call it again to continue.

    Returns, and writes to `summary.json`, one entry per method: method, all, old, new, auroc (None without a detector) and
    seconds. The seconds exclude the view bank, which the methods share. The categories drawn are those of the last method.
    """
    manifest = digits(folder)
    config = configuration.override(configuration.compose("small"), {"k": CLASSES, "seed": seed}, "demo")
    config = configuration.override(config, {"backbone": {"tuned_blocks": 2}, "run": {"cache": cache}}, "demo")
    _fill_bank(manifest, configuration.override(config, {"method": methods[-1]}, "demo"))
    finished = {entry["method"]: entry for entry in _summary(folder)}
    for method in methods:
        say(f"\n{method}:")
        begun = time.monotonic()
        run = _run(manifest, configuration.override(config, {"method": method}, "demo"), folder / method)
        seconds = finished.get(method, {}).get("seconds", round(time.monotonic() - begun, 1))
        scores = read_evaluation(run)["unlabelled"]
        accuracy = scores["gcd"]["accuracy"]
        finished[method] = {"method": method, **accuracy, "auroc": scores["auroc"], "seconds": seconds}
        write_json(folder / "summary.json", list(finished.values()))
    predictions, categories = reviewed_predictions(run.folder)
    draw_exemplars(predictions, categories, folder / "categories.png")
    return [finished[method] for method in methods]


def _summary(folder: Path) -> list[dict[str, Any]]:
    place = folder / "summary.json"
    with readable(place, "delete it and run again"):
        return read_json(place) if place.exists() else []


def digits(folder: Path) -> Manifest:
    """scikit-learn's 1,797 digits as PNG files and a CSV; a random half of 0–4 is labelled, as in the benchmarks."""
    listed = folder / "digits.csv"
    if listed.exists():
        return read_manifest(listed)
    from sklearn.datasets import load_digits

    if not folder.is_dir() or {entry.name for entry in folder.iterdir()} - {"digits"}:  # digits: stopped while writing
        require_new(folder)
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    old = np.flatnonzero(digits.target < KNOWN)
    labelled = set(np.random.RandomState(0).choice(old, len(old) // 2, replace=False))
    labels = [str(digit) if i in labelled else None for i, digit in enumerate(digits.target)]
    manifest = from_arrays(list(images), labels, folder / "digits", [str(digit) for digit in digits.target])
    write_manifest(manifest, listed)
    return manifest


def _fill_bank(manifest: Manifest, config: Config) -> None:
    """Compute the views of the last method, which the others share, first, so that they count towards no method's time."""
    plan = make_plan(config, manifest)
    open_tokens(plan.config, manifest, plan.backbone, plan.cache)


def _run(manifest: Manifest, config: Config, folder: Path) -> Run:
    if not (folder / "config.yaml").exists():
        require_new(folder)
        return train(manifest, config, folder)
    if open_run(folder).config.seed != config.seed:
        raise UsageError(f"{folder} holds a demo with another seed; choose another output folder", setting="out")
    return resume(folder)


def draw_exemplars(
    predictions: Sequence[Prediction], categories: Sequence[Category], path: Path, columns: int = 12
) -> None:
    """Write a PNG with one row per category: its name, its size and its most confident images."""
    members = defaultdict(list)
    for row in sorted(predictions, key=lambda row: (-row["confidence"], row["path"])):
        members[row["category"]].append(row)
    height = len(categories) * (TILE + GAP) + GAP
    sheet = Image.new("RGB", (LABEL + columns * (TILE + GAP) + GAP, height), "white")
    pen, large, small = ImageDraw.Draw(sheet), ImageFont.load_default(20), ImageFont.load_default(13)
    for i, category in enumerate(categories):
        top, own = GAP + i * (TILE + GAP), members[category.category]
        pen.rectangle((0, top, 5, top + TILE), fill=KNOWN_COLOUR if category.known else NEW_COLOUR)
        pen.text((16, top + 10), _short(category.name, large, LABEL - 16), fill=INK, font=large)
        kind = "known class" if category.known else "discovered"
        pen.text((16, top + 40), f"{kind} · {len(own)} images", fill=FAINT, font=small)
        for j, row in enumerate(own[:columns]):
            try:
                tile = square(Path(row["path"]), TILE)
            except Unusable:  # the file was removed or changed since the prediction
                tile = Image.new("RGB", (TILE, TILE), EMPTY)
            sheet.paste(tile, (LABEL + GAP + j * (TILE + GAP), top))
    content = io.BytesIO()
    sheet.save(content, "PNG")
    write_bytes(path, content.getvalue())


def _short(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The name on one line, cut before it reaches the images."""
    name = " ".join(name.split())
    if font.getlength(name) <= width:
        return name
    while name and font.getlength(name + "…") > width:
        name = name[:-1]
    return name + "…"
