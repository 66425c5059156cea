"""How well new images follow a reviewer's splits, until training again and after it; writes benchmarks/results/split_gain.json and docs/review.md.

.venv/bin/python benchmarks/split_gain.py --root DIR [--root DIR ...] [SET ...]

DIR holds CUB-200-2011 and Oxford-IIIT Pet in their original layouts. Of at most 20 classes of each SET (default: both), a third of the images
without a label is kept apart as new images. The frozen answer of the others has half as many new categories as there are new classes. A reviewer
splits each category by class, without a mistake, where five or more images are of a second class, and names the parts. A new image is right
if its category has the name of its class; measured are those that the network puts into a category that was split. `again`: a second frozen
answer, with what was named as labels. The seed draws which images are new.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from grid import finished_run, images_of, settings, write_between

from debgcd import config as configuration
from debgcd.data.manifest import Manifest
from debgcd.grow.splits import open_model
from debgcd.infer.predict import ask
from debgcd.review.log import Log, divided
from debgcd.run.directory import Run, require_new
from debgcd.system.machine import cache_folder, facts
from debgcd.system.progress import say
from debgcd.train.continue_run import reviewed_images
from debgcd.train.train import resume, train

ROOT = Path(__file__).resolve().parent.parent
CLASSES, IMAGES = 20, 1500
LEAST = 5  # images of a second class for which a category is split
SETS = ("pets", "cub")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("--root", type=Path, action="append", default=[], metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "split_gain", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    options = parser.parse_args()
    cache = cache_folder(options.cache)
    rows = []
    for name in options.sets:
        manifest = images_of(name, options.root, options.work, cache, CLASSES, IMAGES)
        for seed in range(options.seeds):
            rows.append({"set": name, "seed": seed, **measured(manifest, seed, options.work / name / str(seed), cache)})
            say(json.dumps(rows[-1]))
    written = {**facts(), "command": "benchmarks/split_gain.py", "runs": rows}
    place = ROOT / "benchmarks" / "results" / "split_gain.json"
    place.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    write_between(ROOT / "docs" / "review.md", "benchmarks/split_gain.py", table(written))


def measured(manifest: Manifest, seed: int, folder: Path, cache: Path) -> dict[str, Any]:
    free = np.array([label is None for label in manifest.labels])
    later = free & (np.random.default_rng(seed).random(len(free)) < 1 / 3)
    now, new = manifest.select(~later), manifest.select(later)
    truth = np.array(new.truths)
    known = len(now.classes)
    classes = len({*now.classes, *(truth for truth in now.truths if truth is not None)})
    values = {"k": known + (classes - known) // 2, "run": {"cache": str(cache)}}
    run = finished_run(now, settings(configuration.compose("small", method="pim"), seed, values), folder / "first")
    names = split(run)
    model = open_model(run.folder, cache)
    numbers = [one.category for one in model.categories if one.id in divided(run.folder)]
    before = ask(replace(model, parts=None), new).category
    inside = np.isin(before, numbers)

    def right(said: np.ndarray, name_of: dict[int, str]) -> float:
        return float(np.mean([name_of.get(int(c)) == t for c, t in zip(said[inside], truth[inside], strict=True)]))

    by_number = {one.category: names[one.id] for one in model.categories if one.id in names}
    found = {"split": len(numbers), "images": int(inside.sum()), "before": right(before, by_number)}
    found["parts"] = right(ask(model, new).category, by_number)
    second = again(run, folder / "second", classes, cache)
    model = open_model(second.folder, cache)
    named = {one.category: one.name for one in model.categories}
    return {**found, "again": right(ask(model, new).category, named)}


def split(run: Run) -> dict[str, str]:
    """Split and name the new categories as a reviewer without mistakes; returns the class of each category by its id."""
    truth = {str(path): str(truth) for path, truth in zip(run.manifest.paths, run.manifest.truths, strict=True)}
    with Log(run.folder) as log:
        review = log.review
        for id in [one.id for one in review.categories.values() if not one.known] if not review.version else []:
            by_class: dict[str, list[str]] = {}
            for image in review.members(id):
                by_class.setdefault(truth[image], []).append(image)
            _, *others = sorted(by_class, key=lambda name: -len(by_class[name])) or [""]
            parts = [by_class[name] for name in others if len(by_class[name]) >= LEAST]
            if parts:
                log.act(
                    {"act": "split", "category": id, "parts": {review.next_id(i): part for i, part in enumerate(parts)}}
                )
        names = {}
        for id, one in list(review.categories.items()):
            members = Counter(truth[image] for image in review.members(id))
            names[id] = id if one.known else members.most_common(1)[0][0] if members else id
            there = {each.name for each in review.categories.values()}
            if not one.known and members and names[id] not in there:
                log.act({"act": "name", "category": id, "name": names[id]})
    return names


def again(run: Run, folder: Path, k: int, cache: Path) -> Run:
    """The frozen answer with what was named as labels, and the true K."""
    if (folder / "config.yaml").exists():
        return resume(folder)
    manifest, before = reviewed_images(run, cache)
    require_new(folder)
    return train(manifest, replace(run.config, k=max(k, len(manifest.classes))), folder, reviewed_run=before)


def table(written: dict[str, Any]) -> str:
    """Means over the seeds."""
    lines = [
        "| set | seeds | categories split | new images in them | right before | right with the splits | right after the frozen answer again |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["set"] for row in written["runs"]):
        rows = [row for row in written["runs"] if row["set"] == name]
        counts = (f"{np.mean([row[key] for row in rows]):.0f}" for key in ("split", "images"))
        shares = (f"{100 * np.mean([row[key] for row in rows]):.1f}" for key in ("before", "parts", "again"))
        lines.append(f"| {name} | {len(rows)} | {' | '.join((*counts, *shares))} |")
    lines += [
        "",
        f"Per cent of these new images in a category of their class. Measured {written['date']} on {written['processor']}, {written['cores']} "
        f"cores by `{written['command']}`; per run in [split_gain.json](../benchmarks/results/split_gain.json).",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
