"""Original files -> classes and images in the set's own order, for every set whose images are files.

Each function takes the published facts, the root folder and the cache folder (which only CIFAR uses), and returns a
`Listing`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from debgcd.datasets.facts import (
    Entries,
    Facts,
    Listing,
    as_published,
    broken,
    class_folders,
    class_number,
    find_folder,
    folder_images,
    need,
    need_images,
    read_list,
    read_mat,
)
from debgcd.errors import DataError
from debgcd.system.files import parse_json

CUB_LISTS = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")

CARS_TRAIN = "devkit/cars_train_annos.mat"
CARS_TEST = "cars_test_annos_withlabels.mat"
CARS_META = "devkit/cars_meta.mat"

SYNSET = re.compile(r"n[0-9]{8}")
DEVKIT = "ILSVRC2012_devkit_t12/data"
VALIDATION = f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt"

HERBARIUM_LISTS = {
    "small-train": ("small-train.json", "train.json"),
    "small-validation": ("small-validation.json", "val.json"),
}


def cub(facts: Facts, root: Path, cache: Path) -> Listing:
    """CUB-200-2011: images.txt, image_class_labels.txt and train_test_split.txt, joined by their first column."""
    folder = find_folder(
        facts, root, lambda place: any((place / name).is_file() for name in CUB_LISTS[1:]), "an images.txt"
    )
    names, images, labels, splits = (_numbered(facts, need(facts, folder, name)) for name in CUB_LISTS)
    pictures = need(facts, folder, "images")
    for name, column in zip(CUB_LISTS[2:], (labels, splits), strict=True):
        if unlike := set(column) ^ set(images):
            raise broken(facts, folder / name, f"its image numbers differ from those of images.txt, e.g. {min(unlike)}")
    if unlike := set(splits.values()) - {"0", "1"}:
        raise broken(facts, folder / CUB_LISTS[3], f"its second column must be 0 or 1, got {min(unlike)!r}")
    rows: dict[str, list[tuple[str, int]]] = {"1": [], "0": []}  # 1: training
    for number, name in images.items():
        label = class_number(facts, folder / CUB_LISTS[2], labels[number])
        rows[splits[number]].append((os.path.join(pictures, name), label))
    classes = tuple(names.get(str(number), "") for number in range(1, facts.classes + 1))
    if "" in classes or len(names) != facts.classes:
        raise broken(facts, folder / CUB_LISTS[0], f"it names {len(names)} classes, expected 1 to {facts.classes}")
    listed = folder / CUB_LISTS[1]
    return Listing(folder, classes, need_images(facts, listed, rows["1"]), need_images(facts, listed, rows["0"]))


def _numbered(facts: Facts, path: Path) -> dict[str, str]:
    rows = read_list(facts, path, 2)
    found = dict(rows)
    if len(found) != len(rows):
        raise broken(facts, path, "a number occurs twice")
    return found


def aircraft(facts: Facts, root: Path, cache: Path) -> Listing:
    """FGVC-Aircraft: images_variant_trainval.txt and images_variant_test.txt; classes are variants, sorted as strings."""
    lists = ("images_variant_trainval.txt", "images_variant_test.txt")
    folder = find_folder(
        facts, root, lambda place: any((place / name).is_file() for name in lists), f"an {lists[0]}", inner=("data",)
    )
    variants = need(facts, folder, "variants.txt")
    classes = tuple(sorted(" ".join(row) for row in read_list(facts, variants, 1)))
    number = {name: i for i, name in enumerate(classes)}
    if len(number) != facts.classes:
        raise broken(facts, variants, f"it names {len(number)} variants, expected {facts.classes}")
    parts = []
    for name in lists:
        listed = need(facts, folder, name)
        rows = read_list(facts, listed, 2)
        for image, variant in rows:
            if variant not in number:
                raise broken(facts, listed, f"the variant {variant!r} of image {image} is not in variants.txt")
        pictures = need(facts, folder, "images")
        images = ((os.path.join(pictures, f"{image}.jpg"), number[variant]) for image, variant in rows)
        parts.append(need_images(facts, listed, images))
    return Listing(folder, classes, parts[0], parts[1])


def pets(facts: Facts, root: Path, cache: Path) -> Listing:
    """Oxford-IIIT Pet: annotations/{trainval,test}.txt hold image, class from 1, species, breed; images are named by class."""
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
        raise broken(facts, folder / lists[0], f"it has {len(names)} classes, expected {facts.classes}")
    return Listing(folder, tuple(names[number] for number in sorted(names)), parts[0], parts[1])


def cars(facts: Facts, root: Path, cache: Path) -> Listing:
    """Stanford Cars: cars_train/, cars_test/ and the MATLAB files of its devkit; the test labels may lie beside devkit/."""
    folder = find_folder(facts, root, _is_cars, f"a {CARS_TRAIN}")
    if (folder / "cars_annos.mat").is_file() and not (folder / CARS_TRAIN).is_file():
        raise DataError(
            f"{folder} holds the other release of Stanford Cars (cars_annos.mat, car_ims/), which orders the images "
            f"differently, so the published labelled half is unknown; {facts.how_to_get}"
        )
    names = [str(name) for name in read_mat(facts, need(facts, folder, CARS_META), "class_names")]
    if len(set(names)) != facts.classes:
        raise broken(facts, folder / CARS_META, f"it names {len(set(names))} classes, expected {facts.classes}")
    beside = (folder / CARS_TEST).is_file()
    train = _cars_annotated(facts, need(facts, folder, CARS_TRAIN), need(facts, folder, "cars_train"))
    test = _cars_annotated(
        facts, need(facts, folder, CARS_TEST if beside else f"devkit/{CARS_TEST}"), need(facts, folder, "cars_test")
    )
    return Listing(folder, tuple(names), train, test)


def _is_cars(place: Path) -> bool:
    return any((place / name).is_file() for name in (CARS_TRAIN, CARS_META, "cars_annos.mat"))


def _cars_annotated(facts: Facts, path: Path, pictures: Path) -> Entries:
    """Images and classes in the file's order."""
    rows = read_mat(facts, path, "annotations")
    if rows.dtype.names is None or not {"class", "fname"} <= set(rows.dtype.names):
        raise broken(facts, path, "its annotations lack class or fname")
    return need_images(
        facts,
        path,
        (
            (os.path.join(pictures, str(name)), class_number(facts, path, str(number)))
            for name, number in zip(rows["fname"], rows["class"], strict=True)
        ),
    )


def imagenet(facts: Facts, root: Path, cache: Path) -> Listing:
    """ImageNet (ILSVRC 2012), or the 100 synsets of ImageNet-100: train/<synset>/ and val/; classes are sorted synset ids.

    val/ has synset folders, or is flat as unpacked, which needs the devkit.
    """
    folder = find_folder(facts, root, lambda place: bool(_synsets(place / "train")), "a train/ with synset folders")
    train, val = need(facts, folder, "train"), need(facts, folder, "val")
    synsets = facts.synsets or tuple(_synsets(train))
    if len(synsets) != facts.classes:
        raise DataError(f"{train} has {len(synsets)} synset folders, expected {facts.classes}; {facts.how_to_get}")
    test = _in_folders(facts, folder, "val", synsets) if _synsets(val) else _flat(facts, folder, synsets)
    return Listing(folder, synsets, _in_folders(facts, folder, "train", synsets), test)


def _synsets(folder: Path) -> list[str]:
    return [name for name in class_folders(folder) if SYNSET.fullmatch(name)] if folder.is_dir() else []


def _in_folders(facts: Facts, folder: Path, part: str, synsets: Sequence[str]) -> Entries:
    found = []
    for number, synset in enumerate(synsets):
        images = folder_images(need(facts, folder, f"{part}/{synset}"))
        if not images:
            raise DataError(f"{folder / part / synset} has no images; {facts.how_to_get}")
        found += [(path, number) for path in images]
    return tuple(found)


def _flat(facts: Facts, folder: Path, synsets: Sequence[str]) -> Entries:
    """val/ILSVRC2012_val_00000001.JPEG, ...: the devkit lists their class numbers, its meta.mat the synset of each."""
    listed = need(facts, folder, VALIDATION)
    path = need(facts, folder, f"{DEVKIT}/meta.mat")
    meta = read_mat(facts, path, "synsets")
    if meta.dtype.names is None or not {"ILSVRC2012_ID", "WNID"} <= set(meta.dtype.names):
        raise broken(facts, path, "its synsets lack ILSVRC2012_ID or WNID")
    synset_of = {str(number): str(synset) for number, synset in zip(meta["ILSVRC2012_ID"], meta["WNID"], strict=True)}
    position = {synset: number for number, synset in enumerate(synsets)}
    images = []
    for at, (number,) in enumerate(read_list(facts, listed, 1), 1):
        if number not in synset_of:
            raise broken(facts, listed, f"line {at} is {number[:60]!r}, which is not in meta.mat")
        if synset_of[number] in position:
            name = os.path.join(folder, "val", f"ILSVRC2012_val_{at:08d}.JPEG")
            images.append((name, position[synset_of[number]]))
    return need_images(facts, listed, images)


def herbarium(facts: Facts, root: Path, cache: Path) -> Listing:
    """Herbarium19: small-train/<category>/ and small-validation/<category>/, or these images listed in COCO's JSON.

    Classes are the categories sorted as strings ("0", "1", "10", ...), as the published split numbers them. A list beside
    the folders decides which images there are, and each of them must exist.
    """
    folder = find_folder(facts, root, lambda place: (place / "small-train").is_dir(), "a small-train/")
    train, test = (_herbarium_part(facts, folder, part) for part in HERBARIUM_LISTS)
    classes = tuple(sorted({category for category, _ in train}))
    number = {category: i for i, category in enumerate(classes)}
    if len(classes) != facts.classes:
        raise DataError(
            f"{folder / 'small-train'} has {len(classes)} categories, expected {facts.classes}; {facts.how_to_get}"
        )
    for category, path in test:
        if category not in number:
            raise DataError(f"no training image has the category {category!r} of {path}; {facts.how_to_get}")
    rows = [tuple((path, number[category]) for category, path in sorted(part)) for part in (train, test)]
    return Listing(folder, classes, rows[0], rows[1])


def _herbarium_part(facts: Facts, folder: Path, part: str) -> list[tuple[str, str]]:
    """(category, path) of each image, from the list if there is one."""
    images = need(facts, folder, part)
    listed = next((folder / name for name in HERBARIUM_LISTS[part] if (folder / name).is_file()), None)
    if listed is not None:
        rows = list(_herbarium_listed(facts, listed, images))
        need_images(facts, listed, ((path, 0) for _, path in rows))
        return rows
    return [(name, path) for name in class_folders(images) for path in folder_images(images / name)]


def _herbarium_listed(facts: Facts, listed: Path, images: Path) -> Iterator[tuple[str, str]]:
    """The rows of {"images": [{id, file_name}], "annotations": [{image_id, category_id}]}."""
    with as_published(facts, listed):
        data = parse_json(listed.read_bytes())
        categories = {entry["image_id"]: str(entry["category_id"]) for entry in data["annotations"]}
        for entry in data["images"]:
            name = str(entry["file_name"]).removeprefix(f"{images.name}/")
            yield categories[entry["id"]], os.path.join(images, name)
