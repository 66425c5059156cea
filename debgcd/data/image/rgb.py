"""Any Pillow image -> RGB pixels, a strip at a time, so that the memory besides image and result stays small."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

STRIP = 2**20  # pixels converted together


class Unconvertible(ValueError):
    """The image's colours have no meaning as RGB."""


def to_rgb(image: Image.Image, kind: str) -> NDArray[np.uint8]:
    """(H, W, 3) pixels of a loaded image: transparency over white, high bit depths scaled to 8 bits.

    16-bit values are shifted right by 8, as Pillow does for 16-bit RGB, so a dark image stays darker than a bright one.
    Floats, and 32-bit integers in a TIFF, have no fixed range. Floats that all lie in 0..1 keep that range, for the same
    reason; otherwise the finite values are stretched to 0..255, and non-finite values become 0.
    """
    width, height = image.size
    rows = max(1, STRIP // width)
    boxes = [(0, top, width, min(height, top + rows)) for top in range(0, height, rows)]
    limits = None
    if image.mode == "F" or (image.mode == "I" and kind == "TIFF"):
        limits = _limits(image, boxes)
    if len(boxes) == 1:
        return np.array(_rgb(image, limits))
    pixels = np.empty((height, width, 3), np.uint8)
    for box in boxes:
        pixels[box[1] : box[3]] = np.asarray(_rgb(image.crop(box), limits))
    return pixels


def _rgb(image: Image.Image, limits: tuple[float, float] | None) -> Image.Image:
    if limits is not None:
        return Image.fromarray(_stretch(np.asarray(image), *limits)).convert("RGB")
    if image.mode.startswith("I;16") or image.mode == "I":
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    try:
        if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
            if image.mode == "La":
                image = image.convert("LA")
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            return Image.alpha_composite(white, image).convert("RGB")
        return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy
    except ValueError as error:
        raise Unconvertible(f"colour mode {image.mode}") from error


def _limits(image: Image.Image, boxes: list[tuple[int, int, int, int]]) -> tuple[float, float]:
    """The values that become 0 and 255."""
    low, high = np.inf, -np.inf
    for box in boxes:
        values = np.asarray(image.crop(box))
        finite = values[np.isfinite(values)]
        if len(finite):
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if low > high:
        raise Unconvertible("no pixel has a finite value")
    return (0.0, 1.0) if image.mode == "F" and low >= 0 and high <= 1 else (low, high)


def _stretch(values: NDArray[np.generic], low: float, high: float) -> NDArray[np.uint8]:
    scaled = np.where(np.isfinite(values), values, low).astype(np.float64) - low
    return (scaled * (255 / (high - low) if high > low else 0.0)).round().astype(np.uint8)
