"""Image files: small valid ones of every format, damaged."""

from __future__ import annotations

import importlib
import io
import random
from pathlib import Path

import numpy as np
import pytest
from fuzzing import EXAMPLES, GIGABYTE, damaged, fuzz, peak_in_a_child, survives
from hypothesis import given
from PIL import Image, features

from debgcd.data.image.decode import decode

pytestmark = pytest.mark.tries("damaged and hostile images", "refused")

FORMATS: dict[str, list[tuple[str, dict[str, object]]]] = {
    "JPEG": [("RGB", {}), ("L", {}), ("CMYK", {}), ("RGB", {"progressive": True})],
    "PNG": [("RGB", {}), ("RGBA", {}), ("P", {"transparency": 1}), ("LA", {}), ("1", {}), ("I;16", {})],
    "GIF": [("P", {}), ("L", {"interlace": 1})],
    "BMP": [("RGB", {}), ("1", {}), ("P", {})],
    "TIFF": [
        ("RGB", {}),
        ("F", {}),
        ("I", {}),
        ("RGBA", {"compression": "tiff_lzw"}),
        ("1", {"compression": "group4"}),
    ],
    "WEBP": [("RGB", {}), ("RGBA", {"lossless": True})],
    "PPM": [("RGB", {}), ("L", {}), ("1", {})],
    "AVIF": [("RGB", {})],
    "HEIF": [("RGB", {})],
}


def small(kind: str) -> list[bytes]:
    """Valid files of a format, with EXIF data where it can have some; none if this Pillow cannot write it."""
    if kind == "AVIF" and not features.check("avif"):
        return []
    if kind == "HEIF":
        try:
            importlib.import_module("pillow_heif").register_heif_opener()
        except ImportError:
            return []
    pixels = np.random.default_rng(0).integers(0, 256, (13, 17, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    found = []
    for mode, options in FORMATS[kind]:
        image = Image.fromarray(pixels)
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 256) if mode == "I;16" else image.convert(mode)
        file = io.BytesIO()
        image.save(file, kind, **({"exif": exif} if kind in ("JPEG", "PNG", "WEBP") else {}), **options)
        found.append(file.getvalue())
    return found


FILES = {kind: files for kind in FORMATS if (files := small(kind))}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "image"


def read(place: Path, content: bytes) -> None:
    place.write_bytes(content)
    survives(lambda: decode(place))
    survives(lambda: decode(place, short_side=1))


@pytest.mark.parametrize("kind", FILES)
def test_damaged_images(place: Path, kind: str) -> None:
    @fuzz
    @given(content=damaged(FILES[kind]))
    def check(content: bytes) -> None:
        read(place, content)

    check()


@pytest.mark.parametrize("kind", FILES)
def test_damaged_images_take_no_gigabyte(place: Path, kind: str) -> None:
    rng = random.Random(0)

    def work() -> None:
        for _ in range(EXAMPLES // 5):
            content = bytearray(rng.choice(FILES[kind]))
            for _ in range(rng.randint(1, 4)):  # headers, where the sizes are
                at = rng.randrange(min(64, len(content)))
                content[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            read(place, bytes(content))

    assert peak_in_a_child(work) < GIGABYTE
