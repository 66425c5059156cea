"""A benchmark so small that a part takes a second: the same code, other sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from debgcd.config.schema import ViewsConfig
from debgcd.methods.debgcd import DebGCDHeads
from debgcd.reproduce.bench.session import DataSet, Session, Shape, Sizes

SHAPE = Shape("ViT-toy", width=32, heads=2, hidden=64, batch=4, depth=3, patch=8)
SIZES = Sizes(
    views=ViewsConfig(resize=36, size=32, bank_views=2),
    heads=DebGCDHeads(hidden=16, projection_width=8, detector_width=8),
    k=6,
    known=3,
    data=DataSet("toy", train=24, unlabelled=16, test=8, batch=8, epochs=2),
    large=(320, 240),
    small=(64, 48),
    large_photos=2,
    small_photos=2,
    built=2,
    built_views=2,
    lite_pixels=(36, 32),
    predicted=(3, 3),
)


class Clock:
    """Every look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def toy(folder: Path, clock: Callable[[], float] | None = None, repeats: int = 1) -> Session:
    """A session of these sizes."""
    return Session(folder, (SHAPE,), SIZES, repeats, clock or Clock())
