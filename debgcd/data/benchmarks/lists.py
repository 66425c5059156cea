"""Sets that say in text files which image is what: CUB-200-2011, FGVC-Aircraft, Oxford-IIIT Pet."""

from __future__ import annotations

import os
from pathlib import Path

from debgcd.data.benchmarks.facts import Facts
from debgcd.data.benchmarks.places import (
    Images,
    broken,
    class_number,
    find_folder,
    need,
    need_images,
    read_list,
)

CUB_LISTS = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")


def cub(facts: Facts, root: Path, cache: Path) -> Images:
    """images.txt, image_class_labels.txt and train_test_split.txt, joined by their first column."""
    folder = find_folder(
        facts, root, lambda place: any((place / name).is_file() for name in CUB_LISTS[1:]), "an images.txt"
    )
    names, images, labels, splits = (_numbered(facts, need(facts, folder, name)) for name in CUB_LISTS)
    pictures = need(facts, folder, "images")
    for name, column in zip(CUB_LISTS[2:], (labels, splits), strict=True):
        if unlike := set(column) ^ set(images):
            raise broken(facts, folder / name, f"its image numbers are not those of images.txt, e.g. {min(unlike)}")
    if unlike := set(splits.values()) - {"0", "1"}:
        raise broken(facts, folder / CUB_LISTS[3], f"its second column is 0 or 1, not {min(unlike)!r}")
    rows: dict[str, list[tuple[str, int]]] = {"1": [], "0": []}  # 1: training
    for number, name in images.items():
        label = class_number(facts, folder / CUB_LISTS[2], labels[number])
        rows[splits[number]].append((os.path.join(pictures, name), label))
    classes = tuple(names.get(str(number), "") for number in range(1, facts.classes + 1))
    if "" in classes or len(names) != facts.classes:
        raise broken(facts, folder / CUB_LISTS[0], f"it names {len(names)} classes, not 1 to {facts.classes}")
    listed = folder / CUB_LISTS[1]
    return Images(folder, classes, need_images(facts, listed, rows["1"]), need_images(facts, listed, rows["0"]))


def _numbered(facts: Facts, path: Path) -> dict[str, str]:
    rows = read_list(facts, path, 2)
    found = dict(rows)
    if len(found) != len(rows):
        raise broken(facts, path, "a number stands there twice")
    return found


def aircraft(facts: Facts, root: Path, cache: Path) -> Images:
    """images_variant_trainval.txt and images_variant_test.txt; classes are the variants, sorted as strings."""
    lists = ("images_variant_trainval.txt", "images_variant_test.txt")
    folder = find_folder(
        facts, root, lambda place: any((place / name).is_file() for name in lists), f"an {lists[0]}", inner=("data",)
    )
    variants = need(facts, folder, "variants.txt")
    classes = tuple(sorted(" ".join(row) for row in read_list(facts, variants, 1)))
    number = {name: i for i, name in enumerate(classes)}
    if len(number) != facts.classes:
        raise broken(facts, variants, f"it names {len(number)} variants, not {facts.classes}")
    parts = []
    for name in lists:
        listed = need(facts, folder, name)
        rows = read_list(facts, listed, 2)
        for image, variant in rows:
            if variant not in number:
                raise broken(facts, listed, f"image {image} is of {variant!r}, which variants.txt does not name")
        pictures = need(facts, folder, "images")
        images = ((os.path.join(pictures, f"{image}.jpg"), number[variant]) for image, variant in rows)
        parts.append(need_images(facts, listed, images))
    return Images(folder, classes, parts[0], parts[1])


def pets(facts: Facts, root: Path, cache: Path) -> Images:
    """annotations/trainval.txt and test.txt: image, class from 1, species, breed; an image is named after its class."""
    lists = ("annotations/trainval.txt", "annotations/test.txt")
    folder = find_folder(facts, root, lambda place: any((place / name).is_file() for name in lists), f"an {lists[0]}")
    names: dict[int, str] = {}
    parts = []
    for name in lists:
        listed = need(facts, folder, name)
        pictures = need(facts, folder, "images")
        images = []
        for image, label, _, _ in read_list(facts, listed, 4):
            number = class_number(facts, listed, label)
            breed = image.rpartition("_")[0]
            if names.setdefault(number, breed) != breed:
                raise broken(facts, listed, f"class {number + 1} is both {names[number]!r} and {breed!r}")
            images.append((os.path.join(pictures, f"{image}.jpg"), number))
        parts.append(need_images(facts, listed, images))
    if len(names) != facts.classes:
        raise broken(facts, folder / lists[0], f"it has {len(names)} classes, not {facts.classes}")
    return Images(folder, tuple(names[number] for number in sorted(names)), parts[0], parts[1])
