"""An object in a box: a part of an image file that is an image of its own. And upright images, which boxes refer to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from debgcd.errors import DataError

BOX = ("x", "y", "w", "h")  # the columns of a table

Box = tuple[float, float, float, float]  # left, top, width, height in pixels of the upright image

SLACK = 1.0  # pixels by which a box may reach beyond its image: whoever rounds the sides of a box does that
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that store rows as columns


@dataclass(frozen=True)
class Crop:
    """A box in an image file. Wherever a file is opened it is the file; as a text it names both, so no two look the same."""

    path: Path
    box: Box

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        """As the W3C's Media Fragments have it: photo.jpg#xywh=10,20,300,400."""
        return f"{self.path}#xywh={','.join(map(number_text, self.box))}"


Picture = Path | Crop  # what an image is decoded from


def number_text(value: float) -> str:
    """Without ".0", and with all digits: different numbers are different texts."""
    return repr(float(value)).removesuffix(".0")


def parse_box(values: Sequence[str | None], where: str) -> Box | None:
    """The box of four texts, None if all are missing; `where` locates them in error messages."""
    missing = [name for name, value in zip(BOX, values, strict=True) if value is None]
    if len(missing) == len(BOX):
        return None
    if missing:
        raise DataError(f"{where} has a box without {', '.join(missing)}; fill in all of x, y, w, h or none")
    x, y, w, h = (_number(name, value, where) for name, value in zip(BOX, values, strict=True))
    return x, y, w, h


def _number(name: str, value: Any, where: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise DataError(
            f"{where} has {name} = {value!r:.40}; a box is four numbers, in pixels and with a decimal point"
        )
    return found


class BadBox(Exception):
    """A box that its image does not have."""


def turn_and_cut(
    pixels: np.ndarray, orientation: object, box: Box | None, size: tuple[int, int], scale: int
) -> np.ndarray:
    """Undo an EXIF orientation and cut out the box; pixels: at 1/scale of `size`, which is the stored (width, height)."""
    width, height = size
    if orientation in SIDEWAYS:  # and each may be mirrored along either axis
        pixels, width, height = pixels.swapaxes(0, 1), height, width
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels if box is None else pixels[_place(box, width, height, scale)]


def _place(box: Box, width: int, height: int, scale: int) -> tuple[slice, slice]:
    """Rows and columns of a box in an image of this size, decoded at 1/scale of it."""
    x, y, w, h = box
    if not (w >= 1 and h >= 1):
        raise BadBox(f"w × h = {w:g} × {h:g}; a box has at least one pixel (pixels are meant, not shares of the image)")
    if not (min(x, y) >= -SLACK and x + w <= width + SLACK and y + h <= height + SLACK):
        raise BadBox(
            f"x, y, w, h = {', '.join(map(number_text, box))} reach beyond the {width} × {height} pixels of the upright image"
        )
    return _between(y, y + h, height, scale), _between(x, x + w, width, scale)


def _between(low: float, high: float, size: int, scale: int) -> slice:
    """The pixels from one edge to the other, at least one."""
    last = -(-size // scale)
    first = min(max(0, round(low / scale)), last - 1)
    return slice(first, max(first + 1, round(high / scale)))
