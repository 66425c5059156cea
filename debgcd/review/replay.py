"""The state that the log of a review leads to.

It is a replay of the acts in their order, without those that are undone, so two logs can be merged line by line. An act that does not
apply is kept and reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from debgcd.errors import UsageError
from debgcd.review.state import ACTS, ADD, Batches, Change, Line, State
from debgcd.run.categories import Category

TURNS = ("undo", "redo")


class Review(State):
    """The state after some lines of a log."""

    def __init__(self, predicted: Mapping[str, str], categories: Sequence[Category], batches: Batches | None = None):
        """See `State`."""
        super().__init__(predicted, categories, batches)
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
        """The act that undo would take back. Batches are taken back by `debgcd add --undo` alone."""
        return next((id for id, back in reversed(self._done) if back is not None and self._turns(id)), None)

    @property
    def can_redo(self) -> str | None:
        """The act that redo would bring back."""
        return next((id for id in reversed(self._redo) if self._turns(id)), None)

    def _turns(self, id: str) -> bool:
        """Whether an act is one that undo and redo go through."""
        return "adopted" not in self._acts[id] and self._acts[id].get("act") != ADD

    @property
    def added(self) -> list[Line]:
        """The lines of the batches that were not taken back, in their order."""
        return [act for id, act in self._acts.items() if act.get("act") == ADD and id not in self._undone]

    @property
    def batches(self) -> int:
        """How many batches the log has, with those that were taken back: their numbers are not given again."""
        return sum(act.get("act") == ADD for act in self._acts.values())

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
                self.note_id(begun, id)
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


def replay(
    predicted: Mapping[str, str],
    categories: Sequence[Category],
    lines: Iterable[Line],
    batches: Batches | None = None,
) -> Review:
    """The state after these lines; the others: as for `State`."""
    review = Review(predicted, categories, batches)
    review.extend(lines)
    return review
