"""What a benchmark says: a line is one comparison, or one number where there is nothing to compare with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RATES = {"GFLOP/s", "images/s"}  # units of which more is better; of all others less is


@dataclass(frozen=True)
class Line:
    """One result. A goal is for the ratio where there is one, else for `ours`."""

    part: str
    what: str
    unit: str
    ours: float | None  # None: it cannot be measured here, and the note says why
    plain: float | None = None
    ratio: float | None = None  # how many times better than plain
    at_least: float | None = None
    at_most: float | None = None
    computed: bool = False  # from other measured times, not measured as a whole
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        value = self.ours if self.ratio is None else self.ratio
        if value is None or (self.at_least is None and self.at_most is None):
            return None
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def compare(
    part: str,
    what: str,
    unit: str,
    ours: float,
    plain: float,
    *,
    at_least: float | None = None,
    computed: bool = False,
    note: str = "",
) -> Line:
    """A line with its ratio: plain / ours of times, ours / plain of rates."""
    ratio = ours / plain if unit in RATES else plain / ours
    return Line(part, what, unit, ours, plain, ratio, at_least, None, computed, note)


def shown(value: float | None, unit: str) -> str:
    """A number with its unit, three digits of it."""
    if value is None:
        return "–"
    digits = f"{value:.5f}" if unit == "cosine" else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}"


def cells(line: dict[str, Any]) -> list[str]:
    """A line (as JSON has it) as the cells of a table: part, what, ours, plain, ratio, goal."""
    ratio = "–" if line["ratio"] is None else f"{line['ratio']:.2f}×"
    times = "" if line["ratio"] is None else "×"
    goal = ""
    if line["met"] is not None:
        sign, value = ("≥", line["at_least"]) if line["at_least"] is not None else ("≤", line["at_most"])
        goal = f"{sign} {value:g}{times}: {'met' if line['met'] else 'missed'}"
    what = line["what"] + (" (computed)" if line["computed"] else "")
    return [line["part"], what, shown(line["ours"], line["unit"]), shown(line["plain"], line["unit"]), ratio, goal]


HEAD = ["part", "what", "ours", "plain", "ratio", "goal"]
