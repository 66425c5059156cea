"""The review as the page sees it: images and categories by number, acts in, changes out."""

from __future__ import annotations

import hashlib
import os
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd.data.image.crop import Picture
from debgcd.errors import DataError, UsageError
from debgcd.review.log import LOG, Log, joined_predictions, read_log
from debgcd.review.page.similar import Similar
from debgcd.review.state import ACCEPTED, OPEN, REJECTED
from debgcd.run.directory import Run, read_digests

STATUS = [OPEN, ACCEPTED, REJECTED]
EXAMPLES = 6  # labelled images shown of a known class
NEAREST = 6  # images of a kind in a close-up
NEXT = 30  # images of a walk, before the next are chosen
PROBLEMS_SHOWN = 5  # acts that do not apply, in one answer

Ids = NDArray[np.int64]
Asked = dict[str, Any]  # the body of a request


class ReviewSession:
    """One review, open in any number of windows. Its methods may be called by several threads.

    Images are numbered: the unlabelled ones in the order of predictions.csv, then the labelled ones by class. A window knows the
    version that it has seen, and asks for what has changed since.
    """

    def __init__(self, run: Run, log: Log, cache: Path):
        self._run, self._log, self._lock = run, log, threading.Lock()
        training = {str(path): i for i, path in enumerate(run.manifest.training_paths)}
        missing = [image for image in log.review.images if image not in training]
        if missing:
            raise DataError(
                f"{run.predictions} has {missing[0]}, which manifest.csv has not; restore them or train again"
            )
        shown = [training[image] for image in log.review.images]
        count = len(shown)
        self._examples: dict[str, list[int]] = {}  # of each known class, by its id
        label = run.manifest.training_labels
        for i, name in enumerate(run.manifest.classes):
            own = np.flatnonzero(label == i).tolist()
            self._examples[name] = list(range(len(shown), len(shown) + min(EXAMPLES, len(own))))
            shown += own
        self._training = np.array(shown, np.int64)
        # acts that were one for the reviewer, such as "move to a new category" and "name it": undone and redone together
        self._with = {
            line["id"]: line["with"] for line in read_log(run.folder / LOG)[0] if isinstance(line.get("with"), str)
        }
        self._ids: list[str] = []
        self._category, self._status = self._now()
        self._version = log.review.version
        self._changed = np.zeros(count, np.int64)  # the version at which each image last changed
        self.similar = Similar(run.folder, cache, self._training)

    @property
    def images(self) -> tuple[list[Picture], list[str]]:
        """The files of all images, and their sha256 when the run began."""
        manifest, digests = self._run.manifest, read_digests(self._run)
        rows = manifest.training_rows[self._training]
        return [manifest.paths[row] for row in rows], [digests[row] for row in rows]

    def about(self) -> dict[str, Any]:
        """What never changes: the run's name, and its predictions, one list per column."""
        manifest = self._run.manifest
        number = {id: i for i, id in enumerate(self._ids)}
        predicted = joined_predictions(self._run.folder)
        leads = zip(predicted["top1_p"], predicted["top2_p"], strict=True)
        columns: dict[str, list[int | None]] = {
            "confidence": [round(1000 * value) for value in predicted["confidence"]],
            "novelty": [None if value is None else round(1000 * value) for value in predicted["novelty"]],
            "lead": [round(1000 * (first - (second or 0))) for first, second in leads],
            "second": [number.get(id) for id in predicted["top2_id"]],
        }
        every = manifest.training_paths
        paths = [str(every[i]) for i in self._training]
        base = os.path.commonpath([os.path.dirname(path) for path in paths])
        key = hashlib.sha256(f"{self._run.folder.resolve()} {read_digests(self._run)}".encode()).hexdigest()[:12]
        return {
            "run": self._run.folder.resolve().name,
            "key": key,  # of the pictures: another run may have the same port
            "path": [path[len(base) :].lstrip(os.sep) for path in paths],
            "examples": self._examples,
            "label": [manifest.labels[row] for row in manifest.training_rows[self._training]],
            "added": self._added(),
            **columns,
        }

    def _added(self) -> list[str | None]:
        """The batch that each image came with; None for those of the run itself."""
        came = {image: batch.number for batch in self._run.added for image in batch.assigned}
        return [came.get(image) for image in self._log.review.images]

    def changes(self, since: int) -> dict[str, Any]:
        """What is not as it was at this version; -1: everything."""
        with self._lock:
            return self._changes(since)

    def act(self, asked: Asked) -> dict[str, Any]:
        """Save what the reviewer did, as one act or two; a UsageError if it does not apply."""
        if asked.get("act") == "label":
            asked = asked | {"images": self._labelled(asked)}
        with self._lock:
            first, *further = self._log.review.lines(asked, self._paths)
            begun = self._log.act(first)["id"]
            with _half_done():
                try:
                    for line in further:
                        self._with[self._log.act({**line, "with": begun})["id"]] = begun
                except UsageError:  # half of it would not be what was asked for
                    self._log.undo()
                    raise
            return self._changes(_since(asked))

    def undo(self, asked: Asked) -> dict[str, Any]:
        """Take back what was done last, in whatever window."""
        with self._lock:
            of = self._log.undo()["of"]
            with _half_done():
                while self._with.get(of) == self._log.review.can_undo is not None:
                    of = self._log.undo()["of"]
            return self._changes(_since(asked))

    def redo(self, asked: Asked) -> dict[str, Any]:
        """Do again what was undone last."""
        with self._lock:
            line = self._log.redo()
            with _half_done():
                while self._with.get(self._log.review.can_redo or "") == line["of"]:
                    self._log.redo()
            return self._changes(_since(asked))

    def split(self, asked: Asked) -> dict[str, Any]:
        """Parts of the images that look alike; nothing is done yet."""
        parts = asked.get("parts")
        if type(parts) is not int:
            raise UsageError("parts must be a whole number")
        return {"parts": self.similar.split(self._numbers(asked, least=2), parts)}

    def like(self, asked: Asked) -> dict[str, Any]:
        """Images that look like some, the most similar first, and from which similarity on they look alike."""
        images = self._numbers(asked)
        order, near = self.similar.like(images, len(self._category))
        with self._lock:
            own = np.flatnonzero(self._category == self._category[images[0]])
        return {"images": order, "similarity": near, "alike": self.similar.typical(own)}

    def near(self, asked: Asked) -> dict[str, Any]:
        """The ids of all categories, the one that looks most like these images first."""
        images, groups = self._numbers(asked), []
        with self._lock:
            ids, category = list(self._ids), self._category.copy()
        for i, id in enumerate(ids):
            examples = np.array(self._examples.get(id, ()), np.int64)
            groups.append(np.concatenate([np.flatnonzero(category == i), examples]))
        return {"categories": [ids[i] for i in self.similar.near(images, groups)]}

    def teach(self, asked: Asked) -> dict[str, Any]:
        """The next images whose answers teach most."""
        with self._lock:
            images = np.flatnonzero(self._status == STATUS.index(OPEN))
            category = self._category[images]
        said = joined_predictions(self._run.folder)
        lead = np.array([first - (second or 0) for first, second in zip(said["top1_p"], said["top2_p"], strict=True)])
        rows = self._run.manifest.training_rows[self._training[images]]
        scene = [self._run.manifest.groups[row] for row in rows]
        return {"images": self.similar.teach(images, category, lead[images], scene, NEXT)}

    def similarity(self) -> dict[str, Any]:
        """How near each image is to the mean of its category."""
        with self._lock:
            category = self._category.copy()
        padding = len(self._training) - len(category)  # examples belong to nothing here
        return {"similarity": self.similar.to_own(np.pad(category, (0, padding), constant_values=-1))[: len(category)]}

    def suggestions(self) -> dict[str, Any]:
        """Splits and merges that the features suggest now, the one that would put most images right first; how far each category is
        to be trusted, and which images are certain.
        """
        with self._lock:
            self._follow()
            version, category, review = self._version, self._category.copy(), self._log.review
            status = [review.categories[id].status if id in review.categories else REJECTED for id in self._ids]
            doubts = self._doubts()
        return {"version": version, "doubts": doubts, **self.similar.suggested(category, status)}

    def why(self, asked: Asked) -> dict[str, Any]:
        """What an image is like: the nearest labelled images, those of its category and of the runner-up."""
        (image,) = self._numbers(asked)[:1].tolist()
        with self._lock:
            category, labelled = self._category.copy(), np.arange(len(self._category), len(self._training))
        groups = {"labelled": labelled, "own": np.flatnonzero(category == category[image])}
        rival = asked.get("rival")
        if type(rival) is int and 0 <= rival < len(self._ids):
            examples = np.array(self._examples.get(self._ids[rival], ()), np.int64)
            groups["rival"] = np.concatenate([np.flatnonzero(category == rival), examples])
        return self.similar.nearest(image, groups, NEAREST)

    def _doubts(self) -> list[dict[str, Any]]:
        """The labels that look wrong and that nobody has looked at, the clearest first."""
        number = {str(self._run.manifest.training_paths[row]): i for i, row in enumerate(self._training)}
        looked_at = self._log.review.label
        return [
            {"image": number[one["file"]], **{name: one[name] for name in ("label", "neighbours", "certainty")}}
            for one in self.similar.doubts
            if one["file"] in number and one["file"] not in looked_at
        ]

    def _labelled(self, asked: Asked) -> list[str]:
        """The paths of the labelled images that a request is about."""
        first, images = len(self._category), asked.get("images")
        if not isinstance(images, list) or not all(type(i) is int and first <= i < len(self._training) for i in images):
            raise UsageError(f"images must be a list of numbers of labelled images, from {first} on")
        return [str(self._run.manifest.training_paths[self._training[i]]) for i in images]

    def close(self) -> None:
        """End the worker process."""
        self.similar.close()

    def _now(self) -> tuple[Ids, Ids]:
        """The category and the status of each image, by number."""
        review = self._log.review
        seen = set(self._ids)
        self._ids += [id for id in review.categories if id not in seen]  # a number keeps its meaning
        number = {id: i for i, id in enumerate(self._ids)}
        category = np.fromiter(map(number.__getitem__, review.category.values()), np.int64, len(review.images))
        of = np.array(
            [STATUS.index(review.categories[id].status) if id in review.categories else 0 for id in self._ids]
        )
        status = of[category]
        for i, image in enumerate(review.images) if review.mark else ():
            if image in review.mark and status[i] != STATUS.index(REJECTED):
                status[i] = STATUS.index(review.mark[image])
        return category, status

    def _follow(self) -> None:
        """Bring what the windows see to what the log says: also after an act of which only a part was saved."""
        version = self._log.review.version
        if version != self._version:
            category, status = self._now()
            self._changed[(category != self._category) | (status != self._status)] = version
            self._category, self._status, self._version = category, status, version

    def _changes(self, since: int) -> dict[str, Any]:
        self._follow()
        review = self._log.review
        similar = self.similar
        answer: dict[str, Any] = {"version": review.version, "features": similar.ready, "note": similar.note}
        answer["suggests"] = similar.suggests
        if since == review.version:
            return answer
        changed = np.flatnonzero(self._changed > since)
        present = [review.categories.get(id) for id in self._ids]
        return answer | {
            "images": changed.tolist(),
            "category": self._category[changed].tolist(),
            "status": self._status[changed].tolist(),
            "categories": [
                {"id": id, "name": id, "known": False, "gone": True}
                if one is None or one.merged_into is not None
                else {"id": id, "name": one.name, "known": one.known, "status": STATUS.index(one.status), "gone": False}
                for id, one in zip(self._ids, present, strict=True)
            ],
            "undo": review.can_undo is not None,
            "redo": review.can_redo is not None,
            "problems": list(review.problems.values())[:PROBLEMS_SHOWN],
            "behind": self._log.behind,
            "again": self._again(),
        }

    def _again(self) -> str:
        """A sentence on training again, where it would learn from the review; else empty."""
        new = [one for one in self._log.review.categories.values() if not one.known and one.merged_into is None]
        learned = sum(one.status == ACCEPTED or (one.category is None and one.images > 0) for one in new)
        if not learned:
            return ""
        folder = self._run.folder
        command = shlex.join(["debgcd", "train", "--from", str(folder), "-o", f"{folder}-2"])
        return f"{learned} of the new categories were named or split: training again would learn from that. {command}"

    def _paths(self, asked: Asked) -> list[str]:
        images = self._log.review.images
        return [images[i] for i in self._numbers(asked)]

    def _numbers(self, asked: Asked, least: int = 1) -> Ids:
        """The unlabelled images that a request is about."""
        images = asked.get("images")
        count = len(self._category)
        if not isinstance(images, list) or not all(type(i) is int and 0 <= i < count for i in images):
            raise UsageError(f"images must be a list of numbers below {count}")
        selected = np.unique(np.array(images, np.int64))
        if len(selected) < least:
            raise UsageError("no image is selected" if least == 1 else f"this needs at least {least} images")
        return selected


@contextmanager
def _half_done() -> Iterator[None]:
    """Say so if the disk fails after the first of two lines."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"only the first half of it was saved ({error}); undo takes that back") from error


def _since(asked: Asked) -> int:
    since = asked.get("since")
    return since if type(since) is int else -1
