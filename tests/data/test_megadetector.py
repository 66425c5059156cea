"""MegaDetector's results become boxes, sequences groups; both forms; what is wrong is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from debgcd.data.image.crop import Crop
from debgcd.data.megadetector import read_detections, threshold
from debgcd.data.sources import read_manifest
from debgcd.errors import DataError

Command = Callable[..., Any]


def detection(conf: float, box: list[float], category: str = "1") -> dict[str, Any]:
    return {"category": category, "conf": conf, "bbox": box}


def image(folder: Path, name: str, size: tuple[int, int] = (200, 100), orientation: int = 1) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size, (90, 90, 90)).save(folder / name, exif=exif)
    return name


def write(folder: Path, images: list[dict[str, Any]], info: dict[str, Any] | None = None, **more: Any) -> Path:
    content = {
        "info": {"format_version": "1.6", "detector": "md_v5a.0.0.pt", **(info or {})},
        "detection_categories": {"1": "animal", "2": "person"},
        "images": images,
        **more,
    }
    place = folder / "md.json"
    place.write_text(json.dumps(content))
    return place


def test_animals_above_the_files_own_threshold_become_boxes(tmp_path: Path) -> None:
    """Shares of the upright image in whole pixels; persons, weak detections and blank photographs are no images."""
    images = [
        {
            "file": image(tmp_path, "a/1.jpg"),
            "detections": [
                detection(0.9, [0.1, 0.2, 0.5, 0.5]),
                detection(0.35, [0.0, 0.0, 0.25, 1.0]),
                detection(0.29, [0.5, 0.5, 0.1, 0.1]),
                detection(0.9, [0, 0, 1, 1], "2"),
            ],
        },
        {"file": image(tmp_path, "a/2.jpg"), "detections": []},
        {"file": image(tmp_path, "b/turned.jpg", orientation=6), "detections": [detection(1, [0.5, 0.5, 0.5, 0.5])]},
        {"file": image(tmp_path, "labelled/lynx/3.jpg"), "detections": [detection(0.3, [0.995, 0.995, 0.5, 0.001])]},
    ]
    manifest = read_manifest(write(tmp_path, images, {"detector_metadata": {"typical_detection_threshold": 0.3}}))
    boxes = [(str(path.path.relative_to(tmp_path)), path.box) for path in manifest.paths if isinstance(path, Crop)]
    assert boxes == [
        ("a/1.jpg", (20, 20, 100, 50)),
        ("a/1.jpg", (0, 0, 50, 100)),
        ("b/turned.jpg", (50, 100, 50, 100)),  # 100 × 200 upright
        ("labelled/lynx/3.jpg", (199, 100 - 1, 1, 1)),  # never beyond the image, never empty
    ]
    assert manifest.labels == (None, None, None, "lynx")
    assert manifest.groups[0] == manifest.groups[1] is not None and manifest.groups[2:] == (None, None)
    assert not manifest.skipped


def test_the_threshold_of_a_file_that_names_none_is_that_of_the_detector() -> None:
    assert threshold({}) == threshold({"detector": "md_v4.1.0.pb"}) == 0.8  # without the field it was version 4
    assert threshold({"detector": "md_v5a.0.0.pt"}) == threshold({"detector": "MDV6-yolov10-e"}) == 0.2
    assert threshold({"detector_metadata": {"typical_detection_threshold": 0.45}}) == 0.45


def test_sequences_become_groups(tmp_path: Path) -> None:
    """By seq_id, or by time within a folder: 60 seconds apart is the same sequence, 61 are two."""
    times = ["10:00:00", "10:01:00", "10:02:01", "10:02:02"]
    one = [detection(0.9, [0, 0, 1, 1])]
    images = [
        {
            "file": image(tmp_path, f"c{i // 4}/{i}.jpg"),
            "detections": one,
            "datetime": f"2025:05:0{1 + i // 4} {times[i % 4]}",
        }
        for i in range(8)
    ]
    images += [{"file": image(tmp_path, f"s{i}.jpg"), "detections": one, "seq_id": 7} for i in range(2)]
    images += [{"file": image(tmp_path, "alone.jpg"), "detections": one, "seq_id": "x", "datetime": "no date"}]
    groups = read_manifest(write(tmp_path, images)).groups
    assert [len({*groups[i : i + 2]}) for i in (0, 2, 4, 6, 8)] == [1] * 5 and groups[10] is None
    assert len(set(groups[:10])) == 5 and None not in groups[:10]


def test_microsofts_list_has_corners_in_pixels(tmp_path: Path) -> None:
    images = [
        {
            "file": image(tmp_path, "1.jpg"),
            "detections": [
                {"category": "animal", "confidence": 0.21, "bbox": [20.4, 10.0, 120.0, 60.0]},
                {"category": "person", "confidence": 0.9, "bbox": [0, 0, 5, 5]},
            ],
        },
        {"file": image(tmp_path, "2.jpg"), "detections": []},
    ]
    place = tmp_path / "list.json"
    place.write_text(json.dumps(images))
    read = read_detections(place)
    assert [one.picture.box for one in read.found] == [(20, 10, 100, 50)]
    assert read.content["images"][0]["detections"][0]["bbox"] == [0.102, 0.1, 0.498, 0.5]
    assert read.content["images"][0]["detections"][0]["category"] == "1"
    assert read.content["info"]["format_version"] == "1.6"


def test_files_that_cannot_be_used_are_listed_with_the_reason(tmp_path: Path) -> None:
    one = [detection(0.9, [0, 0, 1, 1])]
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    images = [
        {"file": image(tmp_path, "sub/good.jpg").replace("/", "\\"), "detections": one},
        {"file": "broken.jpg", "detections": one},
        {"file": "gone.jpg", "detections": one},
        {"file": image(tmp_path, "beside.jpg"), "detections": [detection(0.9, [1.2, 0.5, 0.3, 0.3]), *one]},
        {"file": image(tmp_path, "flat.jpg"), "detections": [detection(0.9, [0.5, 0.5, 0.2, 0])]},
        {"file": "bad.jpg", "failure": "Failure image access", "detections": None},
        {"file": "film.mp4", "frame_rate": 20, "frames_processed": [0], "detections": [one[0] | {"frame_number": 0}]},
    ]
    manifest = read_manifest(write(tmp_path, images))
    assert [Path(path).relative_to(tmp_path).as_posix() for path in manifest.paths] == ["sub/good.jpg", "beside.jpg"]
    reasons = {Path(entry.file).name: entry.reason for entry in manifest.skipped}
    assert reasons["beside.jpg"].startswith("bad-box") and reasons["flat.jpg"].startswith("bad-box")
    assert reasons["broken.jpg"].startswith("not-an-image") and reasons["gone.jpg"].startswith("missing")
    assert "MegaDetector says: Failure image access" in reasons["bad.jpg"] and "a video" in reasons["film.mp4"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "md.json"),
        ("3", "no results of MegaDetector"),
        ('{"images": {}}', "no list of images"),
        ('{"images": []}', "no info or no detection_categories"),
        ("[[]]", "without the name of a file"),
        ('[{"file": "a.jpg", "detections": 3}]', "are no list"),
        (
            '[{"file": "a.jpg", "detections": [{"category": "animal", "bbox": [1, 2, 3, 4]}]}]',
            "without category, conf or bbox",
        ),
        (
            '[{"file": "a.jpg", "detections": [{"category": "animal", "confidence": 1, "bbox": [1, 2]}]}]',
            "without category",
        ),
        (
            '[{"file": "a", "detections": [{"category": "animal", "confidence": 1, "bbox": [1, 2, 3, 1e300]}]}]',
            "without category",
        ),
        ('[{"file": "a.jpg", "detections": [7]}]', "without category"),
        ("[]", "no image in"),
    ],
)
def test_what_is_no_such_file_is_refused_in_words(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "md.json").write_text(text)
    with pytest.raises(DataError, match=says):
        read_manifest(tmp_path / "md.json")


def test_a_name_that_no_file_can_have_is_skipped(tmp_path: Path) -> None:
    """JSON can hold a surrogate that stands for no byte."""
    images = [{"file": image(tmp_path, "a.jpg"), "detections": [detection(0.9, [0, 0, 1, 1])]}]
    found = read_manifest(write(tmp_path, [*images, {"file": "\ud800.jpg", "detections": None}]))
    assert len(found) == 1 and found.skipped[-1].file == "\\ud800.jpg"
    assert "its name is not UTF-8" in found.skipped[-1].reason
