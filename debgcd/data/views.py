"""Views of an image as tensor operations on uint8: resize the short side, crop, maybe flip, maybe change the colours.

A `View` is a kind of view; its crop parameters are the random numbers that make one view of it. Each number has one meaning
for all kinds, and a kind ignores those that it does not need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from debgcd.data.sampler import uniform


def brightness(pixels: Tensor, factor: float) -> Tensor:
    """Factor 0 is black, 1 the image itself."""
    return (pixels * factor).clamp(0, 255)


def contrast(pixels: Tensor, factor: float) -> Tensor:
    """Factor 0 is the image's mean grey level everywhere, 1 the image itself."""
    levels = luma(pixels).round().to(torch.int64)
    return _blend(pixels, int(levels.sum()) / levels.numel(), factor)


def saturation(pixels: Tensor, factor: float) -> Tensor:
    """Factor 0 is the grey image, 1 the image itself."""
    return _blend(pixels, luma(pixels), factor)


def hue(pixels: Tensor, turn: float) -> Tensor:
    """The hue of each pixel in HSV, turned by this part of a whole turn: 1/3 makes red green, green blue and blue red."""
    red, green, blue = pixels
    value = pixels.amax(0)
    chroma = value - pixels.amin(0)
    some = chroma.where(chroma > 0, 1.0)  # a grey pixel has no hue: any will do
    sixths = torch.where(
        value == red,
        (green - blue) / some,
        torch.where(value == green, (blue - red) / some + 2, (red - green) / some + 4),
    )
    sixths = sixths + 6 * turn
    k = torch.stack([sixths + 5, sixths + 3, sixths + 1])  # of red, green and blue
    k = k - 6 * (k / 6).floor()
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


def luma(pixels: Tensor) -> Tensor:
    """(3, h, w) -> (1, h, w): the grey level of each pixel, by the weights of ITU-R 601-2."""
    red, green, blue = pixels
    return (0.299 * red + 0.587 * green + 0.114 * blue)[None]


def _blend(pixels: Tensor, other: Tensor | float, factor: float) -> Tensor:
    """Between `other` (factor 0) and the image (1), or beyond it."""
    return (factor * pixels + (1 - factor) * other).clamp(0, 255)


# Numbers in [0, 1), (..., PARTS): two offsets of the crop as shares of the free space (nan: in the middle); flip; the crop's
# area and aspect ratio; brightness, contrast, saturation and hue; grey.
CropParams = NDArray[np.float64]
PARTS = 10

# The one view for evaluation: a plain one in the middle, not flipped.
CENTRE: CropParams = np.array([[np.nan, np.nan, 1.0, *[np.nan] * (PARTS - 3)]])

ASPECT = 4 / 3  # of a crop with an area: between 3 : 4 and 4 : 3, as torchvision's RandomResizedCrop
COLOURS = (0.4, 0.4, 0.2, 0.1)  # brightness, contrast, saturation and hue at jitter 1, as in BYOL, DINO and UNO


@dataclass(frozen=True)
class View:
    """A kind of random view."""

    area: tuple[float, float] | None = None  # of the crop, as a share of the image; None: size × size, not resized
    jitter: float = 0.0  # strength of the changes of colour
    grey: float = 0.0  # probability of a view without colours

    def __post_init__(self) -> None:
        if self.area is not None and not 0 < self.area[0] <= self.area[1] <= 1:
            raise ValueError(f"area must be (low, high) with 0 < low <= high <= 1, not {self.area}")
        if not 0 <= self.jitter <= 2.5:
            raise ValueError(f"jitter must be between 0 and 2.5, where an image may turn black, not {self.jitter}")
        if not 0 <= self.grey <= 1:
            raise ValueError(f"grey must be a probability, not {self.grey}")

    @property
    def name(self) -> str:
        """The kind in words; equal kinds have equal names."""
        crop = "plain crop" if self.area is None else f"area {float(self.area[0])} to {float(self.area[1])}"
        return f"{crop}, jitter {float(self.jitter)}, grey {float(self.grey)}"


Kinds = tuple[View, ...]  # one for each view of a draw

PLAIN = View()
STRONG = View(area=(0.3, 1.0), jitter=1.0, grey=0.2)
# The small crops of UNO's public code on ImageNet. There they have 96 px and changed colours; here every view has the same
# size, because tokens of one batch have one shape, and the colours of small and plain views stay as they are.
SMALL = View(area=(0.08, 0.5))
TWO_PLAIN: Kinds = (PLAIN, PLAIN)  # what most methods learn from


def random_crops(seed: int, draw: NDArray[np.int64], views: int = 2, stream: str = "view") -> CropParams:
    """CropParams of the random views of each draw, a function of (seed, stream, draw, view): (N, views, PARTS)."""
    draw, view, part = np.ix_(draw, np.arange(views), np.arange(PARTS))
    return uniform(seed, stream, draw, view, part)


def resize_short_side(image: NDArray[np.uint8], size: int) -> Tensor:
    """(H, W, 3) -> (3, h, w) uint8 with min(h, w) == size; bicubic, antialiased as PIL does."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
    height, width = pixels.shape[1:]
    short = min(height, width)
    if short == size:
        return pixels.contiguous()
    return _resize(pixels, (max(size, size * height // short), max(size, size * width // short)))


def crop_view(image: Tensor, crop: CropParams, size: int, view: View = PLAIN) -> Tensor:
    """One view: (3, h, w) uint8 -> (3, size, size) uint8; crop: (PARTS,)."""
    height, width = image.shape[1:]
    h, w = (size, size) if view.area is None else _crop_shape(height, width, view.area, crop[3:5])
    top, left = _offset(crop[0], height - h), _offset(crop[1], width - w)
    pixels = image[:, top : top + h, left : left + w]
    if view.area is not None:
        pixels = _resize(pixels, (size, size))
    if crop[2] < 0.5:
        pixels = pixels.flip(2)
    grey = bool(crop[9] < view.grey)
    return _recolour(pixels, crop[5:9], view.jitter, grey) if view.jitter or grey else pixels


def _offset(share: float, free: int) -> int:
    """Where a crop begins that leaves `free` pixels over: 0..free, all alike; in the middle, as torchvision rounds it."""
    return round(free / 2) if np.isnan(share) else int(share * (free + 1))


def _crop_shape(height: int, width: int, area: tuple[float, float], crop: CropParams) -> tuple[int, int]:
    """Height and width of a crop: its share of the image is uniform in `area`, then width : height log-uniform in 3/4..4/3.

    torchvision draws both until the crop fits into the image, ten times at most. Here two numbers are enough: the share is
    drawn up to the largest crop of such an aspect ratio (if not even the smallest share fits, it is that crop), and the
    aspect ratio from those of 3/4..4/3 at which the crop fits.
    """
    largest = min(1.0, ASPECT * min(height, width) / max(height, width))
    low, high = min(area[0], largest), min(area[1], largest)
    pixels = float(low + crop[0] * (high - low)) * height * width
    narrow, wide = max(1 / ASPECT, pixels / height**2), min(ASPECT, width**2 / pixels)
    ratio = narrow * (wide / narrow) ** float(crop[1])
    h, w = round((pixels / ratio) ** 0.5), round((pixels * ratio) ** 0.5)
    return min(max(h, 1), height), min(max(w, 1), width)


def _resize(pixels: Tensor, shape: tuple[int, int]) -> Tensor:
    return interpolate(pixels[None], shape, mode="bicubic", antialias=True)[0]


def _recolour(pixels: Tensor, crop: CropParams, jitter: float, grey: bool) -> Tensor:
    """Brightness, contrast, saturation and hue in this order, then grey; rounded once, at the end."""
    found = pixels.float()
    if jitter:
        change = (2 * crop - 1) * np.array(COLOURS) * jitter
        found = brightness(found, 1 + float(change[0]))
        found = contrast(found, 1 + float(change[1]))
        found = saturation(found, 1 + float(change[2]))
        found = hue(found, float(change[3]))
    if grey:
        found = luma(found).expand(3, -1, -1)
    return found.round().to(torch.uint8)
