"""What a reviewer made of a run: the log `decisions.jsonl` on disk.

A line is one act. The log only grows: undo and redo are acts too. A line is flushed to disk before the act counts; then it is
saved, whatever else fails. What it says of the model's categories is carried in model/categories.json, because a model is used
without its run, too; where that cannot be written now, the next act or the next command that reads the run does it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from debgcd.errors import DataError, UsageError
from debgcd.review.replay import Review, replay
from debgcd.review.state import REJECTED, Line
from debgcd.run.added import ADDED, Batch, read_batch
from debgcd.run.categories import RESTORE, Category, own_categories, read_categories
from debgcd.run.predictions import COLUMNS, Prediction, Table, read_predictions, rows_of
from debgcd.system.files import lock, named_errors, parse_json, read_json, readable, write_json

LOG = "decisions.jsonl"


def read_review(run: Path) -> Review:
    """The state of a finished run: what its model said, and what the log says of it."""
    predicted, categories, adopted = read_base(run)
    lines = read_log(run / LOG)[0] if (run / LOG).exists() else adopted
    return replay(predicted, categories, lines, partial(read_batch, run))


def added_batches(run: Path) -> list[Batch]:
    """The batches of images that were added to a finished run and not taken back, in their order."""
    if not (run / ADDED).is_dir():
        return []
    review = read_review(run)
    return [read_batch(run, line) for line in review.added if line["id"] not in review.problems]


def joined_predictions(run: Path, columns: Collection[str] = tuple(COLUMNS)) -> Table:
    """What the model of a finished run said of its images, and of those of each batch when that came."""
    table = read_predictions(run / "predictions.csv", columns)
    for batch in added_batches(run):
        more = batch.predictions(columns)
        table = {name: [*values, *more[name]] for name, values in table.items()}
    return table


def read_base(run: Path) -> tuple[dict[str, str], list[Category], list[Line]]:
    """What the model of a finished run said: the category's id per image, and the categories by their ids.

    Last, as acts, what categories.json says beyond that where there is no log: names from an earlier run, or given by hand.
    """
    model = run / "model"
    try:
        with readable(f"{run}: what its model said", RESTORE, missing=False):
            known = read_json(model / "config.json")["known"]
            said = read_predictions(run / "predictions.csv", ("path", "id"))
    except FileNotFoundError as error:
        raise UsageError(f"{run} is not a finished run: it has no {Path(error.filename).name}") from error
    own = own_categories(read_categories(model, known))  # the others are in the log
    return dict(zip(said["path"], said["id"], strict=True)), *_without_review(own)


def reviewed_predictions(run: Path) -> tuple[list[Prediction], list[Category]]:
    """The rows of a finished run's predictions.csv and its categories, both as a reviewer left them.

    A row has two more columns: `review`, which is open, accepted or rejected, and `added`, the batch that the image came with. The file
    itself stays what the model said.
    """
    review = read_review(run)
    categories = outcome(review)
    by_id = {category.id: category for category in categories}
    rows = rows_of(joined_predictions(run))
    came = {image: batch.number for batch in added_batches(run) for image in batch.assigned}
    for row in rows:
        category = by_id[review.category[row["path"]]]
        row |= {"category": category.category, "id": category.id, "name": category.name, "known": category.known}
        row |= {"review": review.status(row["path"]), "added": came.get(row["path"])}
    return rows, categories


def _without_review(categories: Sequence[Category]) -> tuple[list[Category], list[Line]]:
    """The categories by their ids, and what was said of them beyond that, as acts."""
    ids = {one.id for one in categories}
    acts: list[Line] = []
    for one in categories:
        if one.merged_into in ids:
            acts.append({"act": "merge", "categories": [one.id], "into": one.merged_into})
        elif one.name != one.id and one.merged_into is None:
            acts.append({"act": "name", "category": one.id, "name": one.name})
    for act in acts:  # the same lines in every copy of the run, and not to be undone by the way
        act |= {"adopted": True, "at": "", "id": hashlib.sha256(json.dumps(act).encode()).hexdigest()[:12]}
    return [replace(one, name=one.id, merged_into=None) for one in categories], acts


def read_log(path: Path) -> tuple[list[Line], int]:
    """The lines of a log, none where it is missing, and where the last complete one ends, in bytes.

    A last line that was cut off, because the process or the machine stopped, was never confirmed and is ignored.
    """
    with readable(path, "check its permissions"):
        if not path.exists():
            return [], 0
        content = path.read_bytes()
    found, end = [], 0
    rows = content.split(b"\n")
    for number, raw in enumerate(rows, 1):
        if raw.strip():
            try:
                found.append(_parsed(raw))
            except ValueError as error:
                if number == len(rows):
                    break
                raise DataError(
                    f"{path}, line {number}, is not an act ({error}); correct the line or delete it"
                ) from error
        end = min(end + len(raw) + 1, len(content))
    return found, end


def _parsed(raw: bytes) -> Line:
    line = parse_json(raw.decode("utf-8"))
    if not isinstance(line, dict) or not isinstance(line.get("id"), str) or not line["id"]:
        raise ValueError("it must be a JSON object with an id")
    return line


class Log:
    """The log of a run, held by one process: each act is on disk before it counts.

    >>> with Log(run) as log:                                                    # doctest: +SKIP
    ...     log.act({"act": "name", "category": "new-03", "name": "lynx"})
    """

    def __init__(self, run: Path, batches: bool = True):
        """batches: False to open it also if what was added is damaged; what was said of these images does not apply then."""
        self.run = run
        self._batches = partial(read_batch, run) if batches else None
        self._stack = ExitStack()
        self._said: list[Category] = []  # what categories.json says already
        self.behind = ""  # why categories.json does not say what the log does; empty where it does

    def __enter__(self) -> Log:
        with ExitStack() as stack:
            if not self.run.is_dir():
                raise UsageError(f"there is no run directory {self.run}")
            stack.enter_context(lock(self.run, "reviewing the run or adding to it"))
            predicted, categories, adopted = read_base(self.run)
            there = (self.run / LOG).exists()
            lines, self._end = read_log(self.run / LOG)
            self._digest = hashlib.sha256(b"")
            self.review = replay(predicted, categories, lines, self._batches)
            with named_errors(self.run / LOG):
                self._file = stack.enter_context(open(self.run / LOG, "a+b", buffering=0))
                self._file.truncate(self._end)
                self._file.seek(max(0, self._end - 1))
                if self._file.read(1) not in (b"", b"\n"):  # edited by hand
                    self._end += self._file.write(b"\n") or 0
                self._file.seek(0)
                self._digest.update(self._file.read())
                _flush_folder(self.run)
            if not there:
                self._append(adopted)
                self.review.extend(adopted)
            self._carry()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def act(self, values: Mapping[str, Any]) -> Line:
        """Save an act and change the state; returns its line. A UsageError, and nothing saved, if it does not apply."""
        stamp = {"at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "id": uuid.uuid4().hex[:12]}
        line = self.review.completed({**values, **stamp})
        change = self.review.check(line)
        self._append([line])
        self.review.take(line, change)
        self._carry()
        return line

    def undo(self) -> Line:
        """Take the last act back."""
        if self.review.can_undo is None:
            raise UsageError("there is nothing to undo")
        return self.act({"act": "undo", "of": self.review.can_undo})

    def redo(self) -> Line:
        """Bring the act back that was undone last."""
        if self.review.can_redo is None:
            raise UsageError("there is nothing to redo")
        return self.act({"act": "redo", "of": self.review.can_redo})

    def trial(self) -> Review:
        """The same state, to try acts on that are not saved yet."""
        predicted, categories, _ = read_base(self.run)
        return replay(predicted, categories, read_log(self.run / LOG)[0], self._batches)

    def add(self, other: Path) -> list[Line]:
        """Append the lines of another log that this one does not have; returns them. See `Review.problems`."""
        if not other.is_file():
            raise UsageError(f"there is no log {other}")
        lines = {line["id"]: line for line in reversed(read_log(other)[0]) if line["id"] not in self.review}
        added = list(reversed(lines.values()))  # of two with one id the first counts
        self._append(added)
        self.review.extend(added)
        self._carry()
        return added

    def _append(self, lines: Sequence[Line]) -> None:
        """Write lines and flush them to disk: all or none."""
        if not lines:
            return
        self._require_own()
        try:
            content = b"".join(
                (json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8") for line in lines
            )
        except UnicodeEncodeError as error:
            raise UsageError(f"{lines[0].get('act')}: its text is not valid Unicode") from error
        with named_errors(self.run / LOG, len(content)):
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[self._file.write(rest) :]
                os.fsync(self._file.fileno())
            except BaseException:
                with suppress(OSError):
                    self._file.truncate(self._end)  # half an act would be in the way of the next
                raise
        self._end += len(content)
        self._digest.update(content)

    def _require_own(self) -> None:
        """Refuse to write where somebody has edited or replaced the file since it was read."""
        try:
            with open(self.run / LOG, "rb") as file:
                same = os.path.samestat(os.fstat(self._file.fileno()), os.fstat(file.fileno()))
                same = same and hashlib.file_digest(file, "sha256").digest() == self._digest.digest()
        except FileNotFoundError:
            same = False
        if not same:
            raise UsageError(f"{self.run / LOG} was changed by another program; open the review again")

    def _carry(self) -> None:
        said = outcome(self.review)
        if said == self._said:
            return
        try:
            _write_outcome(self.run, self.review)
        except (OSError, ValueError) as error:  # the act is saved all the same
            self.behind = (
                f"{LOG} has every act, but model/categories.json is behind ({error}); the next act brings it up"
            )
            return
        self._said, self.behind = said, ""


def outcome(review: Review) -> list[Category]:
    """All categories as the reviewer left them: the model's in their order, those added since, then those that began in the review."""
    found = []
    every = review.categories.values()
    in_order = sorted(every, key=lambda one: len(every) if one.category is None else one.category)
    for number, one in enumerate(in_order):
        lives = review.living(one.id)
        merged = None if lives is one else lives.id
        found.append(Category(number, one.id, lives.name, one.known, merged, begun=one.category is None))
    return found


def divided(run: Path) -> dict[str, dict[str, list[str]]]:
    """The categories of a finished run's model that a reviewer split, or out of which images were moved: their images by where they are now.

    category of the model -> category after the review -> images. Images that were rejected one by one are in none.
    """
    review = read_review(run)
    predicted = read_base(run)[0] | {image: id for batch in added_batches(run) for image, id in batch.assigned.items()}
    found: dict[str, dict[str, list[str]]] = {}
    for image, id in predicted.items():
        if review.mark.get(image) != REJECTED:
            found.setdefault(id, {}).setdefault(review.category[image], []).append(image)
    return {id: parts for id, parts in found.items() if set(parts) != {review.living(id).id}}


def changed(categories: Sequence[Category], values: Mapping[str, Any]) -> list[Category]:
    """The categories of a model without its run after one more act."""
    base, lines = _without_review(categories)
    review = replay({}, base, lines)
    review.apply({**values, "id": "now"})
    return [replace(now, begun=was.begun) for was, now in zip(categories, outcome(review), strict=True)]


def carry(run: Path) -> None:
    """Bring model/categories.json to what the log says, which may have been edited by hand or merged."""
    if not (run / LOG).exists():
        return
    review = read_review(run)
    try:
        with lock(run, "reviewing the run"):
            _write_outcome(run, review)
    except UsageError:
        return  # who holds the lock does this after each act
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise  # a run that others may only read


def _write_outcome(run: Path, review: Review) -> None:
    """Names, merged categories and those that began in the review into model/categories.json: the model is used without its run, too.

    It is the model before any batch was added.
    """
    place = run / "model" / "categories.json"
    kept = [one for one in outcome(review) if one.begun or one.category < review.of_model]
    entries = [replace(one, category=number).to_json() for number, one in enumerate(kept)]
    if read_json(place) != entries:
        write_json(place, entries)


def _flush_folder(folder: Path) -> None:
    """Make sure that a new file in it is found after a power failure."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
