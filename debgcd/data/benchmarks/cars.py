"""Stanford Cars: cars_train/, cars_test/ and the MATLAB files of its devkit."""

from __future__ import annotations

import os
from pathlib import Path

from debgcd.data.benchmarks.facts import Facts
from debgcd.data.benchmarks.places import Images, broken, class_number, find_folder, need, need_images, read_mat
from debgcd.errors import DataError

TRAIN = "devkit/cars_train_annos.mat"
TEST = "cars_test_annos_withlabels.mat"
META = "devkit/cars_meta.mat"


def cars(facts: Facts, root: Path, cache: Path) -> Images:
    """devkit/cars_train_annos.mat, cars_test_annos_withlabels.mat (in devkit/ or beside it) and devkit/cars_meta.mat."""
    folder = find_folder(facts, root, _is_cars, f"a {TRAIN}")
    if (folder / "cars_annos.mat").is_file() and not (folder / TRAIN).is_file():
        raise DataError(
            f"{folder} holds Stanford Cars in its other form (cars_annos.mat, car_ims/), which numbers the images "
            f"differently: the published labelled half cannot be told from it; {facts.how_to_get}"
        )
    names = [str(name) for name in read_mat(facts, need(facts, folder, META), "class_names")]
    if len(set(names)) != facts.classes:
        raise broken(facts, folder / META, f"it names {len(set(names))} classes, not {facts.classes}")
    beside = (folder / TEST).is_file()
    train = _annotated(facts, need(facts, folder, TRAIN), need(facts, folder, "cars_train"))
    test = _annotated(
        facts, need(facts, folder, TEST if beside else f"devkit/{TEST}"), need(facts, folder, "cars_test")
    )
    return Images(folder, tuple(names), train, test)


def _is_cars(place: Path) -> bool:
    return any((place / name).is_file() for name in (TRAIN, META, "cars_annos.mat"))


def _annotated(facts: Facts, path: Path, pictures: Path) -> tuple[tuple[str, int], ...]:
    """(image, class) in the file's order."""
    rows = read_mat(facts, path, "annotations")
    if rows.dtype.names is None or not {"class", "fname"} <= set(rows.dtype.names):
        raise broken(facts, path, "its annotations have no class or no fname")
    return need_images(
        facts,
        path,
        (
            (os.path.join(pictures, str(name)), class_number(facts, path, str(number)))
            for name, number in zip(rows["fname"], rows["class"], strict=True)
        ),
    )
