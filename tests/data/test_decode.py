"""Whatever image a user has: the right pixels."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from debgcd.data.image.decode import MAX_ASPECT, decode

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (120, 160, 3), dtype=np.uint8)
ROWS, COLUMNS = np.mgrid[0:120, 0:160]
SMOOTH = np.stack([ROWS, COLUMNS, ROWS + COLUMNS], -1).astype(np.uint8)  # lossy formats keep this nearly exactly


def png(width: int, height: int, depth: int, colour: int, data: bytes, extra: bytes = b"") -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("name", ["x.png", "x.bmp", "x.ppm", "x.tif", "x.webp"])
def test_lossless_formats_keep_every_pixel(tmp_path: Path, name: str) -> None:
    options = {"lossless": True} if name == "x.webp" else {}
    Image.fromarray(NOISE).save(tmp_path / name, **options)
    pixels = decode(tmp_path / name)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    np.testing.assert_array_equal(pixels, NOISE)


@pytest.mark.parametrize(
    ("name", "kind"), [("x.jpg", "JPEG"), ("x.heic", "HEIF"), ("x.avif", "AVIF"), ("x.png", "JPEG")]
)
def test_lossy_formats_are_told_by_their_bytes_not_by_their_name(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "HEIF":
        pillow_heif.register_heif_opener()
    Image.fromarray(SMOOTH).save(tmp_path / name, kind, quality=95)
    assert np.abs(decode(tmp_path / name).astype(int) - SMOOTH).mean() < 3


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(tmp_path: Path, orientation: int, suffix: str) -> None:
    # EXIF says where the stored row 0 and column 0 belong: (stored -> upright) by hand for each of the 8 values.
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16], upright[:8, 16:], upright[8:, :16] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],  # the 0th row is the visual right side
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: upright.transpose(1, 0, 2)[:, ::-1],  # the 0th row is the visual left side, bottom first
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if suffix == "webp" else {"quality": 100, "subsampling": 0} if suffix == "jpg" else {}
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / f"x.{suffix}", exif=exif, **options)
    pixels = decode(tmp_path / f"x.{suffix}")
    assert pixels.shape == upright.shape
    assert np.abs(pixels.astype(int) - upright).max() < 8
    with Image.open(tmp_path / f"x.{suffix}") as image:  # as the public loaders of the benchmarks read it
        np.testing.assert_array_equal(decode(tmp_path / f"x.{suffix}", upright=False), np.asarray(image.convert("RGB")))


def test_damaged_exif_does_not_cost_the_image(tmp_path: Path) -> None:
    Image.fromarray(SMOOTH).save(tmp_path / "x.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + b"\x99" * 9)
    assert decode(tmp_path / "x.jpg").shape == SMOOTH.shape


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 255, 256, 4096], [32768, 40000, 65279, 65535]], np.uint16)
    if suffix == "pgm":
        (tmp_path / "x.pgm").write_bytes(b"P5 4 2 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(tmp_path / f"x.{suffix}")
    pixels = decode(tmp_path / f"x.{suffix}")
    np.testing.assert_array_equal(pixels, np.repeat((values >> 8)[..., None], 3, -1))


def test_big_endian_16_bit_tiff(tmp_path: Path) -> None:
    # 4 × 1 pixels, written by hand: Pillow opens it as I;16B
    entries = [(256, 4), (257, 1), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 8)]
    body = struct.pack(">4H", 0, 300, 0x8000, 0xFFFF)
    table = b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in entries)
    (tmp_path / "x.tif").write_bytes(b"MM\0*" + struct.pack(">I", 16) + body + struct.pack(">H", 9) + table + b"\0" * 4)
    assert decode(tmp_path / "x.tif")[0, :, 0].tolist() == [0, 1, 128, 255]


def test_16_bit_rgb_png(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(1, 1, 16, 2, b"\0" + struct.pack(">3H", 0x00FF, 0x8001, 0xFFFF)))
    assert decode(tmp_path / "x.png").tolist() == [[[0, 128, 255]]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.25, 0.5], [0, 64, 128]),  # within 0..1: taken as it is, so a dim image stays dim
        ([-10.0, 0.0, 10.0], [0, 128, 255]),  # otherwise from least to greatest
        ([100.0, 300.0, np.nan], [0, 255, 0]),
        ([-np.inf, 2.0, 4.0], [0, 0, 255]),
        ([7.0, 7.0, 7.0], [0, 0, 0]),
        ([0.0, 3e38, -3e38], [128, 255, 0]),
    ],
)
def test_float_tiff(tmp_path: Path, values: list[float], expected: list[int]) -> None:
    Image.fromarray(np.array([values], np.float32)).save(tmp_path / "x.tif")
    assert decode(tmp_path / "x.tif")[0, :, 0].tolist() == expected


def test_32_bit_integer_tiff_is_stretched(tmp_path: Path) -> None:
    Image.fromarray(np.array([[-1_000_000, 0, 1_000_000]], np.int32)).save(tmp_path / "x.tif")
    assert decode(tmp_path / "x.tif")[0, :, 2].tolist() == [0, 128, 255]


def test_transparency_lies_over_white(tmp_path: Path) -> None:
    rgba = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 51]]], np.uint8)
    Image.fromarray(rgba).save(tmp_path / "rgba.png")
    assert decode(tmp_path / "rgba.png").tolist() == [[[255, 0, 0], [255, 255, 255], [204, 204, 204]]]

    Image.fromarray(np.array([[[10, 255], [10, 0]]], np.uint8), "LA").save(tmp_path / "la.png")
    assert decode(tmp_path / "la.png").tolist() == [[[10] * 3, [255] * 3]]

    palette = Image.new("P", (3, 1))
    palette.putpalette([200, 100, 50, 1, 2, 3, 9, 9, 9])
    palette.putdata([0, 1, 2])
    palette.save(tmp_path / "plain.png")
    assert decode(tmp_path / "plain.png").tolist() == [[[200, 100, 50], [1, 2, 3], [9, 9, 9]]]
    palette.save(tmp_path / "index.gif", transparency=1)
    assert decode(tmp_path / "index.gif").tolist() == [[[200, 100, 50], [255, 255, 255], [9, 9, 9]]]
    palette.save(tmp_path / "bytes.png", transparency=bytes([255, 0, 0]))
    assert decode(tmp_path / "bytes.png").tolist() == [[[200, 100, 50], [255, 255, 255], [255, 255, 255]]]

    Image.new("RGB", (2, 1), (1, 2, 3)).save(tmp_path / "key.png", transparency=(1, 2, 3))
    assert decode(tmp_path / "key.png").tolist() == [[[255] * 3] * 2]


def test_grey_one_bit_and_cmyk(tmp_path: Path) -> None:
    Image.fromarray(NOISE[..., 0]).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(decode(tmp_path / "grey.png"), np.repeat(NOISE[..., :1], 3, -1))
    Image.fromarray(NOISE[..., 0] > 127).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(decode(tmp_path / "bits.png")[..., 1], np.where(NOISE[..., 0] > 127, 255, 0))
    # Pillow writes CMYK JPEG the way Adobe does, inverted; cyan + yellow is green
    Image.new("CMYK", (32, 32), (255, 0, 255, 0)).save(tmp_path / "cmyk.jpg", quality=100)
    assert np.abs(decode(tmp_path / "cmyk.jpg", short_side=8).astype(int) - [0, 255, 0]).max() < 5


@pytest.mark.parametrize("name", ["x.gif", "x.webp", "x.tif", "x.png"])
def test_of_an_animation_the_first_frame(tmp_path: Path, name: str) -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if name == "x.webp" else {}
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
    assert Image.open(tmp_path / name).n_frames == 3
    np.testing.assert_array_equal(decode(tmp_path / name), np.full((10, 20, 3), (255, 0, 0)))


@pytest.mark.parametrize(
    ("size", "short", "expected"),
    [((1600, 1200), 100, (200, 150)), ((1600, 1200), 200, (400, 300)), ((1600, 1200), 400, (800, 600))],
)
def test_short_side_decodes_photos_smaller_but_never_too_small(
    tmp_path: Path, size: tuple[int, int], short: int, expected: tuple[int, int]
) -> None:
    Image.linear_gradient("L").resize(size).save(tmp_path / "x.jpg")
    pixels = decode(tmp_path / "x.jpg", short)
    assert pixels.shape == (expected[1], expected[0], 3)
    whole = np.asarray(Image.fromarray(decode(tmp_path / "x.jpg")).resize(expected, Image.Resampling.BOX))
    assert np.abs(pixels.astype(int) - whole).max() <= 3
    assert decode(tmp_path / "x.jpg", 1201).shape == (1200, 1600, 3)
    with pytest.raises(ValueError, match="short_side"):
        decode(tmp_path / "x.jpg", 0)


def test_extreme_shapes(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "dot.png")
    assert decode(tmp_path / "dot.png").tolist() == [[[1, 2, 3]]]
    ramp = np.repeat((np.arange(2000) // 8).astype(np.uint8)[None, :, None], 3, -1)
    Image.fromarray(ramp).save(tmp_path / "wide.png")
    np.testing.assert_array_equal(decode(tmp_path / "wide.png"), ramp[:, 996:1004])
    Image.fromarray(ramp.transpose(1, 0, 2).copy()).save(tmp_path / "tall.png")
    np.testing.assert_array_equal(decode(tmp_path / "tall.png"), ramp[:, 996:1004].transpose(1, 0, 2))
    Image.new("RGB", (MAX_ASPECT * 5, 5)).save(tmp_path / "just.png")
    assert decode(tmp_path / "just.png").shape == (5, 40, 3)
