"""Manifests: CSV and Parquet files, and folders with any names in them."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow
import pyarrow.parquet
import pytest
from fuzzing import GIGABYTE, damaged, fuzz, peak_in_a_child, survives, values
from hypothesis import assume, given
from PIL import Image

from debgcd.data.image.crop import Box, Crop
from debgcd.data.image.decode import Unusable, decode
from debgcd.data.scan import scan
from debgcd.data.sources import read_manifest

pytestmark = pytest.mark.tries("damaged and hostile tables", "refused")

COLUMNS = ["path", "label", "truth", "split", "group", "x", "y", "w", "h"]
CSV = [
    b"path,label,truth,split,group\na.png,cat,cat,train,\nb.png,,dog,test,1\n",
    b'\xef\xbb\xbfpath;label\r\n"a ""b"".png";c\xc3\xa4t\r\nc.png;\r\n',
    b"path\tlabel\na.png\t-1\n../b.png\t\n\n",
    b"path,label,truth,split,group,x,y,w,h\nbox.png,cat,,,1,0,0.5,4,5.25\nbox.png,,,,1,8,8,8,8\nbox.png,,,,,,,,\n",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    Image.new("RGB", (16, 16), "red").save(folder / "box.png")
    return folder


@fuzz
@given(
    content=damaged(CSV) | st.binary(max_size=200) | st.text(max_size=200).map(lambda text: b"path," + text.encode())
)
def test_damaged_csv(folder: Path, content: bytes) -> None:
    (folder / "m.csv").write_bytes(content)
    survives(lambda: scan(read_manifest(folder / "m.csv"), workers=0))


@fuzz
@given(
    rows=st.lists(st.lists(st.text(max_size=10), min_size=1, max_size=len(COLUMNS)), max_size=4),
    delimiter=st.sampled_from(",;\t"),
)
def test_csv_of_any_texts(folder: Path, rows: Sequence[Sequence[str]], delimiter: str) -> None:
    lines = [delimiter.join(f'"{cell}"' for cell in row) for row in [COLUMNS, *rows]]
    (folder / "m.csv").write_text("\n".join(lines), "utf-8", errors="surrogatepass")
    survives(lambda: scan(read_manifest(folder / "m.csv"), workers=0))


def parquet(folder: Path, columns: dict[str, list[Any]], **options: Any) -> bytes:
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "original.parquet", **options)
    return (folder / "original.parquet").read_bytes()


def originals(folder: Path) -> list[bytes]:
    rows = {"path": ["a.png", "b.png"], "label": ["cat", None], "split": ["train", "train"]}
    numbers = {"path": ["a.png"], "label": [3], "truth": [2.5], "__index_level_0__": [0]}
    boxes = {"path": ["box.png", "box.png"], "x": [0, 1], "y": [0.5, None], "w": [3, 4], "h": ["5", "6"]}
    return [
        parquet(folder, boxes),
        parquet(folder, rows),
        parquet(folder, rows, compression="none"),
        parquet(folder, numbers, use_dictionary=False),
    ]


def test_damaged_parquet(folder: Path) -> None:
    files = originals(folder)

    @fuzz
    @given(content=damaged(files))
    def check(content: bytes) -> None:
        (folder / "m.parquet").write_bytes(content)
        survives(lambda: read_manifest(folder / "m.parquet"))

    check()


@fuzz
@given(columns=st.dictionaries(st.sampled_from([*COLUMNS, "Path", ""]), values, min_size=1, max_size=6))
def test_parquet_of_any_values(folder: Path, columns: dict[str, Any]) -> None:
    try:
        table = pyarrow.table({name: [value] for name, value in columns.items()})
        pyarrow.parquet.write_table(table, folder / "m.parquet")
    except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError, TypeError):
        assume(False)
    survives(lambda: read_manifest(folder / "m.parquet"))


SIDES = st.floats() | st.floats(-20, 20) | st.integers(-20, 20).map(float)


@fuzz
@given(box=st.tuples(SIDES, SIDES, SIDES, SIDES), small=st.booleans())
def test_any_box(folder: Path, box: Box, small: bool) -> None:
    with suppress(Unusable):  # and nothing else
        found = decode(Crop(folder / "box.png", box), 1 if small else None)
        assert 1 <= found.shape[0] <= min(16, box[3] + 1) and 1 <= found.shape[1] <= min(16, box[2] + 1)


@fuzz
@given(cells=st.tuples(*[st.text(max_size=4) | SIDES.map(str) | st.just("")] * 4))
def test_boxes_of_any_texts(folder: Path, cells: tuple[str, ...]) -> None:
    with open(folder / "b.csv", "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["path", *"xywh"], ["box.png", *cells]])
    survives(lambda: scan(read_manifest(folder / "b.csv"), workers=0))


NAMES = st.sampled_from(["labelled", "unlabelled", "_unlabelled", "a.png", "b.jpg", "c", " ", "Thumbs.db", ".x", "-1"])


@fuzz
@given(
    files=st.dictionaries(
        st.lists(NAMES | st.text(min_size=1, max_size=5), min_size=1, max_size=4).map(tuple),
        st.binary(max_size=20),
        max_size=6,
    )
)
def test_folders_of_any_names(folder: Path, files: dict[tuple[str, ...], bytes]) -> None:
    root = folder / "images"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for parts, content in files.items():
        names = [part.encode("utf-8", "surrogatepass").replace(b"/", b"_").replace(b"\0", b"_") for part in parts]
        path = os.path.join(os.fsencode(root), *(name if name not in (b".", b"..") else b"_" for name in names))
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
    survives(lambda: scan(read_manifest(root), workers=0))


def test_tables_take_no_gigabyte(folder: Path) -> None:
    files = originals(folder)

    def work() -> None:
        for content in files:
            for at in range(0, len(content), 7):
                changed = content[:at] + b"\xff\xff\xff\x7f" + content[at + 4 :]
                (folder / "n.parquet").write_bytes(changed)
                survives(lambda: read_manifest(folder / "n.parquet"))

    assert peak_in_a_child(work) < GIGABYTE


DETECTIONS = [
    b'{"info": {"format_version": "1.6", "detector": "v5", "detector_metadata": {"typical_detection_threshold": 0.2}}, '
    b'"detection_categories": {"1": "animal"}, "images": [{"file": "box.png", "width": 16, "height": 16, "seq_id": 1, '
    b'"datetime": "2025:01:01 10:00:00", "detections": [{"category": "1", "conf": 0.9, "bbox": [0, 0.1, 0.5, 1]}]}, '
    b'{"file": "bad.png", "failure": "no access", "detections": null}]}',
    b'[{"file": "box.png", "detections": [{"category": "animal", "confidence": 0.9, "bbox": [0.0, 1.5, 9, 16]}]}]',
]


@fuzz
@given(content=damaged(DETECTIONS) | st.binary(max_size=100))
def test_damaged_detections(folder: Path, content: bytes) -> None:
    (folder / "md.json").write_bytes(content)
    survives(lambda: scan(read_manifest(folder / "md.json"), workers=0))


ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.just([]),
    st.just({}),
    st.just("box.png"),
)
BOXES = st.lists(st.one_of(st.floats(-1, 20), ANY), max_size=4)


@fuzz
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "file": st.one_of(st.just("box.png"), st.text(alphabet="a\\/.\0\ud800", max_size=4)),
                "detections": st.one_of(
                    ANY, st.lists(st.fixed_dictionaries({"category": st.just("1"), "conf": ANY, "bbox": BOXES}))
                ),
            },
            optional={"width": ANY, "height": ANY, "datetime": ANY, "seq_id": ANY, "failure": ANY},
        ),
        max_size=3,
    ),
    ANY,
)
def test_detections_of_any_values(folder: Path, images: list[dict[str, Any]], least: Any) -> None:
    info = {"detector_metadata": {"typical_detection_threshold": least}}
    content = {"info": info, "detection_categories": {"1": "animal"}, "images": images}
    (folder / "md.json").write_text(json.dumps(content), "utf-8")
    survives(lambda: scan(read_manifest(folder / "md.json"), workers=0))
