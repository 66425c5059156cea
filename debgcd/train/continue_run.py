"""Train again from a reviewed run: accepted images are labelled, and categories that are found again keep their ids.

Labels are ids, so that `new-03` keeps its id when it becomes a known class; its name is in categories.json. The new run copies
what it needs of the reviewed run into before.json, because the reviewed run's log may change meanwhile.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.image.crop import Picture
from debgcd.data.manifest import Manifest, relabelled
from debgcd.errors import UsageError
from debgcd.novelty.so_far import Before, Origin
from debgcd.review.log import read_review
from debgcd.review.replay import Review
from debgcd.review.state import ACCEPTED, OPEN, REJECTED
from debgcd.run.categories import Category
from debgcd.run.directory import Run, unusable_images
from debgcd.run.predictions import Prediction
from debgcd.system.files import read_json, readable
from debgcd.system.progress import say

FROZEN = "pim"  # the method of a frozen answer
NAMED = 20  # images left out that are named; skipped.csv has all


@dataclass(frozen=True)
class Earlier:
    """A category of the reviewed run."""

    id: str
    name: str
    known: bool
    lives: str  # its own id, or that of the category that it was merged into
    rejected: bool
    counts: dict[str, int]  # number of images by their status: open, accepted or rejected

    @property
    def shown(self) -> str:
        """The id, and the name if it has one."""
        return self.id if self.name == self.id else f"{self.id} ({self.name})"


@dataclass(frozen=True)
class ReviewedRun:
    """The reviewed run that another run continues, as it was when that one began."""

    run: str  # its directory
    categories: list[Earlier]
    next_id: str  # the first id that no category has had
    rows: dict[str, int]  # path of each image that stays unlabelled -> position of its category in `categories`

    def to_json(self, manifest: Manifest) -> dict[str, Any]:
        """The content of before.json; its rows are those of the new run's manifest, -1 for an image not in `rows`."""
        facts = {"run": self.run, "next_id": self.next_id, "categories": [vars(each) for each in self.categories]}
        return {**facts, "rows": [self.rows.get(str(path), -1) for path in manifest.paths]}

    def so_far(self, manifest: Manifest) -> Before:
        """Where the training images were before the new run, in categories that live and have an image there."""
        number = {name: i for i, name in enumerate(manifest.classes)}
        for each in self.categories:
            if each.lives == each.id and not each.rejected:
                number.setdefault(each.id, len(number))
        # a category is named as a whole if none of its images has stayed open
        why = {
            each.id: Origin.GIVEN if each.known else Origin.ACCEPTED if each.counts.get(OPEN) else Origin.NAMED
            for each in self.categories
        }
        category = manifest.training_labels.copy()
        named = np.array([why.get(name, Origin.GIVEN) for name in manifest.classes], dtype=np.int64)
        origin = np.where(category >= 0, named[category.clip(0)], Origin.FOUND)
        for i in np.flatnonzero(category < 0):
            position = self.rows.get(str(manifest.training_paths[i]), -1)
            if position >= 0:
                category[i] = number.get(self.categories[position].lives, -1)
        known, found = len(manifest.classes), category >= len(manifest.classes)
        category[found] = known + np.unique(category[found], return_inverse=True)[1]
        group = torch.from_numpy(manifest.training_groups)
        return Before(torch.from_numpy(category), torch.from_numpy(origin), group, known)

    def name(self, found: Sequence[Category], paths: Sequence[Picture], category: NDArray[np.int64]) -> list[Category]:
        """The categories of the new run, with the ids and names of earlier ones that were found again.

        An earlier category is found again in a new one that has more than half of its images, and more of its images than of any
        other earlier category's.
        paths, category: of the unlabelled images.
        """
        names = {each.id: each.name for each in self.categories if each.lives == each.id}
        was = np.array([self.rows.get(str(path), -1) for path in paths], dtype=np.int64)
        both = Counter(zip(was[was >= 0].tolist(), category[was >= 0].tolist(), strict=True))
        old, shares = Counter(was[was >= 0].tolist()), dict[int, list[int]]()
        for (_, b), count in both.items():
            shares.setdefault(b, []).append(count)
        largest = {b: max(counts) for b, counts in shares.items() if counts.count(max(counts)) == 1}
        classes = {each.id for each in found if each.known}
        lives = {
            b: self.categories[a].id
            for (a, b), count in both.items()
            if 2 * count > old[a]
            and count == largest.get(b)
            and not found[b].known
            and self.categories[a].id not in classes
        }
        width, first = len(self.next_id) - 4, int(self.next_id[4:])
        fresh = (id for id in (f"new-{number:0{width}d}" for number in itertools.count(first)) if id not in classes)
        ids = [each.id if each.known else lives.get(each.category) or next(fresh) for each in found]
        return [replace(each, id=id, name=names.get(id, id)) for each, id in zip(found, ids, strict=True)]


def read_before(run: Run) -> ReviewedRun | None:
    """The content of before.json; None if the run does not continue a reviewed one."""
    if not run.before.exists():
        return None
    with readable(run.before, "restore it, or train again in a new folder"):
        facts = read_json(run.before)
        rows = {str(path): row for path, row in zip(run.manifest.paths, facts["rows"], strict=True) if row >= 0}
        return ReviewedRun(facts["run"], [Earlier(**each) for each in facts["categories"]], facts["next_id"], rows)


def reviewed_images(run: Run, cache: Path, more: Manifest | None = None) -> tuple[Manifest, ReviewedRun]:
    """The manifest to train on: the images of a reviewed run and of `more`; and the reviewed run itself.

    Accepted images are labelled, rejected ones left out; so are those whose files have changed, which the reviewer did not
    see. A label or truth in `more` that is a category's name becomes its id.
    """
    review = read_review(run.folder)
    status = {image: review.status(image) for image in review.images}
    corrected = review.corrected()
    learned = run.added or corrected or {ACCEPTED, REJECTED} & set(status.values())
    if more is None and not learned and run.config.method != FROZEN:
        raise UsageError(
            f"nothing is accepted, named or rejected in {run.folder}; first: debgcd name {run.folder} new-01=NAME"
        )
    accepted = {image: review.category[image] for image in review.images if status[image] == ACCEPTED}
    labels: dict[str, str | None] = {**accepted, **corrected}
    out = {image for image in review.images if status[image] == REJECTED}
    reasons = unusable_images(run, range(len(run.manifest)), cache)
    gone = {str(path): why for path, why in zip(run.manifest.paths, reasons, strict=True) if why}
    manifest = relabelled(run.manifest, labels, out, _ids(review), more, gone)
    if gone:
        say(
            f"left out, because they are not what {run.folder} was trained on: {', '.join(list(gone)[:NAMED])}{_rest(gone)}"
        )
    before = _before(run, review, status)
    _print_counts(run, manifest, before)
    own = dict(zip(map(str, run.manifest.paths), run.manifest.labels, strict=True))
    if changed := sum(own.get(image) != label for image, label in corrected.items()):
        say(f"labels corrected in the review: {changed}")
    return manifest, before


def continued_config(run: Run, manifest: Manifest, before: ReviewedRun) -> Config:
    """The configuration of the new run: that of the reviewed run, with its network to start from.

    A given K stays, with the categories that were added, but is at least the number of categories so far. An estimated K becomes
    that number and what is found in images that are of none of them (`plan.set_k`). After a frozen answer, which trains
    nothing, DebGCD begins from the pretrained network, for as long as the preset says.
    """
    config, so_far = run.config, before.so_far(manifest).count
    added = sum(len(batch.categories) for batch in run.added)
    k = None if config.prune or config.k is None else max(config.k + added, so_far)
    if config.method == FROZEN:
        fresh = configuration.compose(config.preset, method="debgcd")
        kept = {"views": {"bank": fresh.views.bank, "bank_views": fresh.views.bank_views}}
        backbone = replace(config.backbone, tuned_blocks=None)
        config = replace(
            fresh, backbone=backbone, views=config.views, run=config.run, seed=config.seed, quality=config.quality
        )
        return configuration.override(replace(config, k=k), kept, "--from")
    config = replace(config, start=str(run.folder.absolute()), start_sha256=None, k=k, prune=False)
    # the share is not known for the new run's labels
    share = {"detector": {"labelled_fraction": None}}
    return configuration.override(config, configuration.fitted(config, share, "--from"), "--from")


def _rest(gone: Mapping[str, str]) -> str:
    return f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""


def _ids(review: Review) -> dict[str, str]:
    """Name or id -> id of the category; an id that was merged leads to its target."""
    living = [each for each in review.categories.values() if each.merged_into is None and each.status != REJECTED]
    return {each.name: each.id for each in living} | {id: review.living(id).id for id in review.categories}


def _before(run: Run, review: Review, status: dict[str, str]) -> ReviewedRun:
    """The reviewed run; status: of each image."""
    counts: dict[str, Counter[str]] = {id: Counter() for id in review.categories}
    for image, id in review.category.items():
        counts[id][status[image]] += 1
    earlier = [
        Earlier(id, each.name, each.known, review.living(id).id, each.status == REJECTED, dict(counts[id]))
        for id, each in review.categories.items()
    ]
    position = {each.id: i for i, each in enumerate(earlier)}
    rows = {image: position[review.category[image]] for image in review.images if status[image] == OPEN}
    return ReviewedRun(str(run.folder.absolute()), earlier, review.next_id(), rows)


def _print_counts(run: Run, manifest: Manifest, before: ReviewedRun) -> None:
    """Print how many images and classes the new run takes from the reviewed one."""
    total = sum((Counter(each.counts) for each in before.categories), Counter())
    learned = len(set(manifest.classes) - set(run.manifest.classes))
    say(
        f"from {run.folder}: {total[ACCEPTED]} images accepted, {total[REJECTED]} rejected and left out, {total[OPEN]} still "
        f"unlabelled; {len(manifest.classes)} known classes, {learned} more than there"
    )


def describe_fate(run: Run, rows: Sequence[Prediction], categories: Sequence[Category]) -> list[str]:
    """Lines on what became of each category of the reviewed run, and on new categories; empty without a reviewed run.

    rows, categories: the result of `reviewed_predictions`.
    """
    before = read_before(run)
    if before is None:
        return []
    names = {each.id: each.name for each in categories}
    classes = set(run.manifest.classes)
    id_of = {row["path"]: row["id"] for row in rows}
    # position of an earlier category -> in which categories its images are now
    where: dict[int, Counter[str]] = {}
    for image, position in before.rows.items():
        if image in id_of:
            where.setdefault(position, Counter())[id_of[image]] += 1
    lines = []
    for position, each in enumerate(before.categories):
        now = where.get(position, Counter())
        total = sum(now.values())
        moved = ", ".join(f"{count} in {_named(id, names)}" for id, count in now.most_common(3))
        moved += f", {total - sum(count for _, count in now.most_common(3))} elsewhere" if len(now) > 3 else ""
        if each.known or (each.lives == each.id and not each.rejected and not sum(each.counts.values())):
            continue
        if each.lives != each.id:
            lines.append(f"{each.shown} was merged into {_named(each.lives, names)}")
        elif each.rejected:
            lines.append(f"{each.shown} was rejected ({_images(each.counts.get(REJECTED, 0))} left out)")
        elif each.id in classes:
            rest = f"; others: {moved}" if now else ""
            lines.append(
                f"{each.shown} is a known class now, with {_images(each.counts.get(ACCEPTED, 0))} labelled{rest}"
            )
        elif each.id in names:
            lines.append(f"{each.shown} lives on with {now[each.id]} of its {_images(total)}")
        else:
            lines.append(f"{each.shown} is gone" + (f"; its images: {moved}" if now else ""))
    size, old = Counter(id_of.values()), {each.id for each in before.categories}
    lines += [f"{id} is new, with {_images(size[id])}" for id in names if size[id] and not {id} & (old | classes)]
    return lines


def _images(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


def _named(id: str, names: dict[str, str]) -> str:
    return id if names.get(id, id) == id else f"{id} ({names[id]})"
