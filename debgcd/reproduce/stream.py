"""Categories that come one after another: five stages of images, and what each way of taking them in makes of the classes so far.

The protocol is that of Happy (Ma et al. 2024). Half of the classes are known: at stage 0 there are images of them alone, four fifths
with labels. Each of five stages brings new classes, and some more images of all earlier ones. After each stage every way is asked
about the same test images of all classes so far, which are in no stage. All, Old and New are by one matching over these classes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.manifest import Manifest
from debgcd.errors import DataError
from debgcd.evaluate import clustering_accuracy
from debgcd.grow.add import add
from debgcd.grow.splits import open_model
from debgcd.infer.predict import ask
from debgcd.reproduce.counts import read_first
from debgcd.reproduce.experiments import part, title_of
from debgcd.review.log import joined_predictions
from debgcd.run.directory import finished_run, require_new
from debgcd.system.files import read_json, write_json, write_text
from debgcd.system.machine import facts
from debgcd.system.progress import say
from debgcd.system.text_table import markdown_table
from debgcd.train.continue_run import FROZEN, continued_config, reviewed_images
from debgcd.train.train import train

NAME = "stream"
TITLE = "Categories that come over five stages (Happy, NeurIPS 2024)"
STAGES = 5
LABELLED = 0.8  # of the images of known classes at stage 0
SMALL = {"cifar10": (10, 1500), "pets": (24, 1000), "cub": (40, 1200)}  # at most so many classes and images
TEST, LATER = (
    0.2,
    0.05,
)  # at small scale: share of a class's images that are test images, and that come in each stage after its first


@dataclass(frozen=True)
class Counts:
    """How many images of a class come in a stage, as the public commands have it."""

    new: int  # of a class that is new in this stage
    old: int  # of a known class
    earlier: int  # of a class that was new in an earlier stage


PUBLISHED = {"cifar100": Counts(400, 25, 25), "cub": Counts(25, 5, 5)}


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    roots: tuple[Path, ...]
    out: Path  # folder of the runs, stream.json and stream.md
    cache: Path
    command: str = ""  # as typed, for the page
    scale: str = "full"
    sets: tuple[str, ...] = ()  # empty: those of the scale
    seeds: int = 3
    preset: str = "paper"
    settings: tuple[dict[str, Any], ...] = ()  # override the configuration of every run
    ways: tuple[str, ...] = ()  # empty: all

    @property
    def chosen_sets(self) -> tuple[str, ...]:
        return self.sets or tuple(PUBLISHED if self.scale == "full" else SMALL)


@dataclass(frozen=True)
class Stream:
    """What a way is measured on."""

    stages: list[Manifest]  # the images that come at each stage
    test: Manifest
    known: int
    config: Config  # of a run that continues none; its K is set by the way
    given: bool  # whether the number of new classes of a stage is known, as in the paper; otherwise it is estimated
    folder: Path
    cache: Path

    def so_far(self, stage: int) -> Manifest:
        """The images up to a stage."""
        return joined(self.stages[: stage + 1])

    def classes(self, stage: int) -> int:
        """The number of classes up to a stage."""
        return len({*self.so_far(stage).truths})


def reproduce(wish: Wish) -> dict[str, Any]:
    """Run what is not there yet, and write OUT/stream.json and OUT/stream.md; returns the content of the former."""
    for name in wish.chosen_sets:
        if name not in (PUBLISHED if wish.scale == "full" else SMALL):
            raise DataError(
                f"there are no numbers of images for {name} at {wish.scale} scale; "
                f"choose from {', '.join(PUBLISHED if wish.scale == 'full' else SMALL)}"
            )
    place = wish.out / f"{NAME}.json"
    runs: list[dict[str, Any]] = read_json(place)["runs"] if place.exists() else []
    ways = wish.ways or tuple(STEPS)
    for name in wish.chosen_sets:
        manifest = _images(name, wish)
        for seed in range(wish.seeds):
            stages, test = (
                _small(manifest, seed) if wish.scale == "small" else published(manifest, PUBLISHED[name], seed)
            )
            for way in ways:
                if any((run["set"], run["seed"], run["way"]) == (name, seed, way) for run in runs):
                    continue
                folder = wish.out / NAME / name / str(seed) / way.replace(" ", "-")
                shutil.rmtree(folder, ignore_errors=True)
                config = _config(wish, name, seed)
                given, known = wish.scale == "full", len(stages[0].classes)
                found = measured(way, Stream(stages, test, known, config, given, folder, wish.cache))
                runs.append({"set": name, "seed": seed, "way": way, "stages": found})
                order = list(SMALL | PUBLISHED)
                runs.sort(key=lambda run: (order.index(run["set"]), list(STEPS).index(run["way"]), run["seed"]))
                wish.out.mkdir(parents=True, exist_ok=True)
                write_json(place, {**facts(), "command": wish.command, "scale": wish.scale, "runs": runs})
    written = read_json(place)
    write_text(wish.out / f"{NAME}.md", f"# {TITLE}\n\n{table(runs)}\n\n{footnote(written)}\n")
    return dict(written)


def _images(name: str, wish: Wish) -> Manifest:
    manifest = read_first(name, wish.roots, wish.cache).manifest
    return manifest if wish.scale == "full" else part(manifest.select(manifest.training_rows), *SMALL[name])


def _config(wish: Wish, name: str, seed: int) -> Config:
    """At small scale a frozen answer, at full scale DebGCD with DINO."""
    if wish.scale == "small":
        config = configuration.compose("small", method=FROZEN)
    else:
        config = configuration.compose(wish.preset, name, "dino", method="debgcd")
    changes = [(configuration.fitted(config, values, "--set"), "--set") for values in wish.settings]
    own: dict[str, Any] = {"seed": seed, "run": {"cache": str(wish.cache.absolute())}}
    return configuration.override_all(config, [*changes, (own, NAME)])


def joined(parts: Sequence[Manifest]) -> Manifest:
    columns = ("paths", "labels", "truths", "splits", "groups")
    return Manifest(*(tuple(value for part in parts for value in getattr(part, column)) for column in columns))


def _classes(manifest: Manifest, random: np.random.Generator) -> tuple[NDArray[np.str_], dict[str, int]]:
    """The class of each image, and the stage in which each class begins."""
    truth = np.array([truth or label for truth, label in zip(manifest.truths, manifest.labels, strict=True)])
    known = list(manifest.classes)
    new = random.permutation(sorted(set(truth) - set(known))).tolist()
    return truth, dict.fromkeys(known, 0) | {name: 1 + i * STAGES // len(new) for i, name in enumerate(new)}


def _small(manifest: Manifest, seed: int) -> tuple[list[Manifest], Manifest]:
    """The images of each stage and the test images, by shares of the images of each class."""
    random = np.random.default_rng(seed)
    truth, first = _classes(manifest, random)
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
    return _selected(manifest, truth, rows, labelled, test)


def published(manifest: Manifest, counts: Counts, seed: int) -> tuple[list[Manifest], Manifest]:
    """The same by the published numbers of images, which each stage draws anew; an image that was drawn before is there already.

    Training needs an unlabelled image, so one of each known class comes unlabelled at stage 0.
    """
    random = np.random.default_rng(seed)
    truth, first = _classes(manifest, random)
    split = np.array(manifest.splits)
    rows: list[list[int]] = [[] for _ in range(STAGES + 1)]
    labelled: set[int] = set()
    for name, begins in first.items():
        images = random.permutation(np.flatnonzero((truth == name) & (split == "train"))).tolist()
        there: set[int] = set()
        if begins == 0:
            own = round(LABELLED * len(images))
            labelled |= set(images[:own])
            there |= set(images[: own + 1])
            rows[0] += images[: own + 1]
            images = images[own + 1 :]
        for stage in range(max(1, begins), STAGES + 1):
            count = counts.old if begins == 0 else counts.new if stage == begins else counts.earlier
            drawn = random.permutation(images)[:count].tolist()
            rows[stage] += [image for image in drawn if image not in there]
            there |= set(drawn)
    return _selected(manifest, truth, rows, labelled, np.flatnonzero(split == "test").tolist())


def _selected(
    manifest: Manifest, truth: NDArray[np.str_], rows: list[list[int]], labelled: set[int], test: list[int]
) -> tuple[list[Manifest], Manifest]:
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
        folder, by_overlap = step(stream, stage, folder)
        seconds = time.monotonic() - begun
        predicted = joined_predictions(folder, ("path", "id"))
        assigned = dict(zip(predicted["path"], predicted["id"], strict=True))
        if by_overlap:
            assigned = matched(before, assigned)
        there = [image for image in before if image in assigned]
        churn = float(np.mean([before[image] != assigned[image] for image in there])) if there else 0.0
        before = assigned
        found.append({"stage": stage, "seconds": round(seconds, 1), "churn": churn, **scores(stream, stage, folder)})
        say(f"{way}, stage {stage}: {found[-1]}")
    return found


def scores(stream: Stream, stage: int, folder: Path) -> dict[str, Any]:
    """All, Old and New on the test images of the classes so far, and the numbers of categories and classes."""
    classes = sorted(set(stream.stages[0].classes))
    classes += sorted({str(truth) for truth in stream.so_far(stage).truths} - set(classes))
    number = {name: i for i, name in enumerate(classes)}
    rows = [i for i, truth in enumerate(stream.test.truths) if truth in number]
    model = open_model(folder, stream.cache)
    category = ask(model, stream.test.select(rows)).category
    true = np.array([number[str(stream.test.truths[i])] for i in rows])
    accuracy = clustering_accuracy(true, category, stream.known)
    new = None if np.isnan(accuracy.new) else accuracy.new
    return {
        "all": accuracy.all,
        "old": accuracy.old,
        "new": new,
        "k": len(model.categories),
        "classes": len(classes),
    }


def matched(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """The assignment with the ids of the one before, by the best one-to-one matching on the images of both."""
    from scipy.optimize import linear_sum_assignment

    both = [image for image in before if image in now]
    old, new = sorted({before[image] for image in both}), sorted(set(now.values()))
    overlap = np.zeros((len(new), len(old)))
    for image in both:
        overlap[new.index(now[image]), old.index(before[image])] += 1
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    name = {new[row]: old[column] for row, column in zip(rows, columns, strict=True)}
    return {image: name.get(id, f"unmatched {id}") for image, id in now.items()}


# The ways. Each returns the run after a stage, and whether its ids are to be matched with those of the run before.

Step = Callable[[Stream, int, Path | None], tuple[Path, bool]]


def _fresh(stream: Stream, manifest: Manifest, name: str, k: int | None) -> Path:
    folder = stream.folder / name
    require_new(folder)
    train(manifest, replace(stream.config, k=k), folder)
    return folder


def add_stage(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    """`debgcd add`."""
    if folder is None:
        return _fresh(stream, stream.stages[0], "0", stream.known), False
    new = stream.classes(stage) - stream.classes(stage - 1) if stream.given else None
    add(folder, stream.stages[stage], stream.cache, new)
    return folder, False


def train_from(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    """A run on all images so far that continues the last one; nothing is named in between."""
    if folder is None:
        return add_stage(stream, stage, folder)
    run = finished_run(folder)
    manifest, before = reviewed_images(run, stream.cache, stream.stages[stage])
    # after a frozen answer the next one is frozen too
    config = run.config if run.config.method == FROZEN else continued_config(run, manifest, before)
    place = stream.folder / str(stage)
    require_new(place)
    k = stream.classes(stage) if stream.given else None
    train(manifest, replace(config, k=k), place, reviewed_run=before)
    return place, False


def from_scratch(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    """A run on all images so far that knows nothing of the last one."""
    k = stream.classes(stage) if stream.given or not stage else None
    return _fresh(stream, stream.so_far(stage), str(stage), k), stage > 0


def closed_set(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    """The run of stage 0, for which every image is of a known class."""
    return (_fresh(stream, stream.stages[0], "0", stream.known) if folder is None else folder), False


def all_data(stream: Stream, stage: int, folder: Path | None) -> tuple[Path, bool]:
    """One run on all images, with the true K."""
    return _fresh(stream, stream.so_far(stage), "all", stream.classes(stage)), False


STEPS: dict[str, Step] = {
    "add": add_stage,
    "train --from": train_from,
    "from scratch": from_scratch,
    "closed set": closed_set,
    "all data": all_data,
}


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Means over the seeds, in per cent.

    Forgetting: the most that Old fell since stage 0. Discovery is New at the end. Churn: images assigned before a stage whose id
    is another after it.
    """
    head = ["set", "way", "seeds", "All, stages 1 to 5", "All at the end", "Old", "New", "forgetting", "id churn"]
    head += ["categories, classes", "seconds per stage"]
    rows = []
    for name, way in dict.fromkeys((run["set"], run["way"]) for run in runs):
        same = [run["stages"] for run in runs if (run["set"], run["way"]) == (name, way)]
        ends, several = [stages[-1] for stages in same], len(same[0]) > 1
        later = [stage for stages in same for stage in (stages[1:] or stages)]
        cells = [
            title_of(name),
            way,
            str(len(same)),
            _mean([100 * stage["all"] for stage in later]) if several else "–",
        ]
        cells += [_mean([100 * end[part] for end in ends]) for part in ("all", "old", "new")]
        cells.append(_mean([100 * (s[0]["old"] - min(e["old"] for e in s)) for s in same]) if several else "–")
        cells.append(_mean([100 * stage["churn"] for stage in later]) if several else "–")
        cells.append(f"{_mean([end['k'] for end in ends], '{:.0f}')}, {ends[0]['classes']}")
        rows.append([*cells, _mean([stage["seconds"] for stage in later], "{:.0f}")])
    return markdown_table(head, rows)


def _mean(values: Sequence[float], form: str = "{:.1f}") -> str:
    return form.format(float(np.mean(values)))


def footnote(written: dict[str, Any]) -> str:
    """What the numbers are, and where they come from."""
    what = (
        "frozen answers, lite0, preset `small`, K estimated but for all data"
        if written["scale"] == "small"
        else "DebGCD, K given"
    )
    return (
        f"Per cent, on test images of all classes so far; {what}. Forgetting: the most that Old fell since stage 0. "
        f"Id churn: images whose id changed with a stage. Measured {written['date']} on {written['processor']}, "
        f"{written['cores']} cores, by `{written['command']}`."
    )
