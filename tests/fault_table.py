"""What was broken on purpose, and how that ended: counted over all tests that say so, and written into docs/reliability.md."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tiers import SOAK

from debgcd.system.machine import cores, processor

TRIES = "tries"  # the marker and the property of a test
Fault = Callable[[str, str], None]  # the fixture: a kind, and how it ended
OUTCOMES = ("survived", "refused")
HEAD = ["fault", "tried", "survived", "refused in words", "lost"]
BEGIN, END = "<!-- written by make soak -->", "<!-- end of make soak -->"


def faults_of(stats: Mapping[str, Sequence[Any]]) -> tuple[list[str], list[list[str]]] | None:
    """The table of a session; None where no test tried any. A fault of a test that failed counts as lost."""
    counts: dict[str, Counter[str]] = {}
    for category in ("passed", "failed"):
        for report in stats.get(category, ()):
            for name, value in report.user_properties if report.when == "call" else ():
                if name == TRIES:
                    kind, outcome = value
                    counts.setdefault(kind, Counter())[outcome if category == "passed" else "lost"] += 1
    if not counts:
        return None
    total: Counter[str] = sum(counts.values(), Counter())
    rows = [_row(kind, counts[kind]) for kind in sorted(counts)]
    return HEAD, [*rows, _row("all", total)]


def _row(kind: str, count: Counter[str]) -> list[str]:
    return [kind, str(sum(count.values())), *(str(count[outcome]) for outcome in (*OUTCOMES, "lost"))]


def write_faults(page: Path, head: list[str], rows: list[list[str]]) -> None:
    """Replace the table of a page."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1), *(f"| {' | '.join(row)} |" for row in rows)]
    cases = "by `make soak`" if SOAK else "with the cases of `make test`, one of each kind"
    measured = f"Tried {datetime.date.today().isoformat()} on {processor()}, {cores()} cores, {cases}."
    before, rest = page.read_text("utf-8").split(BEGIN)
    text = "\n".join(lines)
    page.write_text(f"{before}{BEGIN}\n{text}\n\n{measured}\n{END}{rest.split(END)[1]}", "utf-8")
