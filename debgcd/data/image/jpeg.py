"""Decode a JPEG at roughly the size that is needed, with simplejpeg if it is installed, otherwise with Pillow.

JPEG stores blocks of 8 × 8 pixels as frequencies, and a decoder asked for 1/8, 1/4 or 1/2 of the size skips the frequencies
that are not needed. (simplejpeg also supports 3/8, 5/8, ..., but without vector instructions these are slower than the next
larger of the three.) Both libraries use the same algorithms. A file that simplejpeg does not decode without a warning is left
to Pillow, so whether a file is usable, and the reason if it is not, does not depend on the library.
"""

from functools import cache
from types import ModuleType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL.ImageFile import ImageFile

MARGIN = 11 / 8  # decode at least this multiple of the size needed; below it, block averages alias in the final resize
BYTES_PER_PIXEL, METADATA = 4, 2**22  # upper bounds for a JPEG


@cache
def library() -> ModuleType | None:
    """simplejpeg, or None if it is not installed or cannot be imported."""
    try:
        import simplejpeg

        return simplejpeg
    except Exception:  # a ValueError if it was built for another numpy; Pillow can replace it
        return None


def scale_down(width: float, height: float, short_side: int) -> int:
    """The largest of 8, 4, 2, 1 that leaves the image large enough for `short_side`."""
    return next((scale for scale in (8, 4, 2) if min(width, height) >= scale * MARGIN * short_side), 1)


def most_bytes(width: int, height: int) -> int:
    """An upper bound for the size of a JPEG; what follows in a larger file is, for example, a video."""
    return BYTES_PER_PIXEL * width * height + METADATA


def keeps_coefficients(image: ImageFile, file: BinaryIO) -> bool:
    """Whether the whole image's coefficients are in memory while it is decoded: unless its one scan has all components.

    image: just opened, so that the file's position is behind the header of the first scan.
    """
    if image.info.get("progressive"):
        return True
    components = image.layers  # type: ignore[attr-defined]  # JpegImageFile's
    header = bytes([0xFF, 0xDA, 0, 6 + 2 * components, components])
    start = file.tell() - 8 - 2 * components
    file.seek(max(0, start))
    return file.read(len(header)) != header


def decode_quickly(image: ImageFile, file: BinaryIO, size: int, scale: int) -> NDArray[np.uint8] | None:
    """RGB pixels, ceil(height / scale) × ceil(width / scale) × 3, decoded by simplejpeg; None: leave it to Pillow.

    image: the header as read by Pillow; size: of the file, in bytes.
    """
    simplejpeg = library()
    if simplejpeg is None or image.mode not in ("L", "RGB"):  # CMYK may be stored inverted; Pillow handles both
        return None
    width, height = image.size
    file.seek(0)
    data = file.read(min(size, most_bytes(width, height)))
    try:
        if simplejpeg.decode_jpeg_header(data)[:2] != (height, width):  # the pixel limit was checked with Pillow's size
            return None
        rows, columns = -(-height // scale), -(-width // scale)
        # strict: otherwise a truncated file is returned with grey rows
        return simplejpeg.decode_jpeg(data, "RGB", min_height=rows, min_width=columns, strict=True)
    except Exception:  # any failure here: Pillow decodes the file or reports what is wrong
        return None


def sharpen(pixels: NDArray[np.uint8], height: float, width: float) -> NDArray[np.uint8]:
    """Undo the blur of scaling in the decoder; `height`, `width`: exact size of the scaled image in pixels.

    A scaled pixel is roughly the mean over a box of one pixel, which attenuates a wave of f cycles per pixel by
    sin(πf) / πf. Subtracting 1/20 of the second differences compensates for this, exactly at f = 1/5, so the final resize
    gives nearly the same result as from the full image. The last row and column are dropped if most of them lies beyond the
    edge of the image.
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
