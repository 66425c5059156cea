"""Five batches of images into one run, as Happy (Ma et al. 2024) measures it; writes benchmarks/results/stream.json and two pages of docs/.

.venv/bin/python benchmarks/stream.py --root DIR [--root DIR ...] [--seeds 3] [SET ...]

DIR holds CIFAR-10, Oxford-IIIT Pet and CUB-200-2011 in their original layouts. Half of a set's classes are known: at stage 0 there are
images of them alone, four fifths with labels. Each of five stages brings new classes, and some more images of all earlier ones. After
each stage every way is asked about the same test images of all classes so far, which are in no stage. All, Old and New are by one
matching over these classes.

    add             debgcd add, with an estimated number of new categories
    train --from    a run on all images so far that goes on from the last one; nothing is named in between
    from scratch    a run on all images so far; its categories get the ids of those before by the best matching
    closed set      the run of stage 0: every image is in a known class
    all data        one run on all images, with the true K

All are frozen answers (--epochs 0), K estimated unless it is said otherwise. Churn: images assigned before a stage whose id is another
after it. Forgetting: the most that Old fell since stage 0. Resumable: what was measured before stays, a set or a seed at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from grid import images_of, settings, write_between
from scipy.optimize import linear_sum_assignment

from debgcd import config as configuration
from debgcd.data.manifest import Manifest
from debgcd.evaluate import clustering_accuracy
from debgcd.grow.add import add
from debgcd.grow.splits import open_model
from debgcd.infer.predict import ask
from debgcd.review.log import joined_predictions
from debgcd.run.directory import finished_run, require_new
from debgcd.system.machine import cache_folder, facts
from debgcd.system.progress import say
from debgcd.train.continue_run import reviewed_images
from debgcd.train.train import train

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"cifar10": (10, 1500), "pets": (24, 1000), "cub": (40, 1200)}  # at most so many classes and images
STAGES = 5
TEST, LATER = 0.2, 0.05  # share of a class's images that are test images, and that come in each stage after its first
LABELLED = 0.8  # of the images of known classes at stage 0
WAYS = ("add", "train --from", "from scratch", "closed set", "all data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(SIZES), metavar="SET", help=", ".join(SIZES))
    parser.add_argument("--root", type=Path, action="append", default=[], metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "stream", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS, metavar="WAY", help="only these")
    options = parser.parse_args()
    cache = cache_folder(options.cache)
    place = ROOT / "benchmarks" / "results" / "stream.json"
    runs = json.loads(place.read_text("utf-8"))["runs"] if place.exists() else []
    for name in options.sets:
        manifest = images_of(name, options.root, options.work, cache, *SIZES[name])
        for seed in range(options.seeds):
            stages, test = stages_of(manifest, seed)
            for way in options.ways:
                if any((run["set"], run["seed"], run["way"]) == (name, seed, way) for run in runs):
                    continue
                folder = options.work / name / str(seed) / way.replace(" ", "-")
                shutil.rmtree(folder, ignore_errors=True)
                found = measured(way, Stream(stages, test, len(manifest.classes), seed, folder, cache))
                runs.append({"set": name, "seed": seed, "way": way, "stages": found})
                say(json.dumps(runs[-1]))
                runs.sort(key=lambda run: (list(SIZES).index(run["set"]), WAYS.index(run["way"]), run["seed"]))
                written = {**facts(), "command": "benchmarks/stream.py", "runs": runs}
                place.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    for page in ("later.md", "results.md"):
        write_between(ROOT / "docs" / page, "benchmarks/stream.py", table(json.loads(place.read_text("utf-8"))))


@dataclass(frozen=True)
class Stream:
    """What a way is measured on."""

    stages: list[Manifest]  # the images that come at each stage
    test: Manifest
    known: int
    seed: int
    folder: Path
    cache: Path

    def so_far(self, stage: int) -> Manifest:
        """The images up to a stage."""
        return joined(self.stages[: stage + 1])


def joined(parts: list[Manifest]) -> Manifest:
    columns = ("paths", "labels", "truths", "splits", "groups")
    return Manifest(*(tuple(value for part in parts for value in getattr(part, column)) for column in columns))


def stages_of(manifest: Manifest, seed: int) -> tuple[list[Manifest], Manifest]:
    """The images of each stage, and the test images."""
    random = np.random.default_rng(seed)
    truth = np.array([truth or label for truth, label in zip(manifest.truths, manifest.labels, strict=True)])
    known = list(manifest.classes)
    new = random.permutation(sorted(set(truth) - set(known))).tolist()
    first = dict.fromkeys(known, 0) | {name: 1 + i * STAGES // len(new) for i, name in enumerate(new)}
    rows: list[list[int]] = [[] for _ in range(STAGES + 1)]
    labelled: set[int] = set()
    test: list[int] = []
    for name, begins in first.items():
        images = random.permutation(np.flatnonzero(truth == name)).tolist()
        cut, more = round(TEST * len(images)), round(LATER * len(images))
        test += images[:cut]
        images = images[cut:]
        for stage in range(begins + 1, STAGES + 1):
            rows[stage] += images[:more]
            images = images[more:]
        rows[begins] += images
        labelled |= set(images[: round(LABELLED * len(images))]) if begins == 0 else set()
    labels = tuple(str(truth[i]) if i in labelled else None for i in range(len(truth)))
    whole = replace(manifest, labels=labels, truths=tuple(map(str, truth)), splits=("train",) * len(truth), skipped=())
    return [whole.select(stage) for stage in rows], replace(whole, labels=(None,) * len(truth)).select(test)


def measured(way: str, stream: Stream) -> list[dict[str, Any]]:
    """The scores after each stage."""
    step = STEPS[way]
    found: list[dict[str, Any]] = []
    before: dict[str, str] = {}
    folder = None
    for stage in range(STAGES if way == "all data" else 0, STAGES + 1):
        begun = time.monotonic()
        folder, ids = step(stream, stage, folder)
        seconds = time.monotonic() - begun
        predicted = joined_predictions(folder, ("path", "id"))
        assigned = dict(zip(predicted["path"], predicted["id"], strict=True))
        if ids:
            assigned = matched(before, assigned)
        there = [image for image in before if image in assigned]
        churn = float(np.mean([before[image] != assigned[image] for image in there])) if there else 0.0
        before = assigned
        found.append({"stage": stage, "seconds": round(seconds, 1), "churn": churn, **scores(stream, stage, folder)})
        say(f"{way}, stage {stage}: {found[-1]}")
    return found


def scores(stream: Stream, stage: int, folder: Path) -> dict[str, Any]:
    """All, Old and New on the test images of the classes so far."""
    classes = sorted(set(stream.stages[0].classes))
    classes += sorted({str(truth) for truth in stream.so_far(stage).truths} - set(classes))
    number = {name: i for i, name in enumerate(classes)}
    rows = [i for i, truth in enumerate(stream.test.truths) if truth in number]
    model = open_model(folder, stream.cache)
    said = ask(model, stream.test.select(rows)).category
    true = np.array([number[str(stream.test.truths[i])] for i in rows])
    accuracy = clustering_accuracy(true, said, stream.known)
    new = None if np.isnan(accuracy.new) else accuracy.new
    found = {"all": accuracy.all, "old": accuracy.old, "new": new}
    return {**found, "k": len(model.categories), "classes": len(classes)}


def matched(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """The assignment with the ids of the one before, by the best one-to-one matching on the images of both."""
    both = [image for image in before if image in now]
    old, new = sorted({before[image] for image in both}), sorted(set(now.values()))
    overlap = np.zeros((len(new), len(old)))
    for image in both:
        overlap[new.index(now[image]), old.index(before[image])] += 1
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    name = {new[row]: old[column] for row, column in zip(rows, columns, strict=True)}
    return {image: name.get(id, f"unmatched {id}") for image, id in now.items()}


Step = Callable[[Stream, int, Path | None], tuple[Path, bool]]  # -> the run, and whether its ids are to be matched


def frozen(stream: Stream, manifest: Manifest, name: str, k: int | None) -> Path:
    folder = stream.folder / name
    require_new(folder)
    values = {"k": k, "run": {"cache": str(stream.cache)}}
    train(manifest, settings(configuration.compose("small", method="pim"), stream.seed, values), folder)
    return folder


def add_stage(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    if folder is None:
        return frozen(stream, stream.stages[0], "0", stream.known), False
    add(folder, stream.stages[stage], stream.cache)
    return folder, False


def train_from(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    if folder is None:
        return add_stage(stream, stage, folder)
    run = finished_run(folder)
    manifest, before = reviewed_images(run, stream.cache, stream.stages[stage])
    place = stream.folder / str(stage)
    require_new(place)
    train(manifest, replace(run.config, k=None), place, reviewed_run=before)
    return place, False


def from_scratch(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    return frozen(stream, stream.so_far(stage), str(stage), None if stage else stream.known), stage > 0


def closed_set(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    return (frozen(stream, stream.stages[0], "0", stream.known) if folder is None else folder), False


def all_data(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    images = stream.so_far(stage)
    return frozen(stream, images, "all", len({*images.truths})), False


STEPS: dict[str, Step] = {
    "add": add_stage,
    "train --from": train_from,
    "from scratch": from_scratch,
    "closed set": closed_set,
    "all data": all_data,
}


def table(written: dict[str, Any]) -> str:
    """Means over the seeds."""
    lines = [
        "| set | way | seeds | All, stages 1 to 5 | All at the end | Old | New | forgetting | id churn | categories, classes | seconds per stage |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    runs = written["runs"]
    for name, way in dict.fromkeys((run["set"], run["way"]) for run in runs):
        same = [run["stages"] for run in runs if (run["set"], run["way"]) == (name, way)]
        ends = [stages[-1] for stages in same]
        several = len(same[0]) > 1

        def mean(values: list[float], form: str = "{:.1f}") -> str:
            return form.format(float(np.mean(values)))

        later = [stage for stages in same for stage in (stages[1:] or stages)]
        cells = [name, way, str(len(same)), mean([100 * stage["all"] for stage in later]) if several else "–"]
        cells += [mean([100 * end[part] for end in ends]) for part in ("all", "old", "new")]
        cells.append(mean([100 * (s[0]["old"] - min(e["old"] for e in s)) for s in same]) if several else "–")
        cells.append(mean([100 * stage["churn"] for stage in later]) if several else "–")
        cells.append(f"{mean([end['k'] for end in ends], '{:.0f}')}, {ends[0]['classes']}")
        cells.append(mean([stage["seconds"] for stage in later], "{:.0f}"))
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Per cent, on test images of all classes so far; frozen answers, lite0, preset `small`. Measured "
        f"{written['date']} on {written['processor']}, {written['cores']} cores shared with other work, by `{written['command']}`; per stage in "
        "[stream.json](../benchmarks/results/stream.json).",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
