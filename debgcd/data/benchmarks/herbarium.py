"""Herbarium19: small-train/<category>/ and small-validation/<category>/, or these images listed in COCO's JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from debgcd.data.benchmarks.facts import Facts
from debgcd.data.benchmarks.places import (
    Images,
    broken,
    class_folders,
    find_folder,
    folder_images,
    need,
    need_images,
)
from debgcd.errors import DataError

LISTS = {"small-train": ("small-train.json", "train.json"), "small-validation": ("small-validation.json", "val.json")}

Row = tuple[str, str]  # category, path


def herbarium(facts: Facts, root: Path, cache: Path) -> Images:
    """Classes are the categories sorted as strings ("0", "1", "10", ...), as the published split numbers them.

    Where a list lies beside the folders, it says which images there are and each of them has to be there.
    """
    folder = find_folder(facts, root, lambda place: (place / "small-train").is_dir(), "a small-train/")
    train, test = (_part(facts, folder, part) for part in LISTS)
    classes = tuple(sorted({category for category, _ in train}))
    number = {category: i for i, category in enumerate(classes)}
    if len(classes) != facts.classes:
        raise DataError(
            f"{folder / 'small-train'} holds {len(classes)} categories, not {facts.classes}; {facts.how_to_get}"
        )
    for category, path in test:
        if category not in number:
            raise DataError(f"{path} is of category {category!r}, which no training image has; {facts.how_to_get}")
    rows = [tuple((path, number[category]) for category, path in sorted(part)) for part in (train, test)]
    return Images(folder, classes, rows[0], rows[1])


def _part(facts: Facts, folder: Path, part: str) -> list[Row]:
    images = need(facts, folder, part)
    listed = next((folder / name for name in LISTS[part] if (folder / name).is_file()), None)
    if listed is not None:
        rows = list(_listed(facts, listed, images))
        need_images(facts, listed, ((path, 0) for _, path in rows))
        return rows
    return [(name, path) for name in class_folders(images) for path in folder_images(images / name)]


def _listed(facts: Facts, listed: Path, images: Path) -> Iterator[Row]:
    """The rows of {"images": [{id, file_name}], "annotations": [{image_id, category_id}]}."""
    try:
        data = json.loads(listed.read_bytes())
        categories = {entry["image_id"]: str(entry["category_id"]) for entry in data["annotations"]}
        for entry in data["images"]:
            name = str(entry["file_name"]).removeprefix(f"{images.name}/")
            yield categories[entry["id"]], os.path.join(images, name)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise broken(facts, listed, f"{type(error).__name__}: {error}") from error
