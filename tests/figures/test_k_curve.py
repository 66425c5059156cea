"""The plot of an estimate of K, in the terminal and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from debgcd.cluster.estimate_k import Estimate
from debgcd.report.figures import COLUMNS, draw_k_curve, text_plot


def estimate(low: int = 8, k: int = 10, high: int = 20, way: str = "ward") -> Estimate:
    curve = [(n, 1.0 if n == 10 else 0.25) for n in range(5, 41)]
    return Estimate(k, low, high, way, {way: curve}, {way: k}, 1.0)


def test_the_peak_stands_over_the_mark_of_the_estimate() -> None:
    lines = text_plot(estimate()).splitlines()
    marks = next(line for line in lines if "▲" in line)
    top = lines[1]
    assert top.startswith("1.0 │")
    assert abs(top.rindex(top.rstrip()[-1]) - marks.index("▲")) <= 1
    assert marks.index("├") < marks.index("▲") < marks.index("┤")
    assert max(map(len, lines)) <= COLUMNS + 8


def test_the_ends_of_the_axis_are_named() -> None:
    ticks = text_plot(estimate()).splitlines()[-1].split()
    assert ticks[0] == "5"
    assert {"10", "20"} < set(ticks)


@pytest.mark.parametrize(("low", "k", "high"), [(10, 10, 10), (5, 5, 40), (5, 40, 40)])
def test_any_interval_can_be_drawn(low: int, k: int, high: int, tmp_path: Path) -> None:
    assert "▲" in text_plot(estimate(low, k, high))
    draw_k_curve(estimate(low, k, high), tmp_path / "k.png")
    assert Image.open(tmp_path / "k.png").size == (900, 480)


def test_one_candidate(tmp_path: Path) -> None:
    only = Estimate(3, 3, 3, "brent", {"brent": [(3, 0.5)]}, {"brent": 3}, 0.1)
    assert "▲" in text_plot(only)
    draw_k_curve(only, tmp_path / "k.png")


def test_the_picture_shades_the_interval_alone(tmp_path: Path) -> None:
    draw_k_curve(estimate(), tmp_path / "k.png")
    row = np.asarray(Image.open(tmp_path / "k.png").convert("RGB"))[200].astype(int)
    shaded = np.flatnonzero((row == (0xDC, 0xE8, 0xF5)).all(1))
    place = {n: 70 + round(759 * np.log(n / 5) / np.log(40 / 5)) for n in (8, 20)}
    assert abs(shaded.min() - place[8]) <= 2
    assert abs(shaded.max() - place[20]) <= 2
