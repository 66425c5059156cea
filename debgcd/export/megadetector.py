"""megadetector: the categories as classifications of MegaDetector's detections, which Timelapse, AddaxAI and others read.

https://lila.science/megadetector-output-format, version 1.6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from debgcd import __version__
from debgcd.data.fingerprints import require_own
from debgcd.data.image.crop import Crop, Picture
from debgcd.data.image.decode import Unusable, file_size
from debgcd.data.megadetector import ANIMAL, file_of, read_detections
from debgcd.errors import DataError
from debgcd.export.items import Item, items, tell_left_out
from debgcd.review.log import outcome, read_review
from debgcd.review.state import ACCEPTED, REJECTED
from debgcd.run.categories import merged_numbers
from debgcd.run.directory import Run
from debgcd.run.predictions import TOP
from debgcd.system.files import write_json
from debgcd.system.progress import progress

FORMAT = "1.6"


def write_megadetector(run: Run, out: Path, detections: Path | None = None) -> None:
    """The file of detections that the run was trained on, with categories; without one, each box, or each whole image, is a detection.

    Files that cannot be read, or are not what the run was trained on, have a failure.
    """
    every = outcome(read_review(run.folder))
    content = _of_run(run) if detections is None else _of_file(run, detections)
    content["info"] |= {"format_version": FORMAT, "classifier": f"debgcd {__version__}, {run.folder.resolve().name}"}
    content["classification_categories"] = {str(one.category): one.name for one in every if one.merged_into is None}
    content.pop("classification_category_descriptions", None)  # of another classifier's categories
    write_json(out, content)


def _of_file(run: Run, source: Path) -> dict[str, Any]:
    """The content of a file of detections, with classifications where the run has the box."""
    read = read_detections(source)
    said = {str(item.picture): item for item in items(run)}
    images, used = read.content["images"], set()
    number = _numbers(run)
    for image in images:
        for one in image.get("detections") or []:
            one.pop("classifications", None)
            one["conf"] = float(one["conf"])
    for found in read.found:
        item = said.get(str(found.picture))
        if item is not None:
            used.add(str(item.picture))
            images[found.image]["detections"][found.detection] |= _classified(item, number)
    if not used:
        raise DataError(f"{source} has none of the images of {run.folder}; give the file that the run was trained on")
    reasons = {entry.file: entry.reason for entry in (*read.skipped, *run.manifest.skipped)}
    own = {str(item.path): item for item in said.values()}
    with progress("comparing files") as report:
        for done, image in enumerate(images, 1):
            path = file_of(source, image["file"])
            why = reasons.get(str(path), "") or _problem(own.get(str(path)))
            if why:
                image |= {"failure": why, "detections": None}
            report(done, len(images))
    return read.content


def _of_run(run: Run) -> dict[str, Any]:
    """The run's own images in the format, with absolute paths."""
    number, by_path = _numbers(run), dict[Path, list[Item]]()
    for item in items(run):
        by_path.setdefault(item.path, []).append(item)
    images: list[dict[str, Any]] = []
    gone: dict[Picture, str] = {}
    with progress("reading sizes") as report:
        for done, (path, inside) in enumerate(by_path.items(), 1):
            report(done, len(by_path))
            why = _problem(inside[0])
            if why:
                gone[path] = why
                images.append({"file": path.as_posix(), "failure": why, "detections": None})
                continue
            size = file_size(path)
            found = [
                {"category": "1", "conf": 1.0, "bbox": _share(item, size), **_classified(item, number)}
                for item in inside
            ]
            images.append({"file": path.as_posix(), "detections": found})
    tell_left_out(gone, len(images) - len(gone))
    images += [{"file": entry.file, "failure": entry.reason, "detections": None} for entry in run.manifest.skipped]
    return {"info": {"detector": "unknown"}, "detection_categories": {"1": ANIMAL}, "images": images}


def _problem(item: Item | None) -> str:
    """Why a file cannot be used any more; empty if it can, or is none of the run's."""
    try:
        if item is not None:
            require_own(item.path, item.sha256)
            file_size(item.path)
    except Unusable as error:
        return str(error)
    return ""


def _numbers(run: Run) -> dict[str, int]:
    """The number of the living category that each id leads to."""
    every = outcome(read_review(run.folder))
    return {one.id: number for one, number in zip(every, merged_numbers(every), strict=True)}


def _classified(item: Item, number: dict[str, int]) -> dict[str, Any]:
    """The categories of a detection and their probabilities, the highest first; a person's word counts as 1."""
    if item.review == REJECTED:
        return {}
    own = number[item.category.id]
    if item.row is None or item.review == ACCEPTED or number[item.row["top1_id"]] != own:
        return {"classifications": [[str(own), 1.0]]}
    scores: dict[int, float] = {}
    for rank in range(1, TOP + 1):
        if item.row[f"top{rank}_id"] is not None:
            category = number[item.row[f"top{rank}_id"]]
            scores[category] = scores.get(category, 0.0) + item.row[f"top{rank}_p"]  # of merged ones the sum
    ordered = sorted(scores.items(), key=lambda pair: -pair[1])
    return {"classifications": [[str(category), round(score, 4)] for category, score in ordered]}


def _share(item: Item, size: tuple[int, int]) -> list[float]:
    """The box of an image as shares of its file; the whole of a file without boxes."""
    if not isinstance(item.picture, Crop):
        return [0.0, 0.0, 1.0, 1.0]
    x, y, w, h = item.picture.box
    width, height = size
    return [round(value, 4) for value in (x / width, y / height, w / width, h / height)]
