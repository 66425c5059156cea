"""Photos in about the size needed: as good as whole ones, and the same with simplejpeg as without it."""

import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from debgcd.data.image import jpeg
from debgcd.data.image.decode import Reason, Unusable, decode
from debgcd.data.views import CENTRE, crop_view, resize_short_side
from debgcd.model.load import load_backbone

RNG = np.random.default_rng(0)
ROWS, COLUMNS = np.mgrid[0:61, 0:83]
PHOTO = (np.stack([ROWS * 2, COLUMNS * 2, ROWS + COLUMNS], -1) // 2 + RNG.integers(0, 64, (61, 83, 3))).astype(np.uint8)


def encoded(pixels: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


FORMS = {
    "colour": encoded(PHOTO),
    "fine colour": encoded(PHOTO, subsampling=0, quality=98),
    "grey": encoded(PHOTO[..., 0]),
    "progressive": encoded(PHOTO, progressive=True),
    "progressive grey": encoded(PHOTO[..., 0], progressive=True),
    "restarts": encoded(PHOTO, restart_marker_blocks=3),
    "stored as RGB": encoded(PHOTO, keep_rgb=True),
    "turned": encoded(PHOTO, exif=turned(6)),
    "strip": encoded(PHOTO[:3]),
}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and simplejpeg is not installed for the rest of the test."""
    return lambda: monkeypatch.setattr(jpeg, "library", lambda: None)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what simplejpeg decoded."""
    real, shapes = jpeg.library(), []
    assert real is not None, "these tests need simplejpeg: pip install 'debgcd[dev]'"

    def spy(*arguments: object, **options: object) -> np.ndarray:
        pixels = real.decode_jpeg(*arguments, **options)
        shapes.append(pixels.shape)
        return pixels

    fake = SimpleNamespace(decode_jpeg_header=real.decode_jpeg_header, decode_jpeg=spy)
    monkeypatch.setattr(jpeg, "library", lambda: fake)
    return shapes


def outcome(path: Path, short_side: int | None) -> np.ndarray | str:
    try:
        return decode(path, short_side)
    except Unusable as why:
        return str(why)


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"strip"}))  # which is cropped
def test_without_a_size_the_pixels_are_pillows(tmp_path: Path, decoded: list[tuple[int, ...]], form: str) -> None:
    """Public code reads with Pillow; simplejpeg's pixels differ by a grey level or two, and its scaling by more."""
    (tmp_path / "x.jpg").write_bytes(FORMS[form])
    with Image.open(tmp_path / "x.jpg") as image:
        np.testing.assert_array_equal(decode(tmp_path / "x.jpg", upright=False), np.asarray(image.convert("RGB")))
    assert decoded == []


@pytest.mark.parametrize("short_side", [1, 5, 20])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_pixels_with_simplejpeg_as_without(
    tmp_path: Path, without: Callable[[], None], decoded: list[tuple[int, ...]], form: str, short_side: int
) -> None:
    (tmp_path / "x.jpg").write_bytes(FORMS[form])
    one = decode(tmp_path / "x.jpg", short_side)
    assert len(decoded) == 1, "simplejpeg was not used"
    assert one.flags.c_contiguous and one.flags.writeable and one.dtype == np.uint8
    np.testing.assert_array_equal(decode(tmp_path / "x.jpg", short_side), one)
    without()
    other = decode(tmp_path / "x.jpg", short_side)
    assert len(decoded) == 2
    assert one.shape == other.shape
    assert np.abs(one.astype(int) - other).max() <= 2


def test_cmyk_is_left_to_pillow(tmp_path: Path, decoded: list[tuple[int, ...]]) -> None:
    Image.new("CMYK", (64, 64), (255, 0, 255, 0)).save(tmp_path / "x.jpg", quality=100)
    for short_side in (None, 4):
        assert np.abs(decode(tmp_path / "x.jpg", short_side).astype(int) - [0, 255, 0]).max() < 5
    assert decoded == []


def test_what_follows_the_image_is_neither_read_nor_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[tuple[int, ...]]
) -> None:
    """Phones append a video to a photo."""
    (tmp_path / "x.jpg").write_bytes(FORMS["colour"])
    alone = decode(tmp_path / "x.jpg", 256)
    with open(tmp_path / "x.jpg", "r+b") as file:
        file.truncate(2**30)  # zeros that take no space on the disk
    spied, lengths = jpeg.library(), []
    header = SimpleNamespace(
        decode_jpeg=spied.decode_jpeg,
        decode_jpeg_header=lambda data: lengths.append(len(data)) or spied.decode_jpeg_header(data),
    )
    monkeypatch.setattr(jpeg, "library", lambda: header)
    np.testing.assert_array_equal(decode(tmp_path / "x.jpg", 256), alone)
    assert len(decoded) == 2
    assert lengths[0] < 2**23


def test_a_huge_header_is_refused_before_simplejpeg_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = FORMS["colour"]
    at = data.index(b"\xff\xc0") + 5
    assert data[at : at + 4] == bytes([0, 61, 0, 83])
    (tmp_path / "x.jpg").write_bytes(data[:at] + b"\xfa\xfa\xfa\xfa" + data[at + 4 :])
    monkeypatch.setattr(jpeg, "library", lambda: pytest.fail("not to be asked"))
    with pytest.raises(Unusable) as caught:
        decode(tmp_path / "x.jpg", 1)
    assert caught.value.reason is Reason.TOO_LARGE


def failing(error: type[Exception]) -> Callable[..., np.ndarray]:
    def fail(*_: object, **__: object) -> np.ndarray:
        raise error("odd")

    return fail


@pytest.mark.parametrize(
    "library",
    [
        SimpleNamespace(
            decode_jpeg_header=lambda data: (6100, 8300, "YCbCr", "420"), decode_jpeg=lambda *_, **__: PHOTO[:8]
        ),
        SimpleNamespace(decode_jpeg_header=failing(ValueError)),
        SimpleNamespace(decode_jpeg_header=lambda data: (61, 83, "YCbCr", "420"), decode_jpeg=failing(MemoryError)),
        SimpleNamespace(decode_jpeg_header=lambda data: (61, 83, "YCbCr", "420"), decode_jpeg=failing(RuntimeError)),
    ],
    ids=["another size", "bad header", "no memory", "broken"],
)
def test_what_simplejpeg_refuses_pillow_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: Callable[[], None], library: ModuleType
) -> None:
    (tmp_path / "x.jpg").write_bytes(FORMS["colour"])
    monkeypatch.setattr(jpeg, "library", lambda: library)
    one = decode(tmp_path / "x.jpg", 5)
    without()
    np.testing.assert_array_equal(decode(tmp_path / "x.jpg", 5), one)


@pytest.mark.parametrize("error", [ImportError, ValueError])
def test_without_simplejpeg_or_with_one_that_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    real = __import__

    def fail(name: str, *rest: object) -> object:
        if name == "simplejpeg":
            raise error("numpy.dtype size changed")
        return real(name, *rest)

    monkeypatch.setattr("builtins.__import__", fail)
    jpeg.library.cache_clear()
    try:
        assert jpeg.library() is None
        (tmp_path / "x.jpg").write_bytes(FORMS["colour"])
        assert decode(tmp_path / "x.jpg").shape == PHOTO.shape
    finally:
        jpeg.library.cache_clear()


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Flip bits, cut off, insert, leave out, or put in a marker, somewhere behind the signature."""
    at, count = int(rng.integers(3, len(data))), int(rng.integers(1, 40))
    kind = rng.integers(0, 6)
    if kind == 0:
        flipped = bytearray(data)
        for place in rng.integers(3, len(data), 3):
            flipped[place] ^= 1 << rng.integers(0, 8)
        return bytes(flipped)
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + rng.bytes(count) + data[at:]
    if kind == 3:
        return data[:at] + data[at + count :]
    if kind == 4:
        return data[:at] + b"\xff" + bytes([rng.integers(0xC0, 0xFF)]) + data[at:]
    return data[: max(3, len(data) - count)] + b"\xff\xd9"  # too short, though it ends as it should


def test_damaged_files_fare_the_same_with_simplejpeg_as_without(
    tmp_path: Path, decoded: list[tuple[int, ...]], without: Callable[[], None]
) -> None:
    rng = np.random.default_rng(7)
    files = []
    for trial in range(240):
        files.append(tmp_path / f"{trial}.jpg")
        files[-1].write_bytes(damage(list(FORMS.values())[trial % len(FORMS)], rng))
    ours = [outcome(path, short_side) for path in files for short_side in (256, 1)]
    assert len(decoded) > 30
    without()
    pillow = [outcome(path, short_side) for path in files for short_side in (256, 1)]
    assert {"truncated", "corrupt"} <= {found.split(":")[0] for found in pillow if isinstance(found, str)}
    for one, other in zip(ours, pillow, strict=True):
        if isinstance(other, str) or isinstance(one, str):
            assert one == other
        else:
            assert one.shape == other.shape
            assert np.abs(one.astype(int) - other).max() <= 2


@pytest.mark.parametrize("form", ["colour", "grey", "progressive", "restarts"])
def test_no_rows_are_made_up_for_a_file_cut_off_anywhere(tmp_path: Path, form: str) -> None:
    data = FORMS[form]
    for end in [*range(3, len(data) - 2, 97), len(data) - 3, len(data) - 2]:
        (tmp_path / "x.jpg").write_bytes(data[:end])
        for short_side in (None, 1):
            assert str(outcome(tmp_path / "x.jpg", short_side)).startswith("truncated"), end


def test_scaled_down_as_far_as_the_size_needed_allows(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for width, height, short_side in rng.integers(1, 3000, (2000, 3)).tolist():
        scale = jpeg.scale_down(width, height, short_side)
        enough = [s for s in (1, 2, 4, 8) if min(width, height) / s >= 11 / 8 * short_side]
        assert scale == max(enough, default=1)
    assert jpeg.scale_down(4000, 3000, 256) == 8


@pytest.mark.parametrize(("width", "height"), [(88, 176), (176, 93), (95, 92), (91, 177), (175, 169)])
def test_sizes_that_are_no_multiple_are_rounded(tmp_path: Path, width: int, height: int) -> None:
    Image.new("RGB", (width, height), "red").save(tmp_path / "x.jpg")
    for short_side, scale in ((8, 8), (16, 4), (32, 2), (70, 1)):
        pixels = decode(tmp_path / "x.jpg", short_side)
        assert pixels.shape == (int(height / scale + 0.5), int(width / scale + 0.5), 3)
        assert np.abs(pixels.astype(int) - [254, 0, 0]).max() <= 2


def sharpened_slowly(pixels: np.ndarray) -> np.ndarray:
    """Each value less a 20th of its second differences; at an edge the neighbour beyond it is the value itself."""
    result = np.zeros_like(pixels)
    rows, columns, channels = pixels.shape
    for i in range(rows):
        for j in range(columns):
            for c in range(channels):
                value = int(pixels[i, j, c])
                around = [(i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)]
                inside = [int(pixels[a, b, c]) for a, b in around if 0 <= a < rows and 0 <= b < columns]
                sharp = value - sum(other - value for other in inside) / 20
                result[i, j, c] = min(255, max(0, np.floor(sharp + 0.5)))
    return result


@pytest.mark.parametrize("shape", [(9, 13, 3), (1, 1, 3), (1, 7, 3), (2, 1, 3)])
def test_sharpening_against_a_slow_form(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    pixels[0, 0] = (0, 255, 128)
    np.testing.assert_array_equal(jpeg.sharpen(pixels, shape[0], shape[1]), sharpened_slowly(pixels))
    np.testing.assert_array_equal(jpeg.sharpen(pixels // 255 * 255, *shape[:2]), sharpened_slowly(pixels // 255 * 255))


def test_sharpening_undoes_the_mean_over_boxes() -> None:
    """A wave of five pixels, sampled after a mean over boxes of a pixel's width, comes back with its own height."""
    fine = 100 * np.sin(2 * np.pi * (np.arange(8 * 400) + 0.5) / 40 + 0.3)
    boxes = (128 + fine.reshape(400, 8).mean(1)).round().astype(np.uint8)
    centres = 100 * np.sin(2 * np.pi * (np.arange(400) * 8 + 4) / 40 + 0.3)
    sharp = jpeg.sharpen(np.repeat(boxes[None, :, None], 3, -1), 1, 400)[0, :, 0]
    assert np.abs(sharp - 128.0 - centres)[1:-1].max() < 1.5
    assert np.abs(boxes - 128.0 - centres)[1:-1].max() > 5


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_a_photo_of_12_megapixels_gives_the_features_that_the_whole_of_it_gives(tmp_path: Path, name: str) -> None:
    """Against PIL's way: decode all of it, then resize with bicubic and antialias."""
    photo = Image.fromarray(load_sample_image(name)).resize((4000, 3000), Image.Resampling.BICUBIC)
    grain = np.random.default_rng(3).integers(-12, 13, (3000, 4000, 1), dtype=np.int16)
    Image.fromarray((np.asarray(photo) + grain).clip(0, 255).astype(np.uint8)).save(tmp_path / "x.jpg", quality=90)

    pixels = decode(tmp_path / "x.jpg", 256)
    assert pixels.shape == (375, 500, 3)
    ours = resize_short_side(pixels, 256)
    pil = Image.open(tmp_path / "x.jpg").resize(ours.shape[:0:-1], Image.Resampling.BICUBIC)
    expected = torch.from_numpy(np.array(pil)).permute(2, 0, 1)
    assert (ours.int() - expected.int()).abs().float().mean() < 1

    backbone = load_backbone("lite0", tuned_blocks=1, image_size=224)
    views = torch.stack([crop_view(image, CENTRE[0], 224) for image in (ours, expected)])
    with torch.inference_mode():
        one, other = backbone.tail(backbone.trunk(views))
    assert torch.cosine_similarity(one, other, dim=0) > 0.999
