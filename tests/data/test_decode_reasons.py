"""Whatever file a user has: the right reason why it cannot be used."""

import os
import socket
import struct
import sys
import threading
import time
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageFile

from debgcd.data.image import decode as module
from debgcd.data.image.decode import Reason, Unusable, decode

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (120, 160, 3), dtype=np.uint8)
ROWS, COLUMNS = np.mgrid[0:120, 0:160]
SMOOTH = np.stack([ROWS, COLUMNS, ROWS + COLUMNS], -1).astype(np.uint8)  # lossy formats keep this nearly exactly


def reason(path: Path) -> Reason:
    with pytest.raises(Unusable) as caught:
        decode(path)
    assert str(caught.value).startswith(f"{caught.value.reason}: ")
    assert caught.value.detail
    return caught.value.reason


def within(seconds: float, path: Path) -> Reason:
    """The reason, from a thread that a blocking open() cannot take the test down with."""
    found: list[Reason] = []
    thread = threading.Thread(target=lambda: found.append(reason(path)), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "decode blocks"
    return found[0]


def png(width: int, height: int, depth: int, colour: int, data: bytes, extra: bytes = b"") -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def test_float_tiff_without_a_finite_value(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 2), np.nan, np.float32)).save(tmp_path / "x.tif")
    assert reason(tmp_path / "x.tif") is Reason.UNSUPPORTED


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("source", [NOISE, SMOOTH, SMOOTH[:8, :8]], ids=["noise", "smooth", "tiny"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF", "HEIF"])
def test_truncated(tmp_path: Path, kind: str, source: np.ndarray, share: float) -> None:
    if kind == "HEIF":
        pillow_heif.register_heif_opener()
    Image.fromarray(source).save(tmp_path / "whole", kind)
    data = (tmp_path / "whole").read_bytes()
    (tmp_path / "x.jpg").write_bytes(data[: int(len(data) * share)])
    assert reason(tmp_path / "x.jpg") is Reason.TRUNCATED
    with pytest.raises(Unusable, match="truncated"):
        decode(tmp_path / "x.jpg", short_side=1)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "jpeg"])
def test_truncated_compressed_tiff(tmp_path: Path, compression: str) -> None:
    Image.fromarray(NOISE).save(tmp_path / "x.tif", compression=compression)
    data = (tmp_path / "x.tif").read_bytes()
    (tmp_path / "x.tif").write_bytes(data[: len(data) // 2])
    assert reason(tmp_path / "x.tif") is Reason.TRUNCATED


def test_what_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    assert reason(tmp_path / "empty.jpg") is Reason.EMPTY
    for name, text in {
        "text": "hello",
        "bmw": "BMW is a car maker",
        "p6": "P6 is a street",
        "html": "<!DOCTYPE html>",
    }.items():
        (tmp_path / f"{name}.jpg").write_text(text)
        assert reason(tmp_path / f"{name}.jpg") is Reason.NOT_AN_IMAGE
    # Pillow would hand this to Ghostscript
    (tmp_path / "script.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    assert reason(tmp_path / "script.jpg") is Reason.NOT_AN_IMAGE


def test_huge_header_is_refused_without_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bomb.png").write_bytes(png(30_000, 30_000, 8, 2, b"\0" * 100))
    limit = Image.MAX_IMAGE_PIXELS
    assert reason(tmp_path / "bomb.png") is Reason.TOO_LARGE
    assert limit == Image.MAX_IMAGE_PIXELS
    # Pillow's own limit, here lowered below a common image, has no say
    Image.fromarray(NOISE).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(Image.DecompressionBombError):
        Image.open(tmp_path / "x.png")
    np.testing.assert_array_equal(decode(tmp_path / "x.png"), NOISE)


def test_corrupt_and_unsupported(tmp_path: Path) -> None:
    good = png(2, 2, 8, 0, b"\0\1\2\0\3\4")
    (tmp_path / "crc.png").write_bytes(good.replace(b"IHDR\0\0\0\2", b"IHDR\0\0\0\3"))
    assert reason(tmp_path / "crc.png") is Reason.CORRUPT
    bad = png(2, 2, 8, 0, b"")
    (tmp_path / "zlib.png").write_bytes(bad)
    assert reason(tmp_path / "zlib.png") in (Reason.CORRUPT, Reason.TRUNCATED)
    entries = [(256, 1), (257, 1), (258, 32), (259, 1), (262, 2), (273, 8), (277, 3), (278, 1), (279, 12), (339, 3)]
    table = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in entries)
    (tmp_path / "float-rgb.tif").write_bytes(
        b"II*\0" + struct.pack("<I", 20) + b"\0" * 12 + struct.pack("<H", 10) + table + b"\0" * 4
    )
    assert reason(tmp_path / "float-rgb.tif") is Reason.UNSUPPORTED


def test_names_that_lead_to_no_file(tmp_path: Path) -> None:
    assert reason(tmp_path / "none.jpg") is Reason.MISSING
    (tmp_path / "broken.jpg").symlink_to(tmp_path / "gone.jpg")
    assert reason(tmp_path / "broken.jpg") is Reason.MISSING
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    assert reason(tmp_path / "loop.jpg") is Reason.SYMLINK_LOOP
    assert reason(tmp_path / "nul\0.jpg") is Reason.BAD_NAME
    assert reason(tmp_path / ("x" * 300 + ".jpg")) is Reason.UNREADABLE


def test_what_would_block_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    assert within(5, tmp_path / "folder.jpg") is Reason.NOT_A_FILE
    os.mkfifo(tmp_path / "pipe.jpg")
    assert within(5, tmp_path / "pipe.jpg") is Reason.NOT_A_FILE
    (tmp_path / "link.jpg").symlink_to(tmp_path / "pipe.jpg")
    assert within(5, tmp_path / "link.jpg") is Reason.NOT_A_FILE
    assert within(5, Path("/dev/zero")) is Reason.NOT_A_FILE
    here = os.getcwd()
    os.chdir(tmp_path)  # a socket's path may have 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket.jpg")
            assert within(5, Path("socket.jpg")) is Reason.NOT_A_FILE
    finally:
        os.chdir(here)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "x.png")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "open", refuse, raising=False)  # the tests may run as root, whom no mode bits stop
    assert reason(tmp_path / "x.png") is Reason.UNREADABLE


@pytest.mark.parametrize(
    "error", [MemoryError, struct.error, SyntaxError, OverflowError, zlib.error, RecursionError, KeyError]
)
def test_whatever_pillow_raises_becomes_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "x.png")

    def fail(*_: object) -> None:
        raise error("odd")

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    assert reason(tmp_path / "x.png") is (Reason.TOO_LARGE if error is MemoryError else Reason.CORRUPT)


def test_heif_without_pillow_heif_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 50)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(Unusable, match=r"debgcd\[heif\]") as caught:
        decode(tmp_path / "x.heic")
    assert caught.value.reason is Reason.UNSUPPORTED


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_random_damage_never_gets_past_the_reasons(tmp_path: Path, kind: str) -> None:
    Image.fromarray(SMOOTH[:30, :40]).save(tmp_path / "whole", kind)
    data = (tmp_path / "whole").read_bytes()
    rng = np.random.default_rng(1)
    for trial in range(60):
        damaged = bytearray(data)
        for at in rng.integers(0, min(len(data), 200) if trial % 2 else len(data), 5):
            damaged[at] = rng.integers(0, 256)
        (tmp_path / "x.jpg").write_bytes(damaged)
        with suppress(Unusable):
            assert decode(tmp_path / "x.jpg").shape[2] == 3


def test_warnings_are_silent_while_decoding_and_only_then(tmp_path: Path) -> None:
    Image.fromarray(NOISE).save(tmp_path / "x.tif", compression="tiff_lzw")
    data = (tmp_path / "x.tif").read_bytes()
    (tmp_path / "x.tif").write_bytes(data[: len(data) // 2])  # Pillow warns of "Corrupt EXIF data" here
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        threads = [threading.Thread(target=lambda: [reason(tmp_path / "x.tif") for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert warnings.filters == before
        assert heard == []
        warnings.warn("still heard", stacklevel=1)
        assert len(heard) == 1


def test_a_bmp_of_runs_that_claims_more_than_it_holds(tmp_path: Path) -> None:
    """Pillow would fill in each missing pixel of a row by itself: some seconds for a hundred million."""

    def bmp(width: int, height: int, data: bytes) -> bytes:
        offset = 14 + 40 + 256 * 4
        header = b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset)
        header += struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(data), 0, 0, 256, 0)  # 1: runs of bytes
        return header + bytes(range(256)) * 4 + data

    (tmp_path / "huge.bmp").write_bytes(bmp(2**23, 13, b"\1\0\0\0" * 13))
    begun = time.process_time()
    assert reason(tmp_path / "huge.bmp") is Reason.CORRUPT
    assert time.process_time() - begun < 1
    (tmp_path / "blank.bmp").write_bytes(bmp(1000, 300, b"\1\0\0\0" * 300))  # of each row one pixel is given
    assert decode(tmp_path / "blank.bmp").shape == (300, 1000, 3)
