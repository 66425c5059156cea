"""How much memory images can take, however they were made, and that large ones wait for each other."""

from __future__ import annotations

import io
import os
import resource
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiers import tiered

from debgcd.data.image import decode as decoding
from debgcd.data.image.decode import MOST, PLAIN, Reason, Unusable, decode, memory, one_at_a_time
from debgcd.data.image.jpeg import keeps_coefficients

SIDE = 5000


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 10)) + chunk(b"IEND", b"")


def test_what_needs_too_much_is_refused_by_its_header(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png_header(14_000, 14_000))
    with pytest.raises(Unusable, match=r"too-large: 14000 × 14000 pixels need 1\.4 GB to decode") as error:
        decode(tmp_path / "a.png")
    assert error.value.reason == Reason.TOO_LARGE
    assert 12_000 * 8_000 * PLAIN < MOST  # a photo of 96 megapixels is not


def peak(work: Callable[[], object]) -> int:
    """Bytes that `work` adds to a process at its peak."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            work()
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            os.write(writer, str((after - before) * 1024).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader, "rb") as file:
        return int(file.read())


FORMS: list[tuple[str, str, dict[str, Any]]] = [
    ("a.png", "RGB", {}),
    ("a.png", "RGBA", {}),
    ("a.png", "LA", {}),
    ("a.png", "P", {"transparency": 3}),
    ("a.gif", "P", {}),
    ("a.tif", "F", {}),
    ("a.tif", "CMYK", {"compression": "tiff_lzw"}),
    ("a.webp", "RGBA", {"method": 0}),
    ("a.jpg", "RGB", {"progressive": True, "subsampling": 0}),
]


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    tiered([FORMS[1], FORMS[6], FORMS[8]], FORMS),
)
def test_decoding_takes_no_more_than_what_is_planned(tmp_path: Path, name: str, mode: str, options: dict) -> None:
    Image.new("RGB", (SIDE, SIDE), (200, 100, 50)).convert(mode).save(tmp_path / name, **options)
    size = (tmp_path / name).stat().st_size
    with open(tmp_path / name, "rb") as file:
        kind = {"tif": "TIFF", "jpg": "JPEG"}.get(name[2:], name[2:].upper())
        planned = memory(decoding._open(file, kind), file, size, kind, 1)
    assert peak(lambda: decode(tmp_path / name)) < 1.1 * planned + 20_000_000  # a strip, and buffers of the libraries


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "L", "1", "CMYK", "F", "I", "I;16"])
def test_strips_change_no_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (37, 23, 4), dtype=np.uint8)
    image = Image.fromarray(noise, "RGBA").convert("RGB" if mode in ("CMYK", "P") else "RGBA")
    image = Image.fromarray(noise[..., 0].astype(np.uint16) * 200) if mode == "I;16" else image.convert(mode)
    image.save(tmp_path / "a.tif")
    whole = decode(tmp_path / "a.tif")
    monkeypatch.setattr("debgcd.data.image.decode.STRIP", 100)
    np.testing.assert_array_equal(decode(tmp_path / "a.tif"), whole)


def test_a_large_image_waits_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ORDINARY", 0)  # every image is a large one
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with one_at_a_time():
            os.write(ready[1], b"x")
            os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.append(decode(tmp_path / "a.png")))
    thread.start()
    thread.join(0.3)
    waited = thread.is_alive()
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    thread.join(30)
    assert waited
    assert found[0].shape == (8, 8, 3)


def test_an_ordinary_image_does_not_wait(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with one_at_a_time():
        assert decode(tmp_path / "a.png").shape == (8, 8, 3)


def test_the_turn_ends_when_the_file_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ORDINARY", 0)
    (tmp_path / "a.png").write_bytes(png_header(8, 8))
    for _ in range(2):
        with pytest.raises(Unusable):
            decode(tmp_path / "a.png")


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_a_jpeg_of_several_scans_keeps_its_coefficients(mode: str) -> None:
    image = Image.new(mode, (64, 64))
    for progressive in (False, True):
        file = io.BytesIO()
        image.save(file, "JPEG", progressive=progressive)
        opened = decoding._open(file, "JPEG")
        assert keeps_coefficients(opened, file) is progressive


def test_a_baseline_jpeg_may_have_several_scans() -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG")
    before, scan, after = file.getvalue().partition(b"\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00")
    assert scan
    file = io.BytesIO(before + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + after)  # its first scan has one component
    assert keeps_coefficients(decoding._open(file, "JPEG"), file)
