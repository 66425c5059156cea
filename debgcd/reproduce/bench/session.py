"""What the parts of a benchmark share: timing, peak memory, sizes, and what was measured already."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from debgcd.config.schema import Config, ViewsConfig
from debgcd.methods.debgcd import DebGCDHeads, DebGCDOptions
from debgcd.system.progress import Report

HEAD = ["part", "what", "ours", "plain", "ratio", "goal"]
RATES = {"GFLOP/s", "images/s"}  # units of which more is better; for all others less is better


@dataclass(frozen=True)
class Line:
    """One result. The goal applies to the ratio if there is one, else to `ours`."""

    part: str
    what: str
    unit: str
    ours: float | None  # None: it cannot be measured here; the note gives the reason
    plain: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    computed: bool = False  # from other measured times, not measured as a whole
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Factor by which ours is better than plain: plain / ours for times, ours / plain for rates."""
        if self.ours is None or self.plain is None:
            return None
        return self.ours / self.plain if self.unit in RATES else self.plain / self.ours

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        value = self.ours if self.ratio is None else self.ratio
        if value is None or (self.at_least is None and self.at_most is None):
            return None
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


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


Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class Work:
    """Something to time, and the number of images it processes."""

    run: Callable[[], object]
    images: int = 1


def silent(done: int, total: int, note: str = "") -> None:
    """A report that goes nowhere."""


def interleave(
    works: Mapping[str, Work], repeats: int, clock: Callable[[], float], report: Report = silent
) -> dict[str, float]:
    """Median seconds per image of each work, over `repeats` rounds after one warm-up round.

    The works take turns, so that other load on the machine affects all of them equally.
    """
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


@dataclass(frozen=True)
class Shape:
    """The shape of a vision transformer; `batch` is the number of images (two views each) per timed step."""

    name: str
    width: int
    heads: int
    hidden: int
    batch: int
    depth: int = 12
    patch: int = 16


SHAPES = {
    "vit-s16": Shape("ViT-S/16", width=384, heads=6, hidden=1536, batch=16),
    "vit-b16": Shape("ViT-B/16", width=768, heads=12, hidden=3072, batch=8),
}


@dataclass(frozen=True)
class DataSet:
    """Numbers of images per epoch and per evaluation. The default is CUB."""

    name: str = "CUB"
    train: int = 5994
    unlabelled: int = 4496
    test: int = 5794
    batch: int = 128
    epochs: int = 200


@dataclass(frozen=True)
class Sizes:
    """How much work each part does: the paper's sizes by default, small ones in tests."""

    views: ViewsConfig = field(default_factory=ViewsConfig)
    heads: DebGCDHeads = field(default_factory=DebGCDHeads)
    k: int = 200
    known: int = 100
    data: DataSet = DataSet()
    large: tuple[int, int] = (4000, 3000)  # 12 megapixels
    small: tuple[int, int] = (640, 480)
    large_photos: int = 3
    small_photos: int = 8
    built: int = 4  # images per bank when building one is timed
    built_views: int = 7  # with the centre crop 4 · 8 = 32 views: the same number for each core
    lite_pixels: tuple[int, int] = (110, 96)  # short side, crop
    predicted: tuple[int, int] = (256, 144)  # images for lite0 and for the ViT: more than one batch


@dataclass
class Session:
    """One call of `debgcd bench`."""

    folder: Path  # for weights, banks and photographs; the caller removes it
    shapes: tuple[Shape, ...] = tuple(SHAPES.values())
    sizes: Sizes = Sizes()
    repeats: int = 3
    clock: Callable[[], float] = time.perf_counter
    results: dict[Hashable, Any] = field(default_factory=dict)  # of functions marked `once`

    def seconds(self, works: Mapping[str, Work], report: Report = silent) -> dict[str, float]:
        """Median seconds per image of each work; the works take turns."""
        return interleave(works, self.repeats, self.clock, report)

    def config(self) -> Config:
        """The paper's method and schedule with the sizes of this session."""
        return Config(k=self.sizes.k, views=self.sizes.views, options=DebGCDOptions(heads=self.sizes.heads))


def once(measure: Callable[Concatenate[Session, Arguments], Value]) -> Callable[Concatenate[Session, Arguments], Value]:
    """A function that a session computes once per arguments: parts share weights, files and times."""

    @functools.wraps(measure)
    def remembered(session: Session, *arguments: Arguments.args, **named: Arguments.kwargs) -> Value:
        key = (measure, arguments)
        if key not in session.results:
            session.results[key] = measure(session, *arguments, **named)
        return session.results[key]

    return remembered  # type: ignore[return-value] # the first argument is never given by name
