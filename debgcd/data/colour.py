"""Colours of a view changed as PIL's ImageEnhance and torchvision's ColorJitter define it, in float and without rounding.

Pixels are (3, h, w) float32 in 0..255. A mean is taken over whole numbers, and there is no other sum over pixels: the result
is the same bits with any number of threads, and loader processes have fewer of them.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
