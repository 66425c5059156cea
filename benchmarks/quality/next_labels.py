"""What thirty answers are worth, by which images are asked for: `debgcd review --next` beside random and the most doubtful ones.

.venv/bin/python benchmarks/quality/next_labels.py --root DIR [--root DIR ...] [--draws 6] [--answers 30] [SET ...]

DIR holds the sets in their original layouts. A draw has 20 classes of at most 30 images; ten are known, with eight labels each. K is
the true one. The first run is a frozen answer (`--epochs 0`), and so is the second, `train --from` the first with the answers.
Whoever answers sees what most images of each category are: an image of that class is accepted, any other is moved to the category or
class that it belongs to, or to a new one. All is Eq. 15 on the unlabelled images that no way asked for. Resumable;
results/next_labels.json and the table in docs/review.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for grid.py

from grid import finished_run, images_of, write_between  # noqa: E402

from debgcd import config as configuration  # noqa: E402
from debgcd.data.manifest import Manifest  # noqa: E402
from debgcd.evaluate import clustering_accuracy  # noqa: E402
from debgcd.review.log import Log, reviewed_predictions  # noqa: E402
from debgcd.review.next_images import next_images  # noqa: E402
from debgcd.run.directory import Run, open_run, require_new  # noqa: E402
from debgcd.system.machine import cache_folder, facts  # noqa: E402
from debgcd.system.progress import say  # noqa: E402
from debgcd.train.continue_run import continued_config, reviewed_images  # noqa: E402
from debgcd.train.train import resume, train  # noqa: E402

ROOT = HERE.parent.parent
SETS = ("pets", "cub")
WAYS = ("random", "doubtful", "next")
CLASSES, KNOWN, IMAGES, LABELS = 20, 10, 30, 8
FROZEN = {"schedule": {"steps": 0}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "next_labels", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--draws", type=int, default=6, metavar="N", help="of each set")
    parser.add_argument("--answers", type=int, default=30, metavar="N")
    options = parser.parse_args()
    cache, rows = cache_folder(options.cache), []
    for name in options.sets:
        whole = images_of(name, options.root, options.work, cache, 10**6, 10**9)
        for number in range(options.draws):
            images = draw(whole, number)
            fixed = {"k": CLASSES, "run": {"cache": options.cache}, **FROZEN}
            config = configuration.override(configuration.compose("small"), fixed, where=name)
            folder = options.work / name / str(number)
            first = finished_run(images, config, folder / "first")
            asked = {way: chosen(first, way, options.answers, number, cache) for way in WAYS}
            runs = {"first": first, **{way: again(first, asked[way], folder / way) for way in WAYS}}
            rows.append({"set": name, "draw": number, **measured(runs, set().union(*asked.values()))})
            say(json.dumps(rows[-1]))
    written = {**facts(), "command": "benchmarks/quality/next_labels.py", "answers": options.answers, "runs": rows}
    (HERE / "results" / "next_labels.json").write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    write_between(ROOT / "docs" / "review.md", "benchmarks/quality/next_labels.py", table(written))


def draw(whole: Manifest, number: int) -> Manifest:
    """Some classes of a set, half of them known by a few labels."""
    random = np.random.default_rng(number)
    names = np.array([truth or label for truth, label in zip(whole.truths, whole.labels, strict=True)])
    rows: list[int] = []
    given: list[str | None] = []
    for position, name in enumerate(random.permutation(np.unique(names))[:CLASSES].tolist()):
        for i, row in enumerate(random.permutation(np.flatnonzero(names == name))[:IMAGES].tolist()):
            rows.append(row)
            given.append(name if position < KNOWN and i < LABELS else None)
    truths = tuple(names[rows].tolist())
    return replace(whole.select(rows), labels=tuple(given), truths=truths, splits=("train",) * len(rows))


def chosen(run: Run, way: str, count: int, seed: int, cache: Path) -> list[str]:
    """The paths of the images that are asked for."""
    if way == "next":
        return [row["path"] for row in next_images(run, cache, count)]
    rows, _ = reviewed_predictions(run.folder)
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    if way == "doubtful":
        order = sorted(range(len(rows)), key=lambda i: rows[i]["top1_p"] - (rows[i]["top2_p"] or 0))
    return [rows[i]["path"] for i in order[:count]]


def again(first: Run, asked: list[str], folder: Path) -> Run:
    """The run after the answers; its review is of a copy of the first run."""
    out, copy = folder / "second", folder / "reviewed"
    if (out / "config.yaml").exists():
        return resume(out)
    shutil.rmtree(copy, ignore_errors=True)  # a review that was interrupted begins anew
    shutil.copytree(first.folder, copy, ignore=shutil.ignore_patterns("checkpoints"))
    answer(copy, truths(first), asked)
    run = open_run(copy)
    manifest, before = reviewed_images(run, cache_folder(run.config.run.cache))
    config = configuration.override(continued_config(run, manifest, before), FROZEN, "next_labels")
    say(f"\n{out}")
    require_new(out)
    return train(manifest, config, out, reviewed_run=before)


def answer(run: Path, truth: dict[str, str], asked: list[str]) -> None:
    """Accept or move each image by its truth."""
    with Log(run) as log:
        review = log.review
        meaning = {one.id: one.id for one in review.categories.values() if one.known}
        for one in review.categories.values():
            found = Counter(truth[image] for image in review.members(one.id)).most_common(1)
            if not one.known and found and found[0][0] not in meaning.values():
                meaning[one.id] = found[0][0]
        home = {name: id for id, name in meaning.items()}
        for image in asked:
            to = home.setdefault(truth[image], review.next_id())
            same = review.category[image] == to
            log.act({"act": "accept", "images": [image]} if same else {"act": "move", "images": [image], "to": to})


def truths(run: Run) -> dict[str, str]:
    """The true class of each unlabelled image."""
    rows = run.manifest.training_rows[run.manifest.training_labels < 0]
    return {str(run.manifest.paths[row]): str(run.manifest.truths[row]) for row in rows}


def measured(runs: dict[str, Run], asked: set[str]) -> dict[str, Any]:
    """All of each run on the images that no way asked for."""
    first, truth = runs["first"], truths(runs["first"])
    rest = [image for image in truth if image not in asked]
    number = {name: i for i, name in enumerate(dict.fromkeys([*first.manifest.classes, *sorted(set(truth.values()))]))}
    true = np.array([number[truth[image]] for image in rest])
    found: dict[str, Any] = {"images": len(rest)}
    for way, run in runs.items():
        said = {row["path"]: row["category"] for row in reviewed_predictions(run.folder)[0]}
        found[way] = clustering_accuracy(true, [said[image] for image in rest], len(first.manifest.classes)).all
    return found


def table(written: dict[str, Any]) -> str:
    """Means over the draws, and the mean gains with their standard errors."""
    names = {"random": "random", "doubtful": "most doubtful", "next": "`--next`"}
    lines = [
        f"| set | draws | first run | {' | '.join(names.values())} | {' | '.join(f'gain by {name}' for name in names.values())} |",
        "|---|---|---|" + "---|" * (2 * len(names)),
    ]
    for name in dict.fromkeys(row["set"] for row in written["runs"]):
        rows = [row for row in written["runs"] if row["set"] == name]
        means = [f"{100 * statistics.mean(row[way] for row in rows):.1f}" for way in ("first", *names)]
        gains = []
        for way in names:
            each = [100 * (row[way] - row["first"]) for row in rows]
            gains.append(f"{statistics.mean(each):+.1f} ± {statistics.stdev(each) / len(each) ** 0.5:.1f}")
        lines.append(f"| {name} | {len(rows)} | {' | '.join(means + gains)} |")
    lines += [
        "",
        f"All in per cent after {written['answers']} answers, on the images that no way asked for, ± standard error; frozen answers "
        f"(`--epochs 0`); {CLASSES} classes of at most {IMAGES} images, {KNOWN} known by {LABELS} labels each, true K. "
        f"Measured {written['date']} on {written['processor']}, {written['cores']} cores by "
        f"`{written['command']}`; per draw in `benchmarks/quality/results/next_labels.json`.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
