"""A JPEG in about the size that is needed: scaled while it is decoded, by simplejpeg if that is installed, else by Pillow.

JPEG stores blocks of 8 × 8 pixels as frequencies, and a decoder that is asked for 1/8, 1/4 or 1/2 leaves out what that
size does not need. (simplejpeg also knows 3/8, 5/8, ...; without vector instructions they take longer than the next
larger one of these.) Both libraries use the same algorithms, and what simplejpeg does not decode without a warning is
left to Pillow, so that a file can be used, or not and why, does not depend on which of them is there.
"""

from functools import cache
from types import ModuleType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL.ImageFile import ImageFile

MARGIN = 11 / 8  # so many times the size needed: nearer to it, means of whole blocks alias in the final resize
BYTES_A_PIXEL, METADATA = 4, 2**22  # no JPEG needs more of either; what follows in a larger file is a video or the like


@cache
def library() -> ModuleType | None:
    """simplejpeg, or None where it is not installed or cannot be loaded."""
    try:
        import simplejpeg

        return simplejpeg
    except Exception:  # built for another numpy it raises a ValueError; Pillow can do all of its work
        return None


def scale_down(width: int, height: int, short_side: int) -> int:
    """The largest of 8, 4, 2, 1 such that the image divided by it is still large enough for `short_side`."""
    return next((scale for scale in (8, 4, 2) if min(width, height) >= scale * MARGIN * short_side), 1)


def decode_quickly(image: ImageFile, file: BinaryIO, size: int, scale: int) -> NDArray[np.uint8] | None:
    """RGB pixels, ceil(height / scale) × ceil(width / scale) × 3, by simplejpeg; None: leave it to Pillow.

    image: the header of the file, as Pillow read it; size: bytes of the file.
    """
    simplejpeg = library()
    if simplejpeg is None or image.mode not in ("L", "RGB"):  # CMYK is stored inverted or not; Pillow knows which
        return None
    width, height = image.size
    file.seek(0)
    data = file.read(min(size, BYTES_A_PIXEL * width * height + METADATA))
    try:
        if simplejpeg.decode_jpeg_header(data)[:2] != (height, width):  # the size that was checked is Pillow's
            return None
        rows, columns = -(-height // scale), -(-width // scale)
        # strict: otherwise a file that ends early comes back with grey rows
        return simplejpeg.decode_jpeg(data, "RGB", min_height=rows, min_width=columns, strict=True)
    except Exception:  # whatever it is that this decoder minds: Pillow decodes the file, or says what is wrong with it
        return None


def sharpen(pixels: NDArray[np.uint8], height: float, width: float) -> NDArray[np.uint8]:
    """Undo what scaling in the decoder blurred; `height`, `width`: what the image measures in pixels of this size.

    A pixel is about the mean over a box of its own width, which weakens a wave of f periods a pixel by sin(πf) / πf.
    Less 1/20 of the second differences makes up for that, exactly at f = 1/5, so that the final resize gives nearly
    what it would give from the whole image. The last row and column go if most of them lies beyond the image's edge.
    """
    values = pixels[: int(height + 0.5), : int(width + 0.5)].astype(np.int16)
    sharp = values * 20 + 10
    down, right = values[1:] - values[:-1], values[:, 1:] - values[:, :-1]
    sharp[1:] += down
    sharp[:-1] -= down
    sharp[:, 1:] += right
    sharp[:, :-1] -= right
    sharp //= 20
    return np.clip(sharp, 0, 255, out=sharp).astype(np.uint8)
