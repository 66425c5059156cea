"""What the parts of a benchmark share: sizes, a folder for the time being, the clock, and what was measured already."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from debgcd.bench.timing import Work, interleave
from debgcd.config import Config, HeadsConfig, ViewsConfig
from debgcd.progress import Report

Value = TypeVar("Value")


@dataclass(frozen=True)
class Shape:
    """A vision transformer's shape; `batch` is the number of images (two views each) a step is timed with."""

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
    """The images of a benchmark: those of an epoch, and those of an evaluation. The default is CUB."""

    name: str = "CUB"
    train: int = 5994
    unlabelled: int = 4496
    test: int = 5794
    batch: int = 128
    epochs: int = 200


@dataclass(frozen=True)
class Sizes:
    """How much work each part does; the paper's sizes, or small ones for a test."""

    views: ViewsConfig = field(default_factory=ViewsConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    k: int = 200
    known: int = 100
    data: DataSet = DataSet()
    large: tuple[int, int] = (4000, 3000)  # 12 megapixels
    small: tuple[int, int] = (640, 480)
    large_photos: int = 3
    small_photos: int = 8
    built: int = 4  # images of a bank that is built to time it
    built_views: int = 7  # with the centre crop 4 · 8 = 32 views: as many for each core
    lite_pixels: tuple[int, int] = (110, 96)  # short side, crop
    predicted: tuple[int, int] = (256, 144)  # images for lite0 and for the ViT: more than one batch
    memory_images: tuple[int, ...] = (1500, 6000)
    memory_views: int = 2
    memory_steps: int = 3
    memory_built: int = 32  # two batches of the building
    scaling: tuple[tuple[int, int], ...] = ((10**4, 100), (10**5, 100), (10**6, 100), (10**4, 10**3), (10**4, 10**4))
    scaling_width: int = 256  # of the synthetic features


@dataclass
class Session:
    """One call of `debgcd bench`."""

    folder: Path  # for weights, banks and photographs; the caller removes it
    shapes: tuple[Shape, ...] = tuple(SHAPES.values())
    sizes: Sizes = Sizes()
    repeats: int = 3
    clock: Callable[[], float] = time.perf_counter
    _known: dict[Hashable, object] = field(default_factory=dict)

    def once(self, key: Hashable, measure: Callable[[], Value]) -> Value:
        """The same value for the same key: parts share weights, files and times."""
        if key not in self._known:
            self._known[key] = measure()
        return self._known[key]  # type: ignore[return-value]

    def seconds(self, works: dict[str, Work], report: Report) -> dict[str, float]:
        """Median seconds an image of each work, taking turns."""
        return interleave(works, self.repeats, self.clock, report)

    def config(self) -> Config:
        """The paper's method and schedule with this session's sizes."""
        return Config(k=self.sizes.k, views=self.sizes.views, heads=self.sizes.heads)
