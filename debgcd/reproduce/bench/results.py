"""The results of a benchmark: one line per comparison or number, and the Markdown table of a page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from debgcd.errors import UsageError
from debgcd.system.files import write_text

HEAD = ["part", "what", "ours", "plain", "ratio", "goal"]
RATES = {"GFLOP/s", "images/s"}  # units of which more is better; for all others less is better
BEGIN, END = "<!-- table: written by debgcd bench -->", "<!-- end of table -->"


@dataclass(frozen=True)
class Line:
    """One result. The goal applies to the ratio if there is one, else to `ours`."""

    part: str
    what: str
    unit: str
    ours: float | None  # None: it cannot be measured here; the note gives the reason
    plain: float | None = None
    ratio: float | None = None  # factor by which ours is better than plain
    at_least: float | None = None
    at_most: float | None = None
    computed: bool = False  # from other measured times, not measured as a whole
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
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
    """A line with its ratio: plain / ours for times, ours / plain for rates."""
    ratio = ours / plain if unit in RATES else plain / ours
    return Line(part, what, unit, ours, plain, ratio, at_least, None, computed, note)


def cells(line: dict[str, Any]) -> list[str]:
    """The table cells of a line in its JSON form, in the order of HEAD."""
    ratio = "–" if line["ratio"] is None else f"{line['ratio']:.2f}×"
    times = "" if line["ratio"] is None else "×"
    goal = ""
    if line["met"] is not None:
        sign, value = ("≥", line["at_least"]) if line["at_least"] is not None else ("≤", line["at_most"])
        goal = f"{sign} {value:g}{times}: {'met' if line['met'] else 'missed'}"
    what = line["what"] + (" (computed)" if line["computed"] else "")
    return [line["part"], what, _shown(line["ours"], line["unit"]), _shown(line["plain"], line["unit"]), ratio, goal]


def _shown(value: float | None, unit: str) -> str:
    """A number to three significant digits, with its unit."""
    if value is None:
        return "–"
    digits = f"{value:.5f}" if unit == "cosine" else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}"


def require_markers(page: Path) -> None:
    """Refuse a page without markers for the table, before any work is done."""
    try:
        text = page.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--table {page} cannot be read as text ({error}); give a Markdown file") from error
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UsageError(f"--table {page} has no place for the table; add the lines {BEGIN} and {END}")


def write_table(page: Path, results: dict[str, Any]) -> None:
    """Replace the text between the markers of a page."""
    require_markers(page)
    before, rest = page.read_text("utf-8").split(BEGIN)
    write_text(page, f"{before}{BEGIN}\n{markdown(results)}\n{END}{rest.split(END)[1]}")


def markdown(results: dict[str, Any]) -> str:
    """All lines, their notes, and the machine and versions they were measured with."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    notes: list[str] = []
    for line in results["lines"]:
        row = cells(line)
        if line["note"]:
            if line["note"] not in notes:
                notes.append(line["note"])
            row[1] += f" [{notes.index(line['note']) + 1}]"
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", *(f"[{i}] {note}.  " for i, note in enumerate(notes, 1))]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines.append(
        f"\nMeasured {results['date']} on {results['processor']}, {results['cores']} cores, {results['threads']} threads, "
        f"trunk in {results['trunk']}; median of {results['repeats']}, the ways taking turns.\n{versions}."
    )
    return "\n".join(lines)
