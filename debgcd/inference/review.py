"""The state of a review is a replay of its acts, in their order, without those that are undone.

So two logs can be merged line by line. An act that does not apply is kept and reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from debgcd.errors import UsageError
from debgcd.inference.acts import Change, Line, State
from debgcd.inference.categories import Category

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
        self._redo: list[str] = []  # undone since the last other act

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
        return self._redo[-1] if self._redo else None

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
                self.owner.setdefault(begun, id)
        self._do(id, change)
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
        last, back = self._done[-1] if self._done else ("", None)
        if kind == "undo":
            self._undone.add(of)
            self._redo.append(of)
            if last == of and back is not None:  # the usual case; any other is a replay
                self.swap(back)
                self._done.pop()
                return
        else:
            self._undone.remove(of)
            self._redo = [id for id in self._redo if id != of]
            if not self._done or self._place[last] < self._place[of]:
                self._do(of)
                return
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
    ids = line.get("parts") if line.get("act") == "split" else [line.get("to")] if line.get("act") == "move" else []
    return [id for id in ids if isinstance(id, str)] if isinstance(ids, dict | list) else []


def replay(predicted: Mapping[str, str], categories: Sequence[Category], lines: Iterable[Line]) -> Review:
    """The state after these lines; predicted: as for `Review`."""
    review = Review(predicted, categories)
    for line in lines:
        review.take(line)
    return review
