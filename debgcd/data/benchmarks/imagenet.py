"""ImageNet (ILSVRC 2012), all of it or the 100 synsets of ImageNet-100: train/<synset>/ and val/."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
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
    read_list,
    read_mat,
)
from debgcd.errors import DataError

SYNSET = re.compile(r"n[0-9]{8}")
DEVKIT = "ILSVRC2012_devkit_t12/data"
TRUTH = f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt"


def imagenet(facts: Facts, root: Path, cache: Path) -> Images:
    """Classes are synset ids, sorted; val/ is in synset folders, or flat as unpacked, which needs the devkit."""
    folder = find_folder(facts, root, lambda place: bool(_synsets(place / "train")), "a train/ with synset folders")
    train, val = need(facts, folder, "train"), need(facts, folder, "val")
    synsets = facts.synsets or tuple(_synsets(train))
    if len(synsets) != facts.classes:
        raise DataError(f"{train} holds {len(synsets)} synset folders, not {facts.classes}; {facts.how_to_get}")
    test = _in_folders(facts, folder, "val", synsets) if _synsets(val) else _flat(facts, folder, synsets)
    return Images(folder, synsets, _in_folders(facts, folder, "train", synsets), test)


def _synsets(folder: Path) -> list[str]:
    return [name for name in class_folders(folder) if SYNSET.fullmatch(name)] if folder.is_dir() else []


def _in_folders(facts: Facts, folder: Path, part: str, synsets: Sequence[str]) -> tuple[tuple[str, int], ...]:
    found = []
    for number, synset in enumerate(synsets):
        images = folder_images(need(facts, folder, f"{part}/{synset}"))
        if not images:
            raise DataError(f"{folder / part / synset} holds no image; {facts.how_to_get}")
        found += [(path, number) for path in images]
    return tuple(found)


def _flat(facts: Facts, folder: Path, synsets: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """val/ILSVRC2012_val_00000001.JPEG, ...: the devkit's list has their numbers, its meta.mat what these mean."""
    listed = need(facts, folder, TRUTH)
    path = need(facts, folder, f"{DEVKIT}/meta.mat")
    meta = read_mat(facts, path, "synsets")
    if meta.dtype.names is None or not {"ILSVRC2012_ID", "WNID"} <= set(meta.dtype.names):
        raise broken(facts, path, "its synsets have no ILSVRC2012_ID or no WNID")
    synset_of = {str(number): str(synset) for number, synset in zip(meta["ILSVRC2012_ID"], meta["WNID"], strict=True)}
    position = {synset: number for number, synset in enumerate(synsets)}
    images = []
    for at, (number,) in enumerate(read_list(facts, listed, 1), 1):
        if number not in synset_of:
            raise broken(facts, listed, f"line {at} is {number[:60]!r}, which meta.mat does not know")
        if synset_of[number] in position:
            name = os.path.join(folder, "val", f"ILSVRC2012_val_{at:08d}.JPEG")
            images.append((name, position[synset_of[number]]))
    return need_images(facts, listed, images)
