"""The demo: ten handwritten digits, five known and five to be discovered. Nothing is downloaded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.manifest import Manifest, from_arrays, write_manifest
from debgcd.data.sources import read_manifest
from debgcd.errors import UsageError
from debgcd.report.figures import draw_exemplars
from debgcd.review.log import reviewed_predictions
from debgcd.run.directory import Run, open_run, require_new
from debgcd.system.files import read_json, readable, write_json
from debgcd.system.machine import cache_folder
from debgcd.system.progress import say
from debgcd.train.decide import decide
from debgcd.train.finish import read_evaluation
from debgcd.train.setup import open_tokens
from debgcd.train.start import begin, resume

METHODS = ("kmeans", "simgcd", "debgcd")
KNOWN, CLASSES = 5, 10


def demo(folder: Path, seed: int, cache: str | None = None) -> list[dict[str, Any]]:
    """Run the three methods on the digits with the same backbone and budget. Resumable: call it again to continue.

    Returns, and writes to `summary.json`, one entry per method: method, all, old, new, auroc (None without a detector) and
    seconds. The seconds exclude the view bank, which all three methods share.
    """
    manifest = digits(folder)
    config = configuration.override(configuration.compose("small"), {"k": CLASSES, "seed": seed}, "demo")
    config = configuration.override(config, {"backbone": {"tuned_blocks": 2}, "run": {"cache": cache}}, "demo")
    _fill_bank(manifest, config)
    finished = {entry["method"]: entry for entry in _summary(folder)}
    summary = []
    for method in METHODS:
        say(f"\n{method}:")
        begun = time.monotonic()
        run = _run(manifest, configuration.override(config, {"method": method}, "demo"), folder / method)
        seconds = finished.get(method, {}).get("seconds", round(time.monotonic() - begun, 1))
        scores = read_evaluation(run)["unlabelled"]
        summary.append({"method": method, **scores["gcd"]["accuracy"], "auroc": scores["auroc"], "seconds": seconds})
        write_json(folder / "summary.json", summary)
    predictions, categories = reviewed_predictions(run.folder)
    draw_exemplars(predictions, categories, folder / "categories.png")
    return summary


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
    """Compute the shared views first, so that they count towards no method's time."""
    config, backbone = decide(config, manifest)
    open_tokens(config, manifest, backbone, cache_folder(config.run.cache))


def _run(manifest: Manifest, config: Config, folder: Path) -> Run:
    if not (folder / "config.yaml").exists():
        require_new(folder)
        return begin(manifest, config, folder)
    if open_run(folder).config.seed != config.seed:
        raise UsageError(f"{folder} holds a demo with another seed; choose another output folder", setting="out")
    return resume(folder)
