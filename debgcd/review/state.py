"""The acts of a review, and what each changes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from debgcd.errors import DataError, UsageError, suggest
from debgcd.run.added import Batch
from debgcd.run.categories import Category

OPEN, ACCEPTED, REJECTED = "open", "accepted", "rejected"
STATUS = {"accept": ACCEPTED, "reject": REJECTED, "reopen": OPEN}
NEW = re.compile(r"new-[0-9]{2,9}")  # what an id of a discovered category looks like
LOOKS_NEW = re.compile(r"new-\d+")  # and what could be taken for one, in whatever script
AHEAD = 10_000  # how far above the largest id a new one may be
MOST_PARTS = 100  # of a split
NO_LABEL = ""  # in place of a label that was taken away
NAME_LENGTH = 200  # characters of a name, at most
Line = dict[str, Any]  # an act: act, at, id, and what it is about
Batches = Callable[[Line], Batch]
ADD = "add"
Paths = Callable[[Line], list[str]]  # the paths of the images that a request of the page numbers


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
class Change:
    """What an act changes, or what takes it back: values by key, None where there is none."""

    category: dict[str, str | None] = field(default_factory=dict)
    mark: dict[str, str | None] = field(default_factory=dict)
    label: dict[str, str | None] = field(default_factory=dict)
    categories: dict[str, ReviewedCategory | None] = field(default_factory=dict)


class State:
    """Each image is in one category; each category lives, or was merged into one that does.

    An image has the status of its category, unless it has a `mark` of its own; in a rejected category all are rejected.
    """

    def __init__(self, predicted: Mapping[str, str], categories: Sequence[Category], batches: Batches | None = None):
        """predicted: the category's id per image, in the order of predictions.csv. batches: reads the batch of an `add`."""
        self.category = dict(predicted)
        self.of_model = len(categories)  # how many the model has, without what was added
        self._batches = batches
        self.mark: dict[str, str] = {}
        self.label: dict[str, str] = {}  # what a labelled image is instead: a category, or NO_LABEL
        self.categories: dict[str, ReviewedCategory] = {}
        # the act that a category began with: its id keeps its meaning, also undone; "": no act may have it
        self.owner: dict[str, str] = {}
        self.largest = max((_number(one.id) for one in categories), default=0)
        count = Counter(predicted.values())
        for one in categories:
            images = count.pop(one.id, 0)
            self.categories[one.id] = ReviewedCategory(one.id, one.name, one.known, one.category, images=images)
        if count:
            raise DataError(f"predictions.csv has the category {next(iter(count))!r}, which categories.json has not")

    @property
    def images(self) -> list[str]:
        """All images, those of later batches last."""
        return list(self.category)

    def status(self, image: str) -> str:
        """Whether an image is open, accepted or rejected."""
        of = self.categories[self.category[image]].status
        return of if of == REJECTED else self.mark.get(image, of)

    def corrected(self) -> dict[str, str | None]:
        """The labelled images whose label a reviewer looked at, and the category that each is of now; None: it has no label."""
        found: dict[str, str | None] = {}
        for image, id in self.label.items():
            living = None if id == NO_LABEL else self.living(id)
            found[image] = None if living is None or living.status == REJECTED else living.id
        return found

    @property
    def reviewed(self) -> int:
        """How many images are not open any more."""
        of, mark = {id: one.status for id, one in self.categories.items()}, self.mark
        return sum(
            (of[id] if of[id] == REJECTED else mark.get(image, of[id])) != OPEN for image, id in self.category.items()
        )

    def members(self, category: str) -> list[str]:
        """The images of a category, in their order."""
        return [image for image in self.images if self.category[image] == category]

    def living(self, category: str) -> ReviewedCategory:
        """The category itself, or the one that it was merged into in the end."""
        successor = self.categories[category]
        while successor.merged_into is not None:
            successor = self.categories[successor.merged_into]
        return successor

    def next_id(self, further: int = 0) -> str:
        """An id that no act, undone or not, ever gave to a category; `further`: how many after the first such one."""
        number = self.largest + 1 + further
        width = max((len(id) - 4 for id in self.categories if _number(id)), default=2)
        return f"new-{number:0{width}d}"

    def note_id(self, id: str, act: str) -> None:
        """Note that an act would begin a category with this id."""
        number = _number(id)
        if id not in self.categories and id not in self.owner:
            near = number <= self.largest + AHEAD
            self.owner[id] = act if near else ""
            self.largest = max(self.largest, number) if near else self.largest

    def swap(self, change: Change) -> Change:
        """Make a change; returns the one that takes it back."""
        back = Change()
        for name in ("category", "mark", "label", "categories"):
            here, was, now = getattr(self, name), getattr(back, name), getattr(change, name)
            for key, value in now.items():
                was[key] = here.get(key)
                if value is None:
                    del here[key]
                else:
                    here[key] = value
        return back

    def completed(self, line: Line) -> Line:
        """The line of a new act as the log keeps it."""
        if line.get("act") == "move" and str(line.get("to")) not in self.categories:
            line["begins"] = True  # in a merged log, another may have taken the same id for something else
        return line

    def lines(self, asked: Line, paths: Paths) -> list[Line]:
        """The lines of an act that the page asks for, one or two, with paths instead of numbers and ids for new categories."""
        return _act(asked).lines(self, asked, paths)

    def change(self, line: Line) -> Change:
        """What an act would change; a UsageError if it does not apply."""
        change = Change()
        _act(line).apply(self, line, change)
        change.mark = {image: mark for image, mark in change.mark.items() if mark != self.mark.get(image)}
        moved = {image: to for image, to in change.category.items() if to != self.category.get(image)}
        count = Counter(to for to in moved.values() if to is not None)
        count.subtract(self.category[image] for image in moved if image in self.category)
        for id, more in count.items():
            one = change.categories.get(id) or self.categories[id]
            change.categories[id] = replace(one, images=one.images + more)
        change.category = dict(moved)
        return change

    def _name(self, line: Line, change: Change) -> None:
        one = self._alive(line.get("category"))
        name = proper_name(line.get("name"))
        status = one.status if one.known else ACCEPTED if name else OPEN  # the images of a known class stay to be seen
        for other in self.categories.values():
            taken = name == other.id or (name == other.name and other.merged_into is None)
            if taken and other.id != one.id:
                raise UsageError(
                    f"{other.id} is called {name!r} already; to make both one, merge {one.id} into {other.id}"
                )
        if LOOKS_NEW.fullmatch(name) and name != one.id:
            raise UsageError(f"{name!r} looks like an id, which never changes its meaning; choose another name")
        change.categories[one.id] = replace(one, name=name or one.id, status=status)

    def _merge(self, line: Line, change: Change) -> None:
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

    def _move(self, line: Line, change: Change) -> None:
        images, to = self._images(line), str(line.get("to"))
        if to in self.categories and not line.get("begins"):
            to = self._target(to).id
        else:
            change.categories[to] = self._new(to, line)
        change.category = dict.fromkeys(images, to)
        change.mark = dict.fromkeys(images, ACCEPTED)

    def _split(self, line: Line, change: Change) -> None:
        one, parts = self._target(line.get("category")), line.get("parts")
        if not isinstance(parts, dict) or not parts:
            raise UsageError("split: parts must have the images of each part by its id")
        _require_few(parts)
        for id, images in parts.items():
            change.categories[id] = self._new(id, line)
            for image in self._images({"act": "split", "images": images}):
                if self.category[image] != one.id:
                    raise UsageError(f"split: {image!r:.200} is in {self.category[image]}, not in {one.id}")
                if image in change.category:
                    raise UsageError(f"split: {image!r:.200} is in two parts")
                change.category[image] = id

    def _judge(self, line: Line, change: Change) -> None:
        kind, to = line["act"], STATUS[line["act"]]
        if ("images" in line) == ("categories" in line):
            raise UsageError(f"{kind} needs images or categories")
        if "images" in line:
            for image in self._images(line):
                if self.categories[self.category[image]].status == REJECTED:
                    raise UsageError(
                        f"{kind}: {image!r:.200} is in {self.category[image]}, which was rejected as a whole"
                    )
                of = self.categories[self.category[image]].status
                change.mark[image] = (
                    None if to == of == OPEN else to
                )  # open in an accepted category is a mark of its own
            return
        for id in _texts(line, "categories"):
            one = self._alive(id)
            if one.known and to == REJECTED:
                raise UsageError(f"{one.id} is a known class; reject or move its images instead")
            change.categories[id] = replace(one, status=to)
        ids = set(change.categories)  # what was left open in them is judged now, too
        change.mark = {image: None for image, mark in self.mark.items() if mark == OPEN and self.category[image] in ids}

    def _add(self, line: Line, change: Change) -> None:
        if self._batches is None:
            raise UsageError("there is no run to add images to")
        batch = self._batches(line)
        twice = next((image for image in batch.assigned if image in self.category), None)
        if twice is not None:
            raise UsageError(f"add: {twice!r:.200} is there already")
        if tuple(line.get("categories", ())) != batch.categories:
            raise UsageError(f"add: batch {batch.number} has other categories")
        for number, id in enumerate(batch.categories, batch.first):
            change.categories[id] = replace(self._new(id, line), category=number)
        for image, id in batch.assigned.items():
            if id not in self.categories and id not in change.categories:
                raise UsageError(f"add: there is no category {id}, which batch {batch.number} has")
            change.category[image] = self.living(id).id if id in self.categories else id

    def _label(self, line: Line, change: Change) -> None:
        to = line.get("to")
        to = self._target(to).id if to is not None else NO_LABEL
        for image in _texts(line, "images"):
            if image in self.category:
                raise UsageError(f"label: {image!r:.200} has no label; move it instead")
            change.label[image] = to

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
        if id in self.categories or self.owner.get(id, line.get("id")) != line.get("id"):
            raise UsageError(f"{id} is or was another category; take {self.next_id()}")
        if id not in self.owner and _number(id) > self.largest + AHEAD:
            raise UsageError(f"{id} is more than {AHEAD:,} above the largest id; take {self.next_id()}")
        return ReviewedCategory(id, id, known=False)


def _require_few(parts: Sized) -> None:
    if len(parts) > MOST_PARTS:
        raise UsageError(f"split: a category can be split into {MOST_PARTS} parts at once, not {len(parts)}")


def _copied(*keys: str) -> Callable[[State, Line, Paths], list[Line]]:
    """One line with these values of the request."""
    return lambda state, asked, paths: [{"act": asked["act"], **{key: asked.get(key) for key in keys}}]


def _name_lines(state: State, asked: Line, paths: Paths) -> list[Line]:
    """images: only these of the category are accepted with the name; the others stay open."""
    lines: list[Line] = [{"act": "name", "category": asked.get("category"), "name": asked.get("name")}]
    if "images" not in asked:
        return lines
    accepted = set(paths(asked))
    others = [image for image in state.members(str(asked.get("category"))) if image not in accepted]
    return lines + ([{"act": "reopen", "images": others}] if others else [])


def _move_lines(state: State, asked: Line, paths: Paths) -> list[Line]:
    to, name = asked.get("to") or state.next_id(), asked.get("name")
    lines = [{"act": "move", "images": paths(asked), "to": to}]
    return lines + ([{"act": "name", "category": to, "name": name}] if name else [])


def _split_lines(state: State, asked: Line, paths: Paths) -> list[Line]:
    given = asked.get("parts")
    lists = given if isinstance(given, list) else []
    _require_few(lists)
    parts = {state.next_id(further): paths({"images": images}) for further, images in enumerate(lists)}
    return [{"act": "split", "category": asked.get("category"), "parts": parts}]


def _judge_lines(state: State, asked: Line, paths: Paths) -> list[Line]:
    about = {"images": paths(asked)} if "images" in asked else {"categories": asked.get("categories")}
    return [{"act": asked["act"], **about}]


def _no_lines(state: State, asked: Line, paths: Paths) -> list[Line]:
    raise UsageError("images are added with debgcd add, not on the page")


@dataclass(frozen=True)
class Act:
    """A kind of act."""

    apply: Callable[[State, Line, Change], None]  # how it changes the state
    lines: Callable[[State, Line, Paths], list[Line]]  # what the log gets when the page asks for it
    begins: Callable[[Line], Any] = lambda line: None  # a list or mapping with the ids of categories that may begin


ACTS = {
    "name": Act(State._name, _name_lines),
    "merge": Act(State._merge, _copied("categories", "into")),
    "label": Act(State._label, _copied("images", "to")),
    "move": Act(State._move, _move_lines, lambda line: [line.get("to")]),
    "split": Act(State._split, _split_lines, lambda line: line.get("parts")),
    **dict.fromkeys(STATUS, Act(State._judge, _judge_lines)),
    ADD: Act(State._add, _no_lines, lambda line: line.get("categories")),
}


def _act(line: Line) -> Act:
    kind = line.get("act")
    if not isinstance(kind, str) or kind not in ACTS:
        raise UsageError(f"there is no act {kind!r:.40}{suggest(str(kind), [*ACTS, 'undo', 'redo'])}")
    return ACTS[kind]


def _texts(line: Line, key: str) -> list[str]:
    """A list of texts, without duplicates."""
    texts = line.get(key)
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise UsageError(f"{line['act']}: {key} must be a list of texts with at least one")
    return list(dict.fromkeys(texts))


def proper_name(name: Any) -> str:
    """A name as it is kept: composed Unicode, one line, no spaces around it."""
    if not isinstance(name, str):
        raise UsageError(f"a name must be text, not {name!r:.80}")
    name = unicodedata.normalize("NFC", name.strip())
    if len(name) > NAME_LENGTH:
        raise UsageError(f"a name may have {NAME_LENGTH} characters, not {len(name)}")
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        raise UsageError(f"a name must be one line of printable text, not {name!r:.80}")
    return name


def _number(id: str) -> int:
    """The number of an id such as new-07; 0 for any other text."""
    return int(id[4:]) if NEW.fullmatch(id) else 0
