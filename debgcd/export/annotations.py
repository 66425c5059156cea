"""coco and labelstudio: one JSON file about images that stay where they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from debgcd import __version__
from debgcd.data.fingerprints import require_own
from debgcd.data.image.crop import Box, Crop, Picture
from debgcd.data.image.decode import Unusable, file_size
from debgcd.export.items import Item, items, kept, tell_left_out
from debgcd.review.log import outcome, read_review
from debgcd.review.state import ACCEPTED, REJECTED
from debgcd.run.directory import Run
from debgcd.system.files import write_json, write_text
from debgcd.system.progress import progress, say

Size = tuple[int, int]  # width, height
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_coco(run: Run, out: Path) -> None:
    """COCO: each file is an image, each of its boxes an annotation, or one that covers it; score is the confidence, ids start at 1."""
    images: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for path, (width, height), found in _files(kept(run)):
        images.append({"id": len(images) + 1, "file_name": str(path), "width": width, "height": height})
        for item in found:
            box = _box(item, (width, height))
            note: dict[str, Any] = {
                "id": len(notes) + 1,
                "image_id": len(images),
                "category_id": item.category.category + 1,
                "iscrowd": 0,
            }
            note |= {"bbox": box, "area": box[2] * box[3], "segmentation": []}
            notes.append(note | ({} if item.confidence is None else {"score": item.confidence}))
    listed = [
        {"id": category.category + 1, "name": category.name, "supercategory": "known" if category.known else "new"}
        for category in outcome(read_review(run.folder))
        if category.merged_into is None
    ]
    info = {"description": f"categories found by debgcd {__version__}", "version": "1.0"}
    write_json(out, {"info": info, "images": images, "annotations": notes, "categories": listed})


def write_labelstudio(run: Run, out: Path) -> None:
    """Label Studio's tasks: predictions of unlabelled images, annotations of labelled and accepted ones; rectangles if there are boxes.

    An image that a reviewer rejected has neither. The labelling setup, with all categories, is a file beside it.
    Images are named as Label Studio's local storage serves them, relative to the root of the file system.
    """
    found = items(run)
    boxes = any(item.is_crop for item in found)
    files = list(_files(found))
    write_json(out, [_boxes_task(*file) if boxes else _task(file[2][0]) for file in files])
    names = [one.name for one in outcome(read_review(run.folder)) if one.merged_into is None]
    write_text(setup_of(out), _setup(names, boxes))
    say("Label Studio must serve local files from / (LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT)")


def setup_of(out: Path) -> Path:
    """Where the labelling setup is that belongs to exported tasks."""
    return out.with_name(f"{out.stem}_setup.xml")


def _setup(names: list[str], boxes: bool) -> str:
    control, each = ("RectangleLabels", "Label") if boxes else ("Choices", "Choice")
    choices = "".join(f"    <{each} value={quoteattr(_label(name))}/>\n" for name in names)
    image = '  <Image name="image" value="$image"/>\n'
    return f'<View>\n{image}  <{control} name="category" toName="image">\n{choices}  </{control}>\n</View>\n'


def _label(name: str) -> str:
    """A category's name as Label Studio knows it: no XML can hold control characters."""
    return NO_XML.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), name)


def _files(found: list[Item]) -> Iterator[tuple[Path, Size, list[Item]]]:
    """The files that are still what they were, with the sizes of their upright images, and what is in each."""
    by_path: dict[Path, list[Item]] = {}
    for item in found:
        by_path.setdefault(item.path, []).append(item)
    gone: dict[Picture, str] = {}
    with progress("reading sizes") as report:
        for done, (path, inside) in enumerate(by_path.items(), 1):
            report(done, len(by_path))
            try:
                require_own(path, inside[0].sha256)
                size = file_size(path)
            except Unusable as error:
                gone[path] = str(error)
                continue
            yield path, size, inside
    tell_left_out(gone, len(by_path) - len(gone))


def _box(item: Item, size: Size) -> Box:
    """The part of an image that an item is, within its edges: left, top, width, height."""
    if not isinstance(item.picture, Crop):
        return 0, 0, *size
    x, y, w, h = item.picture.box
    left, top = max(0, x), max(0, y)
    return left, top, min(size[0], x + w) - left, min(size[1], y + h) - top


def _address(path: Path) -> str:
    return "/data/local-files/?d=" + quote(str(path).lstrip("/"))


def _task(item: Item) -> dict[str, Any]:
    choice = {
        "type": "choices",
        "from_name": "category",
        "to_name": "image",
        "value": {"choices": [_label(item.category.name)]},
    }
    data: dict[str, Any] = {"image": _address(item.path), "id": item.category.id}
    if item.row is None:
        return {"data": data, "annotations": [{"result": [choice]}]}
    if item.review == REJECTED:
        return {"data": {"image": data["image"]}}
    data |= {"known": item.category.known} | ({} if item.novelty is None else {"novelty": item.novelty})
    said = {"model_version": f"debgcd {__version__}", "score": item.confidence, "result": [choice]}
    return {"data": data, "predictions": [said]} | (
        {"annotations": [{"result": [choice]}]} if item.review == ACCEPTED else {}
    )


def _boxes_task(path: Path, size: Size, found: list[Item]) -> dict[str, Any]:
    """A file and its boxes; the score of a prediction is that of its least certain box."""
    task: dict[str, Any] = {"data": {"image": _address(path)}}
    sure = [item for item in found if item.review == ACCEPTED]
    free = [item for item in found if item.row is not None and item.review != REJECTED]
    if sure:
        task["annotations"] = [{"result": [_rectangle(item, size) for item in sure]}]
    if free:
        least = min(item.confidence or 0.0 for item in free)
        said = {"model_version": f"debgcd {__version__}", "score": least}
        task["predictions"] = [said | {"result": [_rectangle(item, size) for item in free]}]
    return task


def _rectangle(item: Item, size: Size) -> dict[str, Any]:
    """A region; Label Studio counts in per cent of the image."""
    (width, height), (x, y, w, h) = size, _box(item, size)
    place = {"x": 100 * x / width, "y": 100 * y / height, "width": 100 * w / width, "height": 100 * h / height}
    region = {
        "type": "rectanglelabels",
        "from_name": "category",
        "to_name": "image",
        "original_width": width,
        "original_height": height,
        "value": place | {"rotation": 0, "rectanglelabels": [_label(item.category.name)]},
    }
    return region | ({} if item.confidence is None else {"score": item.confidence})
