"""What a reviewer made of a run: the log `decisions.jsonl`, and the state that follows from it.

A line of the log is one act. The log only grows: undo and redo are acts too. The state is a replay of the lines in their
order without those that are undone, so two logs can be merged line by line. An act that does not apply is kept and reported.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import unicodedata
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from debgcd.errors import DataError, UsageError
from debgcd.files import csv_field, lock, named_errors, parse_json, read_json, write_json
from debgcd.inference.categories import RESTORE, Category, read_categories
from debgcd.overlay import suggest

LOG = "decisions.jsonl"
OPEN, ACCEPTED, REJECTED = "open", "accepted", "rejected"
TURNS = ("undo", "redo")
STATUS = {"accept": ACCEPTED, "reject": REJECTED, "reopen": OPEN}
NEW = re.compile(r"new-\d{2,9}")  # what an id of a discovered category looks like
LONGEST = 200  # characters of a name
Line = dict[str, Any]  # an act: act, at, id, and what it is about


@dataclass(frozen=True)
class ReviewedCategory:
    """A category as the reviewer left it."""

    id: str
    name: str  # the id where it has none
    known: bool
    category: int | None = None  # its number in the model; None: it began in the review
    status: str = OPEN
    merged_into: str | None = None  # the category that lives on instead
    images: int = 0

    @property
    def named(self) -> bool:
        return self.name != self.id


@dataclass
class _Change:
    """What an act changes, or what takes it back: values by key, None where there is none."""

    category: dict[str, str] = field(default_factory=dict)
    mark: dict[str, str | None] = field(default_factory=dict)
    categories: dict[str, ReviewedCategory | None] = field(default_factory=dict)


class Review:
    """The state: each image is in one category; each category lives, or was merged into one that does.

    An image has the status of its category, unless it has a `mark` of its own; in a rejected category all are rejected.
    """

    def __init__(self, predicted: Mapping[str, str], categories: Sequence[Category]):
        """predicted: the category's id per image, in the order of predictions.csv."""
        self.images = list(predicted)
        self.version = 0  # number of lines taken
        self.problems: dict[str, str] = {}  # why an act does not apply, by its id
        self._base = dict(predicted), list(categories)
        self._seen: set[str] = set()
        self._acts: dict[str, Line] = {}  # all but undo and redo, in the order of the log
        self._place: dict[str, int] = {}  # of each in that order
        self._undone: set[str] = set()
        self._redo: list[str] = []  # undone since the last other act
        self._owner: dict[str, str] = {}  # the act that a category began with: its id keeps its meaning, also undone
        self._reset()

    def _reset(self) -> None:
        predicted, categories = self._base
        count = Counter(predicted.values())
        self.category = dict(predicted)
        self.mark: dict[str, str] = {}
        self.categories: dict[str, ReviewedCategory] = {}
        for found in categories:
            one = ReviewedCategory(
                found.id, found.name, found.known, category=found.category, images=count.pop(found.id, 0)
            )
            self.categories[found.id] = one
        if count:
            raise DataError(f"predictions.csv has the category {next(iter(count))!r}, which categories.json has not")
        # the acts that count, and what takes each back; None: it does not apply
        self._done: list[tuple[str, _Change | None]] = []

    @classmethod
    def read(cls, run: Path) -> Review:
        """The state of a finished run: what its model said, and what the log says of it."""
        predicted, categories, adopted = read_base(run)
        lines = read_log(run / LOG)[0] if (run / LOG).exists() else adopted
        return replay(predicted, categories, lines)

    def status(self, image: str) -> str:
        """Whether an image is open, accepted or rejected."""
        of = self.categories[self.category[image]].status
        return of if of == REJECTED else self.mark.get(image, of)

    @property
    def reviewed(self) -> int:
        """How many images are not open any more."""
        return sum(self.status(image) != OPEN for image in self.images)

    def members(self, category: str) -> list[str]:
        """The images of a category, in their order."""
        return [image for image in self.images if self.category[image] == category]

    def living(self, category: str) -> ReviewedCategory:
        """The category that this one is by now."""
        found = self.categories[category]
        while found.merged_into is not None:
            found = self.categories[found.merged_into]
        return found

    def next_id(self, after: Iterable[str] = ()) -> str:
        """An id that no act, undone or not, ever gave to a category; `after`: ids that are about to be given."""
        used = [id for id in (*self.categories, *self._owner, *after) if NEW.fullmatch(id)]
        width = max((len(id) - 4 for id in used), default=2)
        return f"new-{max((int(id[4:]) for id in used), default=0) + 1:0{width}d}"

    def find(self, text: str) -> str:
        """The id of a category that is called this, by its id or its name."""
        named = [one.id for one in self.categories.values() if one.name == text and one.merged_into is None]
        if text in self.categories or named:
            return text if text in self.categories else named[0]
        every = [name for one in self.categories.values() for name in {one.id, one.name}]
        raise UsageError(f"there is no category {text!r:.80}{suggest(text, every)}")

    @property
    def can_undo(self) -> str | None:
        """The act that undo would take back."""
        return next(
            (id for id, back in reversed(self._done) if back is not None and "adopted" not in self._acts[id]), None
        )

    @property
    def can_redo(self) -> str | None:
        """The act that redo would bring back."""
        return self._redo[-1] if self._redo else None

    def check(self, line: Line) -> None:
        """Raise a UsageError if this act does not apply to the present state."""
        self._turned(line) if line.get("act") in TURNS else self._change(line)

    def apply(self, line: Line) -> None:
        """Change the state by one act; a UsageError, and no change, if it does not apply."""
        self.check(line)
        self.take(line)

    def take(self, line: Line) -> bool:
        """The next line of the log. One that does not apply becomes a problem; one seen before is ignored: False."""
        id, kind = line["id"], line.get("act")
        if id in self._seen:
            return False
        self._seen.add(id)
        self.version += 1
        if kind in TURNS:
            try:
                self._turn(kind, self._turned(line))
            except UsageError as error:
                self.problems[id] = str(error)
            return True
        self._acts[id] = line
        self._place[id] = len(self._place)
        self._redo.clear()
        for begun in _begun(line):
            if begun not in self.categories:
                self._owner.setdefault(begun, id)
        self._do(id)
        return True

    def _do(self, id: str) -> None:
        try:
            self._done.append((id, self._swap(self._change(self._acts[id]))))
        except UsageError as error:
            self.problems[id] = str(error)
            self._done.append((id, None))

    def _turned(self, line: Line) -> str:
        """The act that an undo or redo is about."""
        of, undo = line.get("of"), line["act"] == "undo"
        if not isinstance(of, str) or of not in self._acts:
            raise UsageError(f"{line['act']}: there is no act {of!r:.40} before it")
        if undo == (of in self._undone):
            raise UsageError(f"{line['act']}: the act {of} {'is undone already' if undo else 'is not undone'}")
        return of

    def _turn(self, kind: str, of: str) -> None:
        last, back = self._done[-1] if self._done else ("", None)
        if kind == "undo":
            self._undone.add(of)
            self._redo.append(of)
            if last == of and back is not None:  # the usual case; any other is a replay
                self._swap(back)
                self._done.pop()
                return
        else:
            self._undone.remove(of)
            self._redo = [id for id in self._redo if id != of]
            if not self._done or self._place[last] < self._place[of]:
                self._do(of)
                return
        self._reset()
        for id in self._acts:
            self.problems.pop(id, None)
            if id not in self._undone:
                self._do(id)

    def _swap(self, change: _Change) -> _Change:
        """Make a change; returns the one that takes it back."""
        back = _Change()
        for name in ("category", "mark", "categories"):
            here, was, now = getattr(self, name), getattr(back, name), getattr(change, name)
            for key, value in now.items():
                was[key] = here.get(key)
                if value is None:
                    del here[key]
                else:
                    here[key] = value
        return back

    def _change(self, line: Line) -> _Change:
        kind = line.get("act")
        if not isinstance(kind, str) or kind not in ACTS:
            raise UsageError(f"there is no act {kind!r:.40}{suggest(str(kind), [*ACTS, *TURNS])}")
        change = _Change()
        ACTS[kind](self, line, change)
        change.mark = {image: mark for image, mark in change.mark.items() if mark != self.mark.get(image)}
        moved = {image: to for image, to in change.category.items() if to != self.category[image]}
        count = Counter(moved.values())
        count.subtract(self.category[image] for image in moved)
        for id, more in count.items():
            one = change.categories.get(id) or self.categories[id]
            change.categories[id] = replace(one, images=one.images + more)
        change.category = moved
        return change

    def _name(self, line: Line, change: _Change) -> None:
        one = self._alive(line.get("category"))
        name = proper_name(line.get("name"))
        status = one.status if one.known else ACCEPTED if name else OPEN  # the images of a known class stay to be seen
        for other in self.categories.values():
            taken = name == other.id or (name == other.name and other.merged_into is None)
            if taken and other.id != one.id:
                raise UsageError(
                    f"{other.id} is called {name!r} already; to make both one, merge {one.id} into {other.id}"
                )
        if NEW.fullmatch(name) and name != one.id:
            raise UsageError(f"{name!r} looks like an id, which never changes its meaning; choose another name")
        change.categories[one.id] = replace(one, name=name or one.id, status=status)

    def _merge(self, line: Line, change: _Change) -> None:
        into = self._target(line.get("into"))
        gone = [self._alive(id) for id in _texts(line, "categories") if id != into.id]
        if not gone:
            raise UsageError(f"merge needs a category besides {into.id}")
        for one in gone:
            if one.known:
                raise UsageError(f"{one.id} is a known class and lives on; merge {into.id} into it instead")
            change.categories[one.id] = replace(one, merged_into=into.id)
        ids = {one.id for one in gone}
        change.category = {image: into.id for image, id in self.category.items() if id in ids}
        if into.known:  # its other images have not been looked at
            change.mark = {image: ACCEPTED for image in change.category if self.mark.get(image) != REJECTED}
            return
        name = next((one.name for one in (into, *gone) if one.named), into.name)
        status = ACCEPTED if ACCEPTED in {one.status for one in (into, *gone)} else OPEN
        change.categories[into.id] = replace(into, name=name, status=status)

    def _move(self, line: Line, change: _Change) -> None:
        images, to = self._images(line), str(line.get("to"))
        if to in self.categories and not line.get("begins"):
            to = self._target(to).id
        else:
            change.categories[to] = self._new(to, line)
        change.category = dict.fromkeys(images, to)
        change.mark = dict.fromkeys(images, ACCEPTED)

    def _split(self, line: Line, change: _Change) -> None:
        one, parts = self._target(line.get("category")), line.get("parts")
        if not isinstance(parts, dict) or not parts:
            raise UsageError("split: parts must have the images of each part by its id")
        for id, images in parts.items():
            change.categories[id] = self._new(id, line)
            for image in self._images({"act": "split", "images": images}):
                if self.category[image] != one.id:
                    raise UsageError(f"split: {image!r:.200} is in {self.category[image]}, not in {one.id}")
                if image in change.category:
                    raise UsageError(f"split: {image!r:.200} is in two parts")
                change.category[image] = id

    def _judge(self, line: Line, change: _Change) -> None:
        kind, to = line["act"], STATUS[line["act"]]
        if ("images" in line) == ("categories" in line):
            raise UsageError(f"{kind} needs images or categories")
        if "images" in line:
            for image in self._images(line):
                if self.categories[self.category[image]].status == REJECTED:
                    raise UsageError(
                        f"{kind}: {image!r:.200} is in {self.category[image]}, which was rejected as a whole"
                    )
                change.mark[image] = None if to == OPEN else to
            return
        for id in _texts(line, "categories"):
            one = self._alive(id)
            if one.known and to == REJECTED:
                raise UsageError(f"{one.id} is a known class; reject or move its images instead")
            change.categories[id] = replace(one, status=to)

    def _images(self, line: Line) -> list[str]:
        images = _texts(line, "images")
        for image in images:
            if image not in self.category:
                raise UsageError(f"{line['act']}: there is no image {image!r:.200} in predictions.csv")
        return images

    def _alive(self, id: Any) -> ReviewedCategory:
        if not isinstance(id, str) or id not in self.categories:
            raise UsageError(f"there is no category {id!r:.80}{suggest(str(id), list(self.categories))}")
        one = self.categories[id]
        if one.merged_into is not None:
            raise UsageError(f"{id} was merged into {one.merged_into}")
        return one

    def _target(self, id: Any) -> ReviewedCategory:
        one = self._alive(id)
        if one.status == REJECTED:
            raise UsageError(f"{id} was rejected; accept it or open it again first")
        return one

    def _new(self, id: Any, line: Line) -> ReviewedCategory:
        if not isinstance(id, str) or not NEW.fullmatch(id):
            raise UsageError(f"a new category needs an id such as {self.next_id()}, not {id!r:.80}")
        if id in self.categories or self._owner.get(id, line.get("id")) != line.get("id"):
            raise UsageError(f"{id} is or was another category; take {self.next_id()}")
        return ReviewedCategory(id, id, known=False)


ACTS: dict[str, Callable[[Review, Line, _Change], None]] = {
    "name": Review._name,
    "merge": Review._merge,
    "move": Review._move,
    "split": Review._split,
    **dict.fromkeys(STATUS, Review._judge),
}


def _begun(line: Line) -> list[str]:
    """The ids that may begin with an act."""
    ids = line.get("parts") if line.get("act") == "split" else [line.get("to")] if line.get("act") == "move" else []
    return [id for id in ids if isinstance(id, str)] if isinstance(ids, dict | list) else []


def _texts(line: Line, key: str) -> list[str]:
    """A list of texts, each once."""
    found = line.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise UsageError(f"{line['act']}: {key} must be a list of texts with at least one")
    return list(dict.fromkeys(found))


def proper_name(name: Any) -> str:
    """A name as it is kept: composed Unicode, one line, no spaces around it."""
    if not isinstance(name, str):
        raise UsageError(f"a name must be text, not {name!r:.80}")
    name = unicodedata.normalize("NFC", name.strip())
    if len(name) > LONGEST:
        raise UsageError(f"a name may have {LONGEST} characters, not {len(name)}")
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        raise UsageError(f"a name must be one line of printable text, not {name!r:.80}")
    return name


def replay(predicted: Mapping[str, str], categories: Sequence[Category], lines: Iterable[Line]) -> Review:
    """The state after these lines; predicted: as for `Review`."""
    review = Review(predicted, categories)
    for line in lines:
        review.take(line)
    return review


def read_base(run: Path) -> tuple[dict[str, str], list[Category], list[Line]]:
    """What the model of a finished run said: the category's id per image, and the categories by their ids.

    Last, as acts, what categories.json says beyond that where there is no log: names from an earlier run, or given by hand.
    """
    model = run / "model"
    try:
        known = read_json(model / "config.json")["known"]
        with open(run / "predictions.csv", encoding="utf-8", newline="") as file:
            predicted = {csv_field(row["path"]): csv_field(row["id"]) for row in csv.DictReader(file)}
    except FileNotFoundError as error:
        raise UsageError(f"{run} is not a finished run: it has no {Path(error.filename).name}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{run}: what its model said cannot be read ({error}); {RESTORE}") from error
    found = read_categories(model, known)
    ids = {one.id for one in found}
    acts: list[Line] = []
    for one in found:
        if one.merged_into in ids:
            acts.append({"act": "merge", "categories": [one.id], "into": one.merged_into})
        elif one.name != one.id and one.merged_into is None:
            acts.append({"act": "name", "category": one.id, "name": one.name})
    for act in acts:  # the same lines in every copy of the run, and not to be undone by the way
        act |= {"adopted": True, "at": "", "id": hashlib.sha256(json.dumps(act).encode()).hexdigest()[:12]}
    return predicted, [replace(one, name=one.id, merged_into=None) for one in found], acts


def read_log(path: Path) -> tuple[list[Line], int]:
    """The lines of a log, none where it is missing, and where the last complete one ends, in bytes.

    A last line that was cut off, because the process or the machine stopped, was never confirmed and is ignored.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
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

    def __init__(self, run: Path):
        self.run = run
        self._stack = ExitStack()

    def __enter__(self) -> Log:
        with ExitStack() as stack:
            if not self.run.is_dir():
                raise UsageError(f"there is no run directory {self.run}")
            stack.enter_context(lock(self.run, "reviewing the run"))
            predicted, categories, adopted = read_base(self.run)
            there = (self.run / LOG).exists()
            lines, self._end = read_log(self.run / LOG)
            self.review = replay(predicted, categories, lines)
            with named_errors(self.run / LOG):
                self._file = stack.enter_context(open(self.run / LOG, "a+b", buffering=0))
                self._file.truncate(self._end)
                self._file.seek(max(0, self._end - 1))
                if self._file.read(1) not in (b"", b"\n"):  # edited by hand
                    self._end += self._file.write(b"\n") or 0
                _flush_folder(self.run)
            for line in [] if there else adopted:
                self._append(line)
            self._carry()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def act(self, values: Mapping[str, Any]) -> Line:
        """Save an act and change the state; returns its line. A UsageError, and nothing saved, if it does not apply."""
        line = {**values, "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "id": uuid.uuid4().hex[:12]}
        if line.get("act") == "move" and str(line.get("to")) not in self.review.categories:
            line["begins"] = True  # in a merged log, another may have taken the same id for something else
        self._append(line)
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

    def add(self, other: Path) -> list[Line]:
        """Append the lines of another log that this one does not have; returns them. See `Review.problems`."""
        if not other.is_file():
            raise UsageError(f"there is no log {other}")
        added = [line for line in read_log(other)[0] if self._append(line, checked=False)]
        self._carry()
        return added

    def _append(self, line: Line, checked: bool = True) -> bool:
        if line["id"] in self.review._seen:
            return False
        if checked:
            self.review.check(line)
        self._require_own()
        try:
            content = (json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"{line.get('act')}: its text is not valid Unicode") from error
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
        self.review.take(line)
        return True

    def _require_own(self) -> None:
        """Refuse to write where somebody has edited or replaced the file since it was read."""
        here = os.fstat(self._file.fileno())
        try:
            there = os.stat(self.run / LOG)
        except FileNotFoundError:
            there = None
        if there is None or not os.path.samestat(here, there) or there.st_size != self._end:
            raise UsageError(f"{self.run / LOG} was changed by another program; open the review again")

    def _carry(self) -> None:
        _write_outcome(self.run, self.review)


def carry(run: Path) -> None:
    """Bring model/categories.json to what the log says, which may have been edited by hand or merged."""
    if not (run / LOG).exists():
        return
    with suppress(UsageError), lock(run, "reviewing the run"):  # who holds it does this after each act
        _write_outcome(run, Review.read(run))


def _write_outcome(run: Path, review: Review) -> None:
    """Names and merged categories into model/categories.json: the model is used without its run, too."""
    place = run / "model" / "categories.json"
    entries = []
    for one in review.categories.values():
        if one.category is not None:
            living = review.living(one.id)
            merged = None if living is one else living.id
            entries.append(Category(one.category, one.id, living.name, one.known, merged).to_json())
    if read_json(place) != entries:
        with suppress(PermissionError):  # a run that others may only read
            write_json(place, entries)


def _flush_folder(folder: Path) -> None:
    """Make sure that a new file in it is found after a power failure."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
