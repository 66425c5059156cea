"""Views of an image as tensor operations on uint8: resize the short side, crop, maybe flip."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from debgcd.data.draws import uniform

# Where to cut: offsets of the crop as shares of the free space (nan: in the middle), and whether to flip. (..., 3).
Cuts = NDArray[np.float64]

CENTRE: Cuts = np.array([[np.nan, np.nan, 1.0]])  # the one view for evaluation: in the middle, not flipped


def random_cuts(seed: int, draw: NDArray[np.int64], views: int = 2) -> Cuts:
    """Cuts of the random views of each draw, a function of (seed, draw, view): (N, views, 3)."""
    draw, view, part = np.ix_(draw, np.arange(views), np.arange(3))
    return uniform(seed, "view", draw, view, part)


def resize_short_side(image: NDArray[np.uint8], size: int) -> Tensor:
    """(H, W, 3) -> (3, h, w) uint8 with min(h, w) == size; bicubic, antialiased as PIL does."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
    height, width = pixels.shape[1:]
    short = min(height, width)
    if short == size:
        return pixels.contiguous()
    target = (max(size, size * height // short), max(size, size * width // short))
    return interpolate(pixels[None], target, mode="bicubic", antialias=True)[0]


def cut_view(image: Tensor, cut: Cuts, size: int) -> Tensor:
    """One view: (3, h, w) -> (3, size, size), cropped at the cut's place and flipped if its last number is below ½."""
    height, width = image.shape[1:]
    top, left = _offset(cut[0], height - size), _offset(cut[1], width - size)
    view = image[:, top : top + size, left : left + size]
    return view.flip(2) if cut[2] < 0.5 else view


def _offset(share: float, free: int) -> int:
    """Where a crop begins that leaves `free` pixels over: 0..free, all alike; in the middle, as torchvision rounds it."""
    return round(free / 2) if np.isnan(share) else int(share * (free + 1))
