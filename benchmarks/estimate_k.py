"""Estimates of K on data sets with a known number of classes, and the time of an estimate compared with scikit-learn.

.venv/bin/python benchmarks/estimate_k.py digits cifar10 pets cub --root DIR [--root DIR]
.venv/bin/python benchmarks/estimate_k.py --speed

DIR holds the sets in their original layouts; 4 000 training images of CIFAR-10 are used, and all of the other sets. Features: centre
crops through the frozen Lite0 backbone with the views of the `small` preset; truth is read only to print it.
--speed: one estimate, and one bounded search with scikit-learn's KMeans (n_init 10, each integer K once) on the same data and bounds.
Updates benchmarks/results/estimate_k.json and the table in docs/unknown_k.md; other entries stay.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clustering import sphere_mixture
from grid import images_of, write_between
from scipy.optimize import minimize_scalar
from sklearn.cluster import KMeans
from torch import Tensor

from debgcd import config as configuration
from debgcd.cluster.estimate_k import Estimate, estimate_k
from debgcd.data.manifest import Manifest
from debgcd.evaluate import clustering_accuracy
from debgcd.reproduce.bench.networks import trunk_type
from debgcd.system.machine import cache_folder, facts
from debgcd.system.progress import progress, say
from debgcd.train.plan import make_plan
from debgcd.train.setup import centre_tokens, frozen_features

ROOT = Path(__file__).resolve().parent.parent
FILE, PAGE = ROOT / "benchmarks" / "results" / "estimate_k.json", ROOT / "docs" / "unknown_k.md"
IMAGES = {"cifar10": 4_000}
POINTS, WIDTH, CLASSES, KNOWN = 6_000, 768, 200, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help="digits or a benchmark")
    parser.add_argument("--root", type=Path, action="append", default=[], metavar="DIR", help="folder of the sets")
    parser.add_argument("--speed", action="store_true", help="measure the time instead; takes about half an hour")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "estimate-k", help="folder for the digits")
    options = parser.parse_args()
    if options.speed == bool(options.sets):
        parser.error("no data set given; give at least one, or --speed")
    entries: dict[str, Any] = {"speed": against_scikit_learn(options.seed)} if options.speed else {}
    for name in options.sets:
        manifest = images_of(
            name, options.root, options.work, cache_folder(None), classes=1000, images=IMAGES.get(name, 10**9)
        )
        entries[name] = measured(name, manifest, options.seed)
    before = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    FILE.write_text(json.dumps(before | entries, indent=2) + "\n", "utf-8")
    write_between(PAGE, "benchmarks/estimate_k.py", table(before | entries))
    print(table(entries))


def measured(name: str, manifest: Manifest, seed: int) -> dict[str, Any]:
    """All three ways on one data set; `consensus` includes `ward`."""
    say(f"\n{name}:")
    label, features = manifest.training_labels, lite_features(manifest)
    found: dict[str, Estimate] = {}
    for way in ("consensus", "brent"):
        with progress(way) as report:
            found[way] = estimate_k(features, torch.from_numpy(label), way=way, seed=seed, on_progress=report)
    both, search = found["consensus"], found["brent"]
    return {
        **facts(),
        "trunk": trunk_type(),
        "seed": seed,
        "images": len(label),
        "labelled": int((label >= 0).sum()),
        "known": len(manifest.classes),
        "truth": len(np.unique(manifest.truth_ids(manifest.training_rows))),
        "estimate": both.k,
        "interval": [both.low, both.high],
        "ward": both.answers["ward"],
        "brent": search.k,
        "seconds": round(both.seconds, 1),
        "brent_seconds": round(search.seconds, 1),
    }


def lite_features(manifest: Manifest) -> Tensor:
    small = configuration.override(configuration.compose("small"), {"backbone": {"name": "lite0"}}, "benchmark")
    plan = make_plan(replace(small, method="sskmeans", views=replace(small.views, bank="off")), manifest)
    tokens = centre_tokens(plan.config, manifest, plan.backbone, plan.cache)
    return frozen_features(plan.backbone, tokens, manifest.training_paths).cpu()


def table(entries: dict[str, Any]) -> str:
    """One row per data set; below it, the speed comparison and the machine."""
    lines = [
        "| set | images | classes known | truth | estimate | 90 % interval | ward | brent | seconds |",
        "|---" * 9 + "|",
    ]
    for name, entry in entries.items():
        if name == "speed":
            continue
        low, high = entry["interval"]
        numbers = [entry[key] for key in ("images", "known", "truth", "estimate")] + [f"{low}–{high}"]
        numbers += [entry[key] for key in ("ward", "brent", "seconds")]
        lines.append(f"| {name} | " + " | ".join(map(str, numbers)) + " |")
    if "speed" in entries:
        speed = entries["speed"]
        ours, theirs = speed["estimate_k"], speed["brent_with_scikit_learn"]
        lines += [
            "",
            f"Speed ({speed['task']}): the estimate, interval included, took {ours['seconds']:.0f} s and found {ours['k']:.0f}; "
            f"a bounded search with scikit-learn's KMeans took {theirs['seconds']:.0f} s for {theirs['fits']:.0f} values of K and "
            f"found {theirs['k']:.0f}; it took {speed['ratio']:.1f} times as long ({speed['cpu_ratio']:.1f} times in CPU time).",
        ]
    of = {(entry["date"], entry["processor"], entry["cores"]) for entry in entries.values()}
    told = "; ".join(f"{date}, {processor}, {cores} cores" for date, processor, cores in sorted(of))
    return (
        "\n".join(lines)
        + f"\n\nMeasured {told}; backbone lite0, seed 0; all numbers are in [estimate_k.json](../benchmarks/results/estimate_k.json)."
    )


def against_scikit_learn(seed: int) -> dict[str, Any]:
    """Wall and CPU time of `estimate_k` and of the search, one after the other in one process."""
    points, truth = sphere_mixture(POINTS, WIDTH, CLASSES)
    label = torch.where((truth < KNOWN) & (torch.arange(POINTS) // CLASSES % 2 == 0), truth, -1)
    with progress("estimate_k") as report:
        begun, cpu = time.monotonic(), time.process_time()
        found = estimate_k(points, label, seed=seed, on_progress=report)
        ours = {"seconds": time.monotonic() - begun, "cpu": time.process_time() - cpu, "k": found.k}
    most = max(k for k, _ in found.curves["consensus"])
    begun, cpu = time.monotonic(), time.process_time()
    k, fits = search(points.numpy(), label.numpy(), most, seed)
    theirs = {"seconds": time.monotonic() - begun, "cpu": time.process_time() - cpu, "k": k, "fits": fits}
    return {
        **facts(),
        "trunk": trunk_type(),
        "task": f"{POINTS} x {WIDTH}, {CLASSES} classes, {KNOWN} known, K between {KNOWN} and {most}",
        "estimate_k": {key: round(value, 1) for key, value in ours.items()},
        "brent_with_scikit_learn": {key: round(value, 1) for key, value in theirs.items()},
        "ratio": round(theirs["seconds"] / ours["seconds"], 1),
        "cpu_ratio": round(theirs["cpu"] / ours["cpu"], 1),
    }


def search(points: np.ndarray, label: np.ndarray, most: int, seed: int) -> tuple[int, int]:
    """(K, fits) of the bounded search for the highest accuracy of plain k-means on the labelled points."""
    tried: dict[int, float] = {}

    def loss(x: float) -> float:
        k = round(x)
        if k not in tried:
            found = KMeans(k, n_init=10, random_state=seed).fit(points).labels_
            tried[k] = -clustering_accuracy(label[label >= 0], found[label >= 0], KNOWN).all
            say(f"k-means with K = {k}: accuracy {-tried[k]:.3f}")
        return tried[k]

    minimize_scalar(loss, bounds=(KNOWN, most), method="bounded", options={"xatol": 0.5})
    return min(tried, key=lambda k: tried[k]), len(tried)


if __name__ == "__main__":
    main()
