"""The acts of a review, what each changes, and the state that a log of them leads to.

The state is a replay of the acts in their order, without those that are undone, so two logs can be merged line by line. An
act that does not apply is kept and reported.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from debgcd.errors import DataError, UsageError, suggest
from debgcd.run.categories import Category

OPEN, ACCEPTED, REJECTED = "open", "accepted", "rejected"
STATUS = {"accept": ACCEPTED, "reject": REJECTED, "reopen": OPEN}
NEW = re.compile(r"new-[0-9]{2,9}")  # what an id of a discovered category looks like
LOOKS_NEW = re.compile(r"new-\d+")  # and what could be taken for one, in whatever script
AHEAD = 10_000  # how far above the largest id a new one may be
MOST_PARTS = 100  # of a split
NAME_LENGTH = 200  # characters of a name, at most
Line = dict[str, Any]  # an act: act, at, id, and what it is about
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

    category: dict[str, str] = field(default_factory=dict)
    mark: dict[str, str | None] = field(default_factory=dict)
    categories: dict[str, ReviewedCategory | None] = field(default_factory=dict)


class State:
    """Each image is in one category; each category lives, or was merged into one that does.

    An image has the status of its category, unless it has a `mark` of its own; in a rejected category all are rejected.
    """

    def __init__(self, predicted: Mapping[str, str], categories: Sequence[Category]):
        """predicted: the category's id per image, in the order of predictions.csv."""
        self.images = list(predicted)
        self.category = dict(predicted)
        self.mark: dict[str, str] = {}
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

    def status(self, image: str) -> str:
        """Whether an image is open, accepted or rejected."""
        of = self.categories[self.category[image]].status
        return of if of == REJECTED else self.mark.get(image, of)

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

    def own(self, id: str, act: str) -> None:
        """Note that an act would begin a category with this id."""
        number = _number(id)
        if id not in self.categories and id not in self.owner:
            near = number <= self.largest + AHEAD
            self.owner[id] = act if near else ""
            self.largest = max(self.largest, number) if near else self.largest

    def swap(self, change: Change) -> Change:
        """Make a change; returns the one that takes it back."""
        back = Change()
        for name in ("category", "mark", "categories"):
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
        moved = {image: to for image, to in change.category.items() if to != self.category[image]}
        count = Counter(moved.values())
        count.subtract(self.category[image] for image in moved)
        for id, more in count.items():
            one = change.categories.get(id) or self.categories[id]
            change.categories[id] = replace(one, images=one.images + more)
        change.category = moved
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


@dataclass(frozen=True)
class Act:
    """A kind of act."""

    apply: Callable[[State, Line, Change], None]  # how it changes the state
    lines: Callable[[State, Line, Paths], list[Line]]  # what the log gets when the page asks for it
    begins: Callable[[Line], Any] = lambda line: None  # a list or mapping with the ids of categories that may begin


ACTS = {
    "name": Act(State._name, _name_lines),
    "merge": Act(State._merge, _copied("categories", "into")),
    "move": Act(State._move, _move_lines, lambda line: [line.get("to")]),
    "split": Act(State._split, _split_lines, lambda line: line.get("parts")),
    **dict.fromkeys(STATUS, Act(State._judge, _judge_lines)),
}


def _act(line: Line) -> Act:
    kind = line.get("act")
    if not isinstance(kind, str) or kind not in ACTS:
        raise UsageError(f"there is no act {kind!r:.40}{suggest(str(kind), [*ACTS, *TURNS])}")
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


TURNS = ("undo", "redo")


class Review(State):
    """The state after some lines of a log."""

    def __init__(self, predicted: Mapping[str, str], categories: Sequence[Category]):
        """predicted: the category's id per image, in the order of predictions.csv."""
        super().__init__(predicted, categories)
        self.version = 0  # number of lines taken
        self.problems: dict[str, str] = {}  # why an act does not apply, by its id
        self._seen: set[str] = set()
        self._acts: dict[str, Line] = {}  # all but undo and redo, in the order of the log
        self._place: dict[str, int] = {}  # of each in that order
        # the acts that count, and what takes each back; None: it does not apply
        self._done: list[tuple[str, Change | None]] = []
        self._undone: set[str] = set()
        self._redo: dict[str, None] = {}  # undone since the last other act, in this order

    def __contains__(self, id: str) -> bool:
        """Whether a line with this id was taken."""
        return id in self._seen

    @property
    def can_undo(self) -> str | None:
        """The act that undo would take back."""
        return next(
            (id for id, back in reversed(self._done) if back is not None and "adopted" not in self._acts[id]), None
        )

    @property
    def can_redo(self) -> str | None:
        """The act that redo would bring back."""
        return next(reversed(self._redo), None)

    def check(self, line: Line) -> Change | None:
        """What an act would change, None for undo and redo; a UsageError if it does not apply to the present state."""
        if line.get("act") not in TURNS:
            return self.change(line)
        self._turned(line)
        return None

    def apply(self, line: Line) -> None:
        """Change the state by one act; a UsageError, and no change, if it does not apply."""
        self.take(line, self.check(line))

    def take(self, line: Line, change: Change | None = None) -> bool:
        """The next line of the log. One that does not apply becomes a problem; one seen before is ignored: False.

        change: what `check` said.
        """
        if not self._note(line):
            return False
        if line.get("act") not in TURNS:
            self._do(line["id"], change)
        elif line["id"] not in self.problems:
            self._turn(line["act"], line["of"])
        return True

    def extend(self, lines: Iterable[Line]) -> None:
        """The next lines of the log, as `take` one by one; the state is computed once, at the end."""
        for line in lines:
            self._note(line)
        self._replay()

    def _note(self, line: Line) -> bool:
        """Remember a line and which acts count after it, without a change of the state; False if it was seen before."""
        id, kind = line["id"], line.get("act")
        if id in self._seen:
            return False
        self._seen.add(id)
        self.version += 1
        if kind not in TURNS:
            self._acts[id] = line
            self._place[id] = len(self._place)
            self._redo.clear()
            for begun in _begun(line):
                self.own(begun, id)
            return True
        try:
            of = self._turned(line)
        except UsageError as error:
            self.problems[id] = str(error)
            return True
        if kind == "undo":
            self._undone.add(of)
            self._redo[of] = None
        else:
            self._undone.remove(of)
            self._redo.pop(of, None)
        return True

    def _do(self, id: str, change: Change | None = None) -> None:
        try:
            self._done.append((id, self.swap(change or self.change(self._acts[id]))))
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
        """Change the state after an undo or redo was noted."""
        last, back = self._done[-1] if self._done else ("", None)
        if kind == "undo" and last == of and back is not None:  # the usual case; any other is a replay
            self.swap(back)
            self._done.pop()
        elif kind == "redo" and (not self._done or self._place[last] < self._place[of]):
            self._do(of)
        else:
            self._replay()

    def _replay(self) -> None:
        """All acts that count, from the beginning."""
        for _, back in reversed(self._done):
            if back is not None:
                self.swap(back)
        self._done.clear()
        for id in self._acts:
            self.problems.pop(id, None)
            if id not in self._undone:
                self._do(id)


def _begun(line: Line) -> list[str]:
    """The ids that may begin with an act."""
    kind = line.get("act")
    ids = ACTS[kind].begins(line) if isinstance(kind, str) and kind in ACTS else None
    return [id for id in ids if isinstance(id, str)] if isinstance(ids, dict | list) else []


def replay(predicted: Mapping[str, str], categories: Sequence[Category], lines: Iterable[Line]) -> Review:
    """The state after these lines; predicted: as for `Review`."""
    review = Review(predicted, categories)
    review.extend(lines)
    return review


def _number(id: str) -> int:
    """The number of an id such as new-07; 0 for any other text."""
    return int(id[4:]) if NEW.fullmatch(id) else 0
