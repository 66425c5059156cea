"""What twenty acts of a reviewer are worth in a second run; writes benchmarks/results/review_gain.json and docs/review.md.

.venv/bin/python benchmarks/review_gain.py --root DIR [--root DIR ...] [--seeds 3] [--acts 20] [SET ...]

DIR holds CIFAR-10 and Oxford-IIIT Pet in their original layouts. Each SET (default: both) is trained with the preset `small` and
its true K on at most 2,000 images of at most 50 classes. Then `train --from` goes on in three ways, from the same first run:

    names     a reviewer is shown the new categories in the report's order of interest. If more than half of the images of one are
              of one class, he gives it that name, or merges it into the category or known class that has the name; one act each.
              Others he leaves. He never looks at single images, so the wrong ones in a category get its name, too.
    images    as many acts as were allowed are spent on random single images, each of which gets its true class
    nothing   the same training again from the first run's network, without any answer: what more steps alone are worth

All four networks are asked about the same images: those without a label in the first run, but for the single images that were
answered. All is Eq. 15 with the truth of these. Resumable; runs that were measured before stay in the table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from grid import finished_run, images_of, settings, write_between
from numpy.typing import NDArray

from debgcd import config as configuration
from debgcd.evaluate import clustering_accuracy
from debgcd.infer.infer import infer_shared
from debgcd.report.look import look
from debgcd.report.trust import order_of_interest
from debgcd.reproduce.experiments import classes_of
from debgcd.review.log import Log, read_review
from debgcd.review.state import ACCEPTED
from debgcd.run.directory import Run, open_run, require_new
from debgcd.system.machine import cache_folder, facts
from debgcd.system.progress import say
from debgcd.train.continue_run import continued_config, reviewed_images
from debgcd.train.train import open_setup, resume, train

ROOT = Path(__file__).resolve().parent.parent
CLASSES, IMAGES = 50, 2000
SETS = ("cifar10", "pets")
WAYS = ("names", "images", "nothing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("--root", type=Path, action="append", default=[], metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "review_gain", help="folder for the runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of review_gain.json and review.md")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--acts", type=int, default=20, metavar="N")
    parser.add_argument("--images", type=int, default=IMAGES, metavar="N", help="fewer, only to try it")
    options = parser.parse_args()
    cache = cache_folder(options.cache)
    rows = []
    for name in options.sets:
        manifest = images_of(name, options.root, options.work, cache, CLASSES, options.images)
        for seed in range(options.seeds):
            fixed = {"k": classes_of(manifest), "run": {"cache": options.cache}}
            config = settings(configuration.compose("small"), seed, fixed)
            folder = options.work / name / f"seed-{seed}"
            first = finished_run(manifest, config, folder / "first")
            runs = {"first": first, **{way: again(first, way, folder / way, options.acts, cache) for way in WAYS}}
            rows.append({"set": name, "seed": seed, "acts": options.acts, **measured(runs, cache)})
            say(json.dumps(rows[-1]))
    place = options.out / "review_gain.json"
    before = json.loads(place.read_text("utf-8"))["runs"] if place.exists() else []
    done = {(row["set"], row["seed"]) for row in rows}
    rows += [row for row in before if (row["set"], row["seed"]) not in done]
    rows.sort(key=lambda row: (row["set"], row["seed"]))
    written = {**facts(), "command": "benchmarks/review_gain.py", "runs": rows}
    place.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    write_between(options.out / "review.md", "benchmarks/review_gain.py", table(written))


def again(first: Run, way: str, folder: Path, acts: int, cache: Path) -> Run:
    """The second run of one way; its review is of a copy of the first run."""
    out, copy = folder / "second", folder / "reviewed"
    if (out / "config.yaml").exists():
        return resume(out)
    if way == "nothing":
        config = replace(first.config, start=str(first.folder.absolute()), start_sha256=None)
        return finished_run(first.manifest, config, out)
    shutil.rmtree(copy, ignore_errors=True)  # a review that was interrupted begins anew
    shutil.copytree(first.folder, copy, ignore=shutil.ignore_patterns("checkpoints"))
    run = open_run(copy)
    name_categories(run, acts, cache) if way == "names" else answer_images(run, acts)
    manifest, before = reviewed_images(run, cache_folder(None))
    say(f"\n{out}")
    require_new(out)
    return train(manifest, continued_config(run, manifest, before), out, reviewed_run=before)


def truths(run: Run) -> dict[str, str]:
    """The true class of each unlabelled image."""
    rows = run.manifest.training_rows[run.manifest.training_labels < 0]
    return {str(run.manifest.paths[row]): str(run.manifest.truths[row]) for row in rows}


def name_categories(run: Run, acts: int, cache: Path) -> None:
    """The reviewer of categories."""
    seen, truth = look(run, cache), truths(run)
    known = len(run.manifest.classes)
    with Log(run.folder) as log:
        for number in order_of_interest(seen.trust, seen.size, known):
            id = seen.categories[number].id
            found = Counter(truth[image] for image in log.review.members(id)).most_common(1)
            if log.review.version == acts or number < known:
                break
            if not found or 2 * found[0][1] <= log.review.categories[id].images:
                continue
            name = found[0][0]
            there = [one.id for one in log.review.categories.values() if one.name == name and not one.merged_into]
            if there:
                log.act({"act": "merge", "categories": [id], "into": there[0]})
            else:
                log.act({"act": "name", "category": id, "name": name})


def answer_images(run: Run, acts: int) -> None:
    """The reviewer of random single images; a name for a class that had none is not counted."""
    truth = truths(run)
    order = np.random.default_rng(run.config.seed).permutation(len(truth))[:acts]
    with Log(run.folder) as log:
        for image in (log.review.images[i] for i in order):
            there = [one.id for one in log.review.categories.values() if one.name == truth[image]]
            to = there[0] if there else log.review.next_id()
            log.act({"act": "move", "images": [image], "to": to})
            if not there:
                log.act({"act": "name", "category": to, "name": truth[image]})


def measured(runs: dict[str, Run], cache: Path) -> dict[str, Any]:
    """All of each run on the same images, and what the reviewer of categories did."""
    first, truth = runs["first"], truths(runs["first"])
    single = read_review(runs["images"].folder.parent / "reviewed").mark  # moved there one by one
    asked = [image for image in truth if image not in single]
    number = {name: i for i, name in enumerate(dict.fromkeys([*first.manifest.classes, *sorted(set(truth.values()))]))}
    true = np.array([number[truth[image]] for image in asked])
    found: dict[str, Any] = {"asked": len(asked), "single": len(single)}
    for way, run in runs.items():
        said = answers(run, cache)
        accuracy = clustering_accuracy(true, [said[image] for image in asked], len(first.manifest.classes))
        found[way] = {"all": accuracy.all, "old": accuracy.old, "new": accuracy.new}
    review = read_review(runs["names"].folder.parent / "reviewed")
    named = {image: review.categories[review.category[image]] for image in asked if review.status(image) == ACCEPTED}
    right = [one.name == truth[image] for image, one in named.items()]
    return {**found, "used": review.version, "labelled": len(right), "right": float(np.mean(right)) if right else None}


def answers(run: Run, cache: Path) -> dict[str, int]:
    """The category of every training image, labelled by now or not, as the network says it."""
    setup = open_setup(run, run.manifest, cache)
    numbers: NDArray[np.int64] = np.arange(len(setup.paths))
    said = infer_shared(setup.network, setup.method, setup.tokens, numbers, setup.method.final_answers).category
    return dict(zip(map(str, setup.paths), said.tolist(), strict=True))


def table(written: dict[str, Any]) -> str:
    """Means over the seeds, and each seed's gain."""
    lines = [
        "| set | seeds | acts used | labels given, right | first run | again, no answers | random images | names | gain by names, per seed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["set"] for row in written["runs"]):
        rows = [row for row in written["runs"] if row["set"] == name]
        mean = {
            way: 100 * statistics.mean(row[way]["all"] for row in rows)
            for way in ("first", "nothing", "images", "names")
        }
        right = statistics.mean(100 * (row["right"] or 0) for row in rows)
        used = ", ".join(str(row["used"]) for row in rows)
        labelled = round(statistics.mean(row["labelled"] for row in rows))
        gain = ", ".join(f"{100 * (row['names']['all'] - row['first']['all']):+.1f}" for row in rows)
        cells = " | ".join(f"{mean[way]:.1f}" for way in ("first", "nothing", "images", "names"))
        lines.append(f"| {name} | {len(rows)} | {used} | {labelled}, {right:.0f} % | {cells} | {gain} |")
    acts = written["runs"][0]["acts"]
    lines += [
        "",
        f"All in per cent on the same images: those without a label in the first run, but for the {acts} that were answered one by "
        f"one. At most {acts} acts; preset `small`, true K. Measured {written['date']} on {written['processor']}, "
        f"{written['cores']} cores by `{written['command']}`; per run in [review_gain.json](../benchmarks/results/review_gain.json).",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
