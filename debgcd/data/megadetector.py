"""MegaDetector's results as a list of images: each animal that it found is one, a box in its file.

Two forms are read: the format 1.6 of https://lila.science/megadetector-output-format, in which boxes are shares of the image, and
the list of Microsoft's package, in which they are corners in pixels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from debgcd.data.image.crop import Box, Crop
from debgcd.data.image.decode import Reason, Unusable, file_size
from debgcd.data.manifest import Skipped, bad_name, shown, skip
from debgcd.errors import DataError
from debgcd.system.files import read_json, readable
from debgcd.system.progress import progress, say

ANIMAL = "animal"
USUAL, USUAL_V4 = 0.2, 0.8  # thresholds of the detector's versions 5 and later, and 4, where a file names none
SAME_SEQUENCE = 60.0  # seconds between photographs of one folder, as in MegaDetector's own tools
LARGEST = 200_000_000  # bytes of a file: about half a million photographs
LARGEST_NUMBER = 1e6  # pixels, or shares: no edge of a box is further away
ADVICE = "give a file as run_detector_batch or the megadetector command writes it"
VIDEOS = {".mp4", ".avi", ".mpeg", ".mpg", ".mov", ".mkv", ".flv"}


@dataclass(frozen=True)
class Found:
    """An animal: detection `detection` of entry `image` of the file."""

    image: int
    detection: int
    picture: Crop
    group: str | None  # photographs of one sequence, and the boxes of one photograph, have the same


@dataclass(frozen=True)
class Detections:
    """What a file holds: its content in the format 1.6, the animals, and files that cannot be used."""

    content: dict[str, Any]
    found: list[Found]
    skipped: list[Skipped]


def read_detections(source: Path) -> Detections:
    """Read a file of either form; the headers of the images tell how large they are, unless the file does."""
    with readable(source, ADVICE):
        content = read_json(source, LARGEST)
    in_pixels = isinstance(content, list)
    content = _as_object(content, source)
    animals = {key for key, name in content["detection_categories"].items() if name == ANIMAL} or {"1"}
    least, groups = 0.0 if in_pixels else threshold(content["info"]), _groups(content["images"])
    found: list[Found] = []
    skipped: list[Skipped] = []
    without = 0
    with progress("reading sizes") as report:
        for i, image in enumerate(content["images"]):
            report(i + 1, len(content["images"]))
            if problem := bad_name(image["file"]):
                skipped.append(skip(image["file"], Reason.BAD_NAME, problem))
                continue
            path = file_of(source, image["file"])
            boxes = [] if image.get("detections") is None else image["detections"]
            wanted = [j for j, one in enumerate(boxes) if one["category"] in animals and one["conf"] >= least]
            without += not wanted
            try:
                size = _size(image, path, bool(wanted) or in_pixels)
            except Unusable as why:
                skipped.append(skip(path, why.reason, why.detail))
                continue
            if in_pixels:
                for one in boxes:
                    one["bbox"] = _shares(one["bbox"], size)
            outside = [j for j in wanted if not _meets(boxes[j]["bbox"])]
            if outside:
                skipped.append(skip(path, Reason.BAD_BOX, f"the box {boxes[outside[0]]['bbox']} is not in the image"))
                wanted = [j for j in wanted if j not in outside]
            group = groups.get(i) or (shown(path) if len(wanted) > 1 else None)
            found += [Found(i, j, Crop(path, _pixels(boxes[j]["bbox"], size)), group) for j in wanted]
    if without:
        say(
            f"{shown(source)}: {without} of {len(content['images'])} files have no animal with a confidence of {least:g} or more"
        )
    return Detections(content, found, skipped)


def threshold(info: Mapping[str, Any]) -> float:
    """The confidence from which on a detection counts: the file's own, else that of the detector's version."""
    meta = info.get("detector_metadata")
    own = meta.get("typical_detection_threshold") if isinstance(meta, dict) else None
    if isinstance(own, int | float) and 0 <= own <= 1:
        return float(own)
    detector = info.get("detector")
    # a file without the field was made by version 4
    return USUAL_V4 if not isinstance(detector, str) or "v4" in detector.lower() else USUAL


def file_of(source: Path, name: str) -> Path:
    """The image of an entry: relative to the file's own folder; Windows writes backslashes."""
    place = source.parent / name
    if "\\" in name and not place.exists():
        place = source.parent / PurePosixPath(name.replace("\\", "/"))
    return Path(os.path.abspath(place))


def _as_object(content: Any, source: Path) -> dict[str, Any]:
    """The content in the format 1.6; a list in Microsoft's form becomes one, its boxes still corners in pixels."""
    if isinstance(content, list):
        categories = {"1": ANIMAL, "2": "person", "3": "vehicle"}
        number = {name: key for key, name in categories.items()}
        images = [_entry(image, source) for image in content]
        for image in images:
            for one in filter(lambda one: isinstance(one, dict), image.get("detections") or []):
                one |= {"category": number.get(str(one.get("category")), "0"), "conf": one.pop("confidence", None)}
        content = {
            "info": {"format_version": "1.6", "detector": "unknown"},
            "detection_categories": categories,
            "images": images,
        }
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise DataError(f"{shown(source)} holds no results of MegaDetector (no list of images); {ADVICE}")
    if not all(isinstance(content.get(name), dict) for name in ("info", "detection_categories")):
        raise DataError(f"{shown(source)} has no info or no detection_categories; {ADVICE}")
    for number_, image in enumerate(content["images"]):
        _entry(image, source)
        for one in image.get("detections") or []:
            good = (
                isinstance(one, dict)
                and isinstance(one.get("conf"), int | float)
                and isinstance(one.get("category"), str)
            )
            box = one.get("bbox") if good else None
            if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
                raise DataError(
                    f"{shown(source)}: entry {number_}, {image['file']!r:.100}, has a detection without category, conf or bbox; "
                    f"{ADVICE}"
                )
    return content


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= LARGEST_NUMBER


def _entry(image: Any, source: Path) -> dict[str, Any]:
    if not isinstance(image, dict) or not isinstance(image.get("file"), str) or not image["file"].strip():
        raise DataError(f"{shown(source)} has an entry without the name of a file; {ADVICE}")
    if not isinstance(image.get("detections"), list | None):
        raise DataError(f"{shown(source)}: the detections of {image['file']!r:.100} are no list; {ADVICE}")
    return image


def _size(image: Mapping[str, Any], path: Path, needed: bool) -> tuple[int, int]:
    """Width and height of an upright image; Unusable where the detector, or we, cannot read it."""
    if image.get("failure"):
        raise Unusable(Reason.UNREADABLE, f"MegaDetector says: {image['failure']}")
    if path.suffix.lower() in VIDEOS:
        raise Unusable(Reason.UNSUPPORTED, "a video; take its frames out as images")
    width, height = image.get("width"), image.get("height")
    if type(width) is int and type(height) is int and min(width, height) > 0 and max(width, height) <= LARGEST_NUMBER:
        return width, height
    return file_size(path) if needed else (0, 0)


def _meets(box: list[float]) -> bool:
    """Whether a box, in shares of the image, has a part of it."""
    x, y, w, h = box
    return min(w, h) > 0 and min(x + w, y + h) > 0 and max(x, y) < 1


def _pixels(box: list[float], size: tuple[int, int]) -> Box:
    """Shares of an image -> whole pixels within it, at least one."""
    (x, y, w, h), (width, height) = box, size
    left, top = min(max(0, round(x * width)), width - 1), min(max(0, round(y * height)), height - 1)
    right, bottom = min(width, round((x + w) * width)), min(height, round((y + h) * height))
    return left, top, max(1, right - left), max(1, bottom - top)


def _shares(corners: list[float], size: tuple[int, int]) -> list[float]:
    """Corners in pixels -> left, top, width and height as shares of the image."""
    (left, top, right, bottom), (width, height) = corners, size
    values = (left / width, top / height, (right - left) / width, (bottom - top) / height)
    return [round(min(1.0, max(0.0, value)), 4) for value in values]


def _groups(images: list[dict[str, Any]]) -> dict[int, str]:
    """The sequence of each image that has others: by `seq_id`, or photographs of one folder that follow each other closely."""
    members: dict[str, list[int]] = {}
    dated: dict[str, list[tuple[datetime, int]]] = {}
    for i, image in enumerate(images):
        if image.get("seq_id") is not None:
            members.setdefault(f"sequence {image['seq_id']}", []).append(i)
        elif (when := _when(image)) is not None:
            dated.setdefault(os.path.dirname(image["file"].replace("\\", "/")), []).append((when, i))
    for folder, entries in dated.items():
        for name, i in _bursts(folder, sorted(entries)):
            members.setdefault(name, []).append(i)
    return {i: name for name, some in members.items() if len(some) > 1 for i in some}


def _bursts(folder: str, entries: list[tuple[datetime, int]]) -> Iterator[tuple[str, int]]:
    last: datetime | None = None
    name = ""
    for when, i in entries:
        if last is None or (when - last).total_seconds() > SAME_SEQUENCE:
            name = f"sequence {folder}/{when:%Y-%m-%d %H:%M:%S}"
        last = when
        yield name, i


def _when(image: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.strptime(image["datetime"], "%Y:%m:%d %H:%M:%S")
    except (KeyError, TypeError, ValueError):
        return None
