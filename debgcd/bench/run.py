"""From the names of parts to results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from debgcd.bench import decode, epoch, memory, predict, scaling, step, trunk
from debgcd.bench.lines import Line
from debgcd.bench.networks import trunk_type
from debgcd.bench.session import Session
from debgcd.machine import facts

MEASURES = {
    "step": step.measure,
    "trunk": trunk.measure,
    "epoch": epoch.measure,
    "decode": decode.measure,
    "predict": predict.measure,
    "memory": memory.measure,
    "scaling": scaling.measure,
}


def run(session: Session, parts: Sequence[str], show: Callable[[list[Line]], None]) -> dict[str, Any]:
    """Measure these parts and show each when it is done; all results, as JSON data."""
    results: dict[str, Any] = {**facts(), "trunk": trunk_type(), "repeats": session.repeats, "lines": []}
    for part in parts:
        lines = MEASURES[part](session)
        show(lines)
        results["lines"] += [line.to_json() for line in lines]
    return results
