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
Tried = dict[str, list[list[str]]]  # by test: each fault's kind and how it ended
OUTCOMES = ("survived", "refused")
LOST = "lost"
HEAD = ["fault", "tried", "survived", "refused in words", "lost"]
BEGIN, END = "<!-- written by make soak -->", "<!-- end of make soak -->"


def faults_of(stats: Mapping[str, Sequence[Any]]) -> Tried:
    """What each test of a session tried. All faults of a test that failed count as lost."""
    tried: Tried = {}
    for category in ("passed", "failed"):
        for report in stats.get(category, ()):
            for name, value in report.user_properties if report.when == "call" else ():
                if name == TRIES:
                    kind, outcome = value
                    outcome = outcome if category == "passed" else LOST
                    tried.setdefault(report.nodeid, []).append([kind, outcome])
    return tried


def joined(before: dict[str, Any], tried: Tried) -> dict[str, Any]:
    """An earlier session with what was tried again of it: every fault counts once, as it ended last."""
    return {"tried": before["tried"] | tried, "again": sorted({*before["again"], *tried})}


def table_of(tried: Tried) -> tuple[list[str], list[list[str]]]:
    """Head and rows: of each kind how many, and how they ended."""
    counts: dict[str, Counter[str]] = {}
    for kind, outcome in (pair for pairs in tried.values() for pair in pairs):
        counts.setdefault(kind, Counter())[outcome] += 1
    total: Counter[str] = sum(counts.values(), Counter())
    rows = [_row(kind, counts[kind]) for kind in sorted(counts)]
    return HEAD, [*rows, _row("all", total)]


def _row(kind: str, count: Counter[str]) -> list[str]:
    return [kind, str(sum(count.values())), *(str(count[outcome]) for outcome in (*OUTCOMES, LOST))]


def write_faults(page: Path, tried: Tried, again: Sequence[str] = ()) -> None:
    """Replace the table of a page; again: the tests that had failed and were run once more, after they were mended."""
    head, rows = table_of(tried)
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1), *(f"| {' | '.join(row)} |" for row in rows)]
    cases = "by `make soak`" if SOAK else "with the cases of `make test`, one of each kind"
    measured = f"Tried {datetime.date.today().isoformat()} on {processor()}, {cores()} cores, {cases}."
    measured += (
        f" {len(again)} tests had failed, and were run again after the program or the test was mended." if again else ""
    )
    before, rest = page.read_text("utf-8").split(BEGIN)
    text = "\n".join(lines)
    page.write_text(f"{before}{BEGIN}\n{text}\n\n{measured}\n{END}{rest.split(END)[1]}", "utf-8")
