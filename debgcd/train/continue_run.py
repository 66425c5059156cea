"""Training again from a reviewed run: what was accepted has labels now, and categories that live on keep their ids.

Labels are ids, so that `new-03` stays `new-03` when it is a known class; its name is in categories.json as before. What the new
run needs to know of the old one is in its own before.json: the log of the old one may change while it trains.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.image.crop import Picture
from debgcd.data.manifest import Manifest, relabelled
from debgcd.errors import UsageError
from debgcd.review.log import read_review
from debgcd.review.state import ACCEPTED, OPEN, REJECTED, Review
from debgcd.run.categories import Category
from debgcd.run.directory import Run, unusable_images
from debgcd.run.predictions import Prediction
from debgcd.system.files import read_json, readable
from debgcd.system.progress import say

NAMED = 20  # images left out that are named; skipped.csv has all


@dataclass(frozen=True)
class Earlier:
    """A category of the run that was reviewed; images of each status that were in it."""

    id: str
    name: str
    known: bool
    lives: str  # its own id, or that of the category that it was merged into
    rejected: bool
    counts: dict[str, int]

    @property
    def shown(self) -> str:
        return self.id if self.name == self.id else f"{self.id} ({self.name})"


@dataclass(frozen=True)
class ReviewedRun:
    """What a reviewer had made of a run when another began from it."""

    run: str
    categories: list[Earlier]
    next_id: str  # the first that was never given to a category
    rows: dict[str, int]  # the category, by its place, of each image that stays unlabelled

    def to_json(self, manifest: Manifest) -> dict[str, Any]:
        """As before.json; rows are those of the manifest, -1 where nothing was said."""
        kept = {"run": self.run, "next_id": self.next_id, "categories": [vars(each) for each in self.categories]}
        return {**kept, "rows": [self.rows.get(str(path), -1) for path in manifest.paths]}

    def name(self, found: Sequence[Category], paths: Sequence[Picture], category: NDArray[np.int64]) -> list[Category]:
        """The categories of the new run with the ids and names of those that live on in them.

        A category lives on in a new one if more than half of the images of either are in both. paths, category: of the unlabelled images.
        """
        names = {each.id: each.name for each in self.categories if each.lives == each.id}
        was = np.array([self.rows.get(str(path), -1) for path in paths], dtype=np.int64)
        both = Counter(zip(was[was >= 0].tolist(), category[was >= 0].tolist(), strict=True))
        old, new = Counter(was[was >= 0].tolist()), Counter(category[was >= 0].tolist())
        classes = {each.id for each in found if each.known}
        lives = {
            b: self.categories[a].id
            for (a, b), count in both.items()
            if 2 * count > max(old[a], new[b]) and not found[b].known and self.categories[a].id not in classes
        }
        width, first = len(self.next_id) - 4, int(self.next_id[4:])
        fresh = (id for id in (f"new-{number:0{width}d}" for number in itertools.count(first)) if id not in classes)
        ids = [each.id if each.known else lives.get(each.category) or next(fresh) for each in found]
        return [replace(each, id=id, name=names.get(id, id)) for each, id in zip(found, ids, strict=True)]


def read_before(run: Run) -> ReviewedRun | None:
    """What the run began from; None if it did not begin from a reviewed run."""
    if not run.before.exists():
        return None
    with readable(run.before, "restore it, or train again in a new folder"):
        found = read_json(run.before)
        rows = {str(path): row for path, row in zip(run.manifest.paths, found["rows"], strict=True) if row >= 0}
        return ReviewedRun(found["run"], [Earlier(**each) for each in found["categories"]], found["next_id"], rows)


def reviewed_images(run: Run, cache: Path, more: Manifest | None = None) -> tuple[Manifest, ReviewedRun]:
    """The images of a reviewed run, and more of them, with what was accepted as labels and without what was rejected.

    An image whose file is not what it was is left out: the reviewer did not see it. Labels and truths of `more` that are
    names of categories become their ids.
    """
    review = read_review(run.folder)
    status = {image: review.status(image) for image in review.images}
    if more is None and not {ACCEPTED, REJECTED} & set(status.values()):
        raise UsageError(
            f"nothing is accepted, named or rejected in {run.folder}; first: debgcd name {run.folder} new-01=NAME"
        )
    labels = {image: review.category[image] for image in review.images if status[image] == ACCEPTED}
    out = {image for image in review.images if status[image] == REJECTED}
    reasons = unusable_images(run, range(len(run.manifest)), cache)
    gone = {str(path): why for path, why in zip(run.manifest.paths, reasons, strict=True) if why}
    found = relabelled(run.manifest, labels, out, _ids(review), more, gone)
    if gone:
        say(
            f"left out, because they are not what {run.folder} was trained on: {', '.join(list(gone)[:NAMED])}{_rest(gone)}"
        )
    before = _before(run, review, status)
    _tell(run, found, before)
    return found, before


def continued_config(run: Run, manifest: Manifest) -> Config:
    """The configuration of the run to come: that of the reviewed one, from whose network it starts.

    K is again the number that was given, or estimated again, now with more known classes.
    """
    config, classes = run.config, len(manifest.classes)
    k = None if config.prune or config.k is None else max(config.k, classes)
    config = replace(config, start=str(run.folder.absolute()), start_sha256=None, k=k, prune=False)
    share = {"detector": {"labelled_fraction": None}}  # it was that of the first run's labels
    return configuration.override(config, configuration.fitted(config, share, "--from"), "--from")


def _rest(gone: Mapping[str, str]) -> str:
    return f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""


def _ids(review: Review) -> dict[str, str]:
    """The id of the category that lives, by every name and id that it goes by."""
    living = [one for one in review.categories.values() if one.merged_into is None and one.status != REJECTED]
    return {one.name: one.id for one in living} | {id: review.living(id).id for id in review.categories}


def _before(run: Run, review: Review, status: dict[str, str]) -> ReviewedRun:
    counts: dict[str, Counter[str]] = {id: Counter() for id in review.categories}
    for image, id in review.category.items():
        counts[id][status[image]] += 1
    earlier = [
        Earlier(id, one.name, one.known, review.living(id).id, one.status == REJECTED, dict(counts[id]))
        for id, one in review.categories.items()
    ]
    place = {each.id: i for i, each in enumerate(earlier)}
    rows = {image: place[review.category[image]] for image in review.images if status[image] == OPEN}
    return ReviewedRun(str(run.folder.absolute()), earlier, review.next_id(), rows)


def _tell(run: Run, found: Manifest, before: ReviewedRun) -> None:
    total = sum((Counter(each.counts) for each in before.categories), Counter())
    learned = len(set(found.classes) - set(run.manifest.classes))
    say(
        f"from {run.folder}: {total[ACCEPTED]} images accepted, {total[REJECTED]} rejected and left out, {total[OPEN]} still "
        f"unlabelled; {len(found.classes)} known classes, {learned} more than there"
    )


def describe_fate(run: Run, rows: Sequence[Prediction], categories: Sequence[Category]) -> list[str]:
    """What became of each category of the run that this one began from, in words; and which are new.

    rows, categories: what `reviewed_predictions` gives.
    """
    before = read_before(run)
    if before is None:
        return []
    names = {each.id: each.name for each in categories}
    classes = set(run.manifest.classes)
    of = {row["path"]: row["id"] for row in rows}
    where: dict[int, Counter[str]] = {}
    for image, place in before.rows.items():
        if image in of:
            where.setdefault(place, Counter())[of[image]] += 1
    lines = []
    for place, each in enumerate(before.categories):
        went = where.get(place, Counter())
        total = sum(went.values())
        moved = ", ".join(f"{count} in {_named(id, names)}" for id, count in went.most_common(3))
        moved += f", {total - sum(count for _, count in went.most_common(3))} elsewhere" if len(went) > 3 else ""
        if each.known or (each.lives == each.id and not each.rejected and not sum(each.counts.values())):
            continue
        if each.lives != each.id:
            lines.append(f"{each.shown} was merged into {_named(each.lives, names)}")
        elif each.rejected:
            lines.append(f"{each.shown} was rejected ({_images(each.counts.get(REJECTED, 0))} left out)")
        elif each.id in classes:
            rest = f"; others: {moved}" if went else ""
            lines.append(
                f"{each.shown} is a known class now, with {_images(each.counts.get(ACCEPTED, 0))} labelled{rest}"
            )
        elif each.id in names:
            lines.append(f"{each.shown} lives on with {went[each.id]} of its {_images(total)}")
        else:
            lines.append(f"{each.shown} is gone" + (f"; its images: {moved}" if went else ""))
    size, old = Counter(of.values()), {each.id for each in before.categories}
    lines += [f"{id} is new, with {_images(size[id])}" for id in names if size[id] and not {id} & (old | classes)]
    return lines


def _images(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


def _named(id: str, names: dict[str, str]) -> str:
    return id if names.get(id, id) == id else f"{id} ({names[id]})"
