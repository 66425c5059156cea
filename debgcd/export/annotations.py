"""coco and labelstudio: one JSON file about images that stay where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from debgcd import __version__
from debgcd.data.decode import Unusable, decode
from debgcd.export.items import Item, kept_files, whole_files
from debgcd.files import write_json
from debgcd.inference.acts import ACCEPTED, REJECTED
from debgcd.progress import progress, say
from debgcd.train.finish import read_predictions
from debgcd.train.run import Run

CONFIG = '<View><Image name="image" value="$image"/><Choices name="category" toName="image">…</Choices></View>'


def write_coco(run: Run, out: Path) -> None:
    """COCO: each image with one annotation that covers it; score is the confidence, category ids start at 1."""
    images: list[dict[str, Any]] = []
    annotations = []
    gone = 0
    found = kept_files(run)
    with progress("reading sizes") as report:
        for done, item in enumerate(found, 1):
            report(done, len(found))
            try:
                height, width = decode(item.path).shape[:2]
            except Unusable:
                gone += 1
                continue
            number = len(images) + 1
            images.append({"id": number, "file_name": str(item.path), "width": width, "height": height})
            note: dict[str, Any] = {
                "id": number,
                "image_id": number,
                "category_id": item.category.category + 1,
                "iscrowd": 0,
            }
            note |= {"bbox": [0, 0, width, height], "area": width * height, "segmentation": []}
            annotations.append(note | ({} if item.confidence is None else {"score": item.confidence}))
    if gone:
        say(f"images that cannot be read any more and are left out: {gone}")
    listed = [
        {"id": category.category + 1, "name": category.name, "supercategory": "known" if category.known else "new"}
        for category in read_predictions(run)[1]
        if category.merged_into is None
    ]
    info = {"description": f"categories found by debgcd {__version__}", "version": "1.0"}
    write_json(out, {"info": info, "images": images, "annotations": annotations, "categories": listed})


def write_labelstudio(run: Run, out: Path) -> None:
    """Label Studio's tasks: predictions of unlabelled images, annotations of labelled and accepted ones.

    An image that a reviewer rejected has neither.
    Images are named as Label Studio's local storage serves them, relative to the root of the file system.
    """
    write_json(out, [_task(item) for item in whole_files(run)])
    say(
        f"Label Studio: labelling setup {CONFIG}; local files must be served from / (LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT)"
    )


def _task(item: Item) -> dict[str, Any]:
    choice = {
        "type": "choices",
        "from_name": "category",
        "to_name": "image",
        "value": {"choices": [item.category.name]},
    }
    data: dict[str, Any] = {
        "image": "/data/local-files/?d=" + quote(str(item.path).lstrip("/")),
        "id": item.category.id,
    }
    if item.row is None:
        return {"data": data, "annotations": [{"result": [choice]}]}
    if item.review == REJECTED:
        return {"data": {"image": data["image"]}}
    data |= {"known": item.category.known} | ({} if item.novelty is None else {"novelty": item.novelty})
    said = {"model_version": f"debgcd {__version__}", "score": item.confidence, "result": [choice]}
    return {"data": data, "predictions": [said]} | (
        {"annotations": [{"result": [choice]}]} if item.review == ACCEPTED else {}
    )
