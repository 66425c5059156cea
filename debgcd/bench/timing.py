"""Times that can be compared: the ways take turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from debgcd.progress import Report


@dataclass(frozen=True)
class Work:
    """Something to time, for so many images."""

    run: Callable[[], object]
    images: int = 1


def interleave(works: Mapping[str, Work], repeats: int, clock: Callable[[], float], report: Report) -> dict[str, float]:
    """The median seconds an image of each work, over `repeats` rounds after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    done = 0
    for turn in range(repeats + 1):
        for name, work in works.items():
            begun = clock()
            work.run()
            taken = clock() - begun
            if turn:
                seconds[name].append(taken)
            done += 1
            report(done, (repeats + 1) * len(works))
    return {name: statistics.median(seconds[name]) / work.images for name, work in works.items()}
