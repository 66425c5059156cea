"""The length and progress of a run, and values that change with progress: cosine, linear, piecewise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from debgcd.config.schema import ScheduleConfig


@dataclass(frozen=True)
class RunLength:
    """Batch size, steps per epoch and steps of a run. An epoch draws as many images as there are, in at least one step."""

    batch: int
    steps_per_epoch: int
    steps: int


def run_length(schedule: ScheduleConfig, images: int, trains: bool = True) -> RunLength:
    """The length for `images` training images; the batch is never larger than the data. trains: False for no steps."""
    batch = min(schedule.batch, images)
    steps_per_epoch = max(1, images // batch)
    assert schedule.steps != "auto"  # decided by the plan
    steps = schedule.steps if schedule.steps is not None else schedule.epochs * steps_per_epoch
    return RunLength(batch, steps_per_epoch, steps if trains else 0)


@dataclass(frozen=True)
class Progress:
    """The progress of a run before step `step` of `steps`. With by="epoch" it is constant within an epoch, as in public code."""

    step: int
    steps: int
    steps_per_epoch: int
    by: Literal["step", "epoch"] = "step"

    @property
    def epoch(self) -> int:
        return self.step // self.steps_per_epoch

    @property
    def epochs(self) -> int:
        return -(-self.steps // self.steps_per_epoch)

    @property
    def share(self) -> float:
        """The part of the run that is over: 0 at the first step or epoch, below 1 at the last."""
        return self.epoch / self.epochs if self.by == "epoch" else self.step / self.steps

    def of_warmup(self, share: float) -> float:
        """The part that is over of a warm-up over this share of the run; above 1 after its end.

        By epoch it is 1 in the warm-up's last epoch, as with `linspace(start, end, epochs)`.
        """
        if self.by == "epoch":
            last = round(share * self.epochs) - 1
            return self.epoch / last if last > 0 else float(self.epoch > last)
        return self.of_ramp(share)

    def of_ramp(self, share: float) -> float:
        """As `of_warmup`, but by epoch it is 1 only in the epoch after the warm-up, as in many ramps of public code."""
        return self.share / share if share else 1.0


def cosine(start: float, end: float, progress: float) -> float:
    """The value on half a cosine from start (progress 0) to end (1 and above)."""
    return end + (start - end) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def linear(start: float, end: float, progress: float) -> float:
    """The value on a line from start (progress 0) to end (1 and above)."""
    return start + (end - start) * min(progress, 1.0)


def piecewise(points: Sequence[tuple[float, float]], progress: float) -> float:
    """The value at `progress` on the lines that join (progress, value) points; flat before the first and after the last."""
    # sorting is stable: two points of equal progress are a jump, in the order given
    points = sorted(points, key=lambda point: point[0])
    if progress <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if progress <= x1:
            return y0 + (y1 - y0) * (progress - x0) / (x1 - x0)
    return points[-1][1]
