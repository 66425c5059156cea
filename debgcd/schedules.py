"""Values that change over a run, as functions of its progress from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence


def cosine(start: float, end: float, progress: float) -> float:
    """From start to end along half a cosine; beyond 1 it stays at end."""
    return end + (start - end) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def linear(start: float, end: float, progress: float) -> float:
    """From start to end along a line; beyond 1 it stays at end."""
    return start + (end - start) * min(progress, 1.0)


def piecewise(points: Sequence[tuple[float, float]], progress: float) -> float:
    """The value at `progress` on the lines that join (progress, value) points; flat before the first and after the last."""
    points = sorted(points, key=lambda point: point[0])  # two points at one place are a jump, in the order given
    if progress <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if progress <= x1:
            return y0 + (y1 - y0) * (progress - x0) / (x1 - x0)
    return points[-1][1]
