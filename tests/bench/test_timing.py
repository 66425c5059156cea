"""Times are medians of rounds in which the ways take turns, and a ratio is what it says."""

from __future__ import annotations

from typing import Any

import pytest

from debgcd.reproduce.bench.session import Line, Work, cells, interleave


class Machine:
    """A clock, and works that move it by given seconds, one number per call."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, []

    def work(self, name: str, *seconds: float) -> Any:
        left = list(seconds)

        def run() -> None:
            self.calls.append(name)
            self.now += left.pop(0)

        return run


def test_the_ways_take_turns_and_the_first_round_does_not_count() -> None:
    machine, reported = Machine(), []
    works = {
        "ours": Work(machine.work("ours", 90, 2, 8, 3), images=1),
        "plain": Work(machine.work("plain", 70, 10, 30, 11), images=10),
    }
    found = interleave(works, 3, lambda: machine.now, lambda done, total, note="": reported.append((done, total)))
    assert machine.calls == ["ours", "plain"] * 4
    assert found == {"ours": 3.0, "plain": 1.1}  # the medians of 2 8 3 and of 10 30 11, per image
    assert reported == [(i, 8) for i in range(1, 9)]


@pytest.mark.parametrize(("unit", "expected"), [("s", 3.0), ("ms", 3.0), ("min", 3.0), ("GFLOP/s", 1 / 3)])
def test_a_ratio_says_how_many_times_better_ours_is(unit: str, expected: float) -> None:
    assert Line("step", "x", unit, 2.0, 6.0).ratio == pytest.approx(expected)


def test_a_goal_is_for_the_ratio_or_else_for_the_number() -> None:
    assert Line("step", "x", "s", 1.0, 2.0, at_least=2.0).met is True
    assert Line("step", "x", "s", 1.0, 1.9, at_least=2.0).met is False
    assert Line("memory", "x", "GiB", 2.9, at_most=3.0).met is True
    assert Line("memory", "x", "GiB", 3.1, at_most=3.0).met is False
    assert Line("memory", "x", "GiB", None, at_most=3.0).met is None
    assert Line("predict", "x", "images/s", 7.0).met is None


def test_what_a_line_shows() -> None:
    line = Line("epoch", "a whole one", "min", 2.0, 12.344, at_least=6.0, computed=True).to_json()
    assert cells(line) == ["epoch", "a whole one (computed)", "2 min", "12.3 min", "6.17×", "≥ 6×: met"]
    line = Line("memory", "peak", "GiB", 3.25, at_most=3.0).to_json()
    assert cells(line) == ["memory", "peak", "3.25 GiB", "–", "–", "≤ 3: missed"]
    assert cells(Line("memory", "peak", "GiB", None, note="no /proc").to_json())[2:] == ["–", "–", "–", ""]
