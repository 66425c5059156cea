"""Measure the parts of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from debgcd.reproduce.bench import decode, memory, training
from debgcd.reproduce.bench.networks import trunk_type
from debgcd.reproduce.bench.session import Line, Session
from debgcd.system.machine import facts

MEASURES = {
    "step": training.measure_step,
    "trunk": training.measure_trunk,
    "epoch": training.measure_epoch,
    "decode": decode.measure_decode,
    "predict": decode.measure_predict,
    "memory": memory.measure_memory,
    "scaling": memory.measure_scaling,
}


def run(session: Session, parts: Sequence[str], show: Callable[[list[Line]], None]) -> dict[str, Any]:
    """Measure these parts and show each as soon as it is done; returns all results as JSON data."""
    results: dict[str, Any] = {**facts(), "trunk": trunk_type(), "repeats": session.repeats, "lines": []}
    for part in parts:
        lines = MEASURES[part](session)
        show(lines)
        results["lines"] += [line.to_json() for line in lines]
    return results
