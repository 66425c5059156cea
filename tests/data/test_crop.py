"""Objects in boxes: the crop is the image, everywhere, and two boxes of one file are two images."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
from PIL import Image

from debgcd.config.schema import ViewsConfig
from debgcd.data import fingerprints as contents
from debgcd.data.fingerprints import read_contents
from debgcd.data.image.crop import Box, Crop
from debgcd.data.image.decode import Reason, Unusable, decode
from debgcd.data.loader import Files
from debgcd.data.manifest import Manifest, manifest_text, write_manifest
from debgcd.data.scan import scan
from debgcd.data.sources import read_manifest
from debgcd.data.views import resize_short_side
from debgcd.errors import DataError, UsageError
from debgcd.run.categories import categories
from debgcd.run.predictions import Inference, prediction_table
from debgcd.tokens.image_cache import open_image_cache

HEIGHT, WIDTH = 30, 50


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """30 × 50 pixels, no two alike."""
    pixels = np.arange(HEIGHT * WIDTH * 3, dtype=np.uint32) * 2654435761 >> 24
    Image.fromarray((pixels % 256).astype(np.uint8).reshape(HEIGHT, WIDTH, 3)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.mark.parametrize(
    ("box", "rows", "columns"),
    [
        ((0, 0, 50, 30), slice(0, 30), slice(0, 50)),
        ((10, 5, 20, 12), slice(5, 17), slice(10, 30)),
        ((10.4, 4.6, 20.3, 12.2), slice(5, 17), slice(10, 31)),
        ((49, 29, 1, 1), slice(29, 30), slice(49, 50)),
        ((-0.7, -1, 10, 10), slice(0, 9), slice(0, 9)),  # beyond the edge by rounding
        ((40.5, 20.5, 10.4, 10.4), slice(20, 30), slice(40, 50)),
    ],
)
def test_the_crop_is_the_image(photo: Path, box: Box, rows: slice, columns: slice) -> None:
    assert np.array_equal(decode(Crop(photo, box)), decode(photo)[rows, columns])


@pytest.mark.parametrize(
    ("box", "word"),
    [
        ((30, 0, 22, 5), "reach beyond the 50 × 30 pixels"),
        ((0, 25, 5, 7), "reach beyond"),
        ((-2, 0, 5, 5), "reach beyond"),
        ((60, 0, 5, 5), "reach beyond"),
        ((0, 0, 1e300, 5), "reach beyond"),
        ((5, 5, 0, 5), "0 × 5"),
        ((5, 5, 5, -3), "5 × -3"),
        ((0.1, 0.2, 0.3, 0.4), "not shares"),
    ],
)
def test_bad_boxes_are_skipped_in_words(photo: Path, box: Box, word: str) -> None:
    with pytest.raises(Unusable) as caught:
        decode(Crop(photo, box), short_side=1)
    assert caught.value.reason == Reason.BAD_BOX and word in caught.value.detail


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("upright", [True, False])
def test_a_box_is_in_the_upright_image_also_of_a_jpeg_decoded_smaller(
    tmp_path: Path, orientation: int, upright: bool
) -> None:
    smooth = np.kron(np.random.default_rng(0).integers(0, 256, (10, 20, 3)), np.ones((80, 80, 1))).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(smooth).save(tmp_path / "photo.jpg", quality=95, exif=exif)
    box = (161.0, 322.0, 400.0, 380.0)
    exact = decode(tmp_path / "photo.jpg")[322:702, 161:561]
    small = decode(Crop(tmp_path / "photo.jpg", box), 32, upright)
    assert small.shape == (48, 50, 3)  # 1/8
    difference = resize_short_side(exact, 32).float() - resize_short_side(small, 32).float()
    assert difference.abs().mean() < 6  # another place differs by 80
    assert decode(Crop(tmp_path / "photo.jpg", (161, 322, 100, 90)), 32).shape == (
        45,
        50,
        3,
    )  # 1/2: enough of the box is left
    high, wide = (0, 0, 800, 1600), (0, 0, 1600, 800)
    fits, beyond = (high, wide) if orientation in (6, 8) else (wide, high)
    assert np.array_equal(decode(Crop(tmp_path / "photo.jpg", fits)), decode(tmp_path / "photo.jpg"))
    with pytest.raises(Unusable, match="bad-box"):
        decode(Crop(tmp_path / "photo.jpg", beyond), 32)


def table(folder: Path, text: str) -> Path:
    (folder / "m.csv").write_text(text, "utf-8")
    return folder / "m.csv"


def test_tables_with_boxes(photo: Path, tmp_path: Path) -> None:
    text = "path,label,x,y,w,h\nphoto.png,cat,0,0,10,10\nphoto.png,dog,20.5,0,10,10\nphoto.png,,,,,\n"
    manifest = read_manifest(table(tmp_path, text))
    assert manifest.paths == (Crop(photo, (0, 0, 10, 10)), Crop(photo, (20.5, 0, 10, 10)), photo)
    assert [str(path) for path in manifest.paths[:2]] == [f"{photo}#xywh=0,0,10,10", f"{photo}#xywh=20.5,0,10,10"]
    assert manifest.labels == ("cat", "dog", None) and not manifest.skipped
    write_manifest(manifest, tmp_path / "again.csv")
    assert read_manifest(tmp_path / "again.csv") == manifest
    assert manifest_text(read_manifest(tmp_path / "again.csv")) == manifest_text(manifest)
    assert "x,y,w,h" not in manifest_text(manifest.select([2]))
    assert pickle.loads(pickle.dumps(manifest.paths)) == manifest.paths  # worker processes get them

    boxes = {"x": [0.0, 20.5, None], "y": [0, 0, None], "w": [10, 10, None], "h": [10, 10, None]}
    columns: dict[str, Any] = {"path": ["photo.png"] * 3, "label": ["cat", "dog", None], **boxes}
    pq.write_table(pyarrow.table(columns), tmp_path / "m.parquet")
    assert read_manifest(tmp_path / "m.parquet") == manifest


def test_duplicates_have_the_same_file_and_the_same_box(photo: Path, tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(photo)
    text = "path,label,x,y,w,h\nphoto.png,,1,2,3,4\nlink.png,cat,1.0,2,3,4.0\nlink.png,dog,1,2,3,5\n"
    manifest = read_manifest(table(tmp_path, text))
    assert manifest.labels == ("cat", "dog")
    (skipped,) = manifest.skipped
    assert skipped.file == f"{photo}#xywh=1,2,3,4"
    assert skipped.reason == f"duplicate: the same box as {tmp_path / 'link.png'}#xywh=1,2,3,4"
    with pytest.raises(DataError, match="#xywh=1,2,3,4 has two labels, 'a' and 'b'"):
        read_manifest(table(tmp_path, "path,label,x,y,w,h\nphoto.png,a,1,2,3,4\nphoto.png,b,1,2,3,4\n"))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1,2,3,", "row 2 .* a box without h"),
        (",,,7", "row 2 .* a box without x, y, w"),
        ("1,2,three,4", "row 2 .* w = 'three'"),
        ("1,nan,3,4", "row 2 .* y = 'nan'"),
        ("1,2,3,inf", "row 2 .* h = 'inf'"),
        ('"1,5",2,3,4', "x = '1,5'.*decimal point"),
    ],
)
def test_boxes_that_are_not_four_numbers_are_refused(tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_manifest(table(tmp_path, f"path,x,y,w,h\na.png,{row}\n"))


def test_columns_that_are_no_box(photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_manifest(table(tmp_path, "path,x,y\nphoto.png,48.1,11.6\n")).paths == (photo,)
    assert "ignored: 'x', 'y'" in capsys.readouterr().err
    with pytest.raises(UsageError, match="three columns of a box but no 'h'"):
        read_manifest(table(tmp_path, "path,x,y,w\nphoto.png,1,2,3\n"))


def test_the_scan_tells_boxes_apart(photo: Path, tmp_path: Path) -> None:
    text = "path,x,y,w,h\nphoto.png,0,0,10,10\nphoto.png,45,0,10,10\ngone.png,0,0,10,10\n"
    manifest = scan(read_manifest(table(tmp_path, text)))
    assert manifest.paths == (Crop(photo, (0, 0, 10, 10)),)
    assert [(entry.file, entry.reason.split(":")[0]) for entry in manifest.skipped] == [
        (f"{photo}#xywh=45,0,10,10", "bad-box"),
        (f"{tmp_path / 'gone.png'}#xywh=0,0,10,10", "missing"),
    ]


def test_the_hash_depends_on_the_box_and_a_file_is_read_once(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    original: Callable[..., bytes] = contents.file_digest
    monkeypatch.setattr(contents, "file_digest", lambda path: read.append(path) or original(path))
    one, two = Crop(photo, (0, 0, 10, 10)), Crop(photo, (0, 0, 10, 11))
    found = read_contents([one, two, photo], tmp_path / "cache")
    assert len(read) == 1 and len(set(found.digests)) == 1
    hashes = [read_contents([path], tmp_path / "cache").sha256 for path in (one, two, photo)]
    assert len(set(hashes)) == 3


def test_loader_and_image_cache_hold_the_crop(photo: Path, tmp_path: Path) -> None:
    views = ViewsConfig(size=8, resize=10)
    crops = [Crop(photo, (0, 0, 10, 10)), Crop(photo, (30, 15, 12, 10))]
    files = Files(crops, views)
    kept = open_image_cache(crops, views, tmp_path / "cache", 0, lambda done, total, note="": None)
    for number, (x, y, w, h) in enumerate([(0, 0, 10, 10), (30, 15, 12, 10)]):
        assert np.array_equal(files(number).permute(1, 2, 0), decode(photo)[y : y + h, x : x + w])
        assert np.array_equal(kept(number), files(number))
    other = open_image_cache(crops[::-1], views, tmp_path / "cache", 0, lambda done, total, note="": None)
    assert np.array_equal(other(0), files(1))


def test_predictions_tell_boxes_apart(photo: Path) -> None:
    said = Inference(np.zeros((2, 1), np.int64), np.ones((2, 1), np.float32))
    crops = [Crop(photo, (0, 0, 10, 10)), Crop(photo, (30, 15, 12.5, 10))]
    table = prediction_table(crops, said, categories(("cat",), 1), None)
    assert table["path"] == [f"{photo}#xywh=0,0,10,10", f"{photo}#xywh=30,15,12.5,10"]


def test_groups_as_numbers() -> None:
    paths = tuple(Path(f"/{i}.png") for i in range(5))
    splits = ("train", "test", "train", "train", "train")
    manifest = Manifest(paths, (None,) * 5, (None,) * 5, splits, ("b", "x", None, "a", "b"))
    assert manifest.training_groups.tolist() == [0, -1, 1, 0]
