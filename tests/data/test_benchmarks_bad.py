"""An incomplete benchmark is refused; the error names the file and how to get it, and no image is left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import miniatures
import pytest
from miniatures import FORMS, Made
from scipy.io import savemat

from debgcd.datasets import Facts, facts_of, read_benchmark
from debgcd.errors import DataError, DebgcdError, UsageError

Published = Callable[[str, Made], Facts]
Maker = Callable[[Path], Made]


def complaint(name: str, root: Path, kind: type[DebgcdError] = DataError) -> str:
    with pytest.raises(kind) as caught:
        read_benchmark(name, root, root.parent / "cache")
    return str(caught.value)


# A file or folder of each form that is gone, and how the error names it.
GONE: list[tuple[Maker, str]] = [
    *((miniatures.cub, name) for name in ("images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt")),
    (miniatures.cub, "images"),
    *((miniatures.aircraft, f"images_variant_{part}.txt") for part in ("trainval", "test")),
    *((miniatures.aircraft, name) for name in ("variants.txt", "images")),
    *((miniatures.pets, name) for name in ("annotations/trainval.txt", "annotations/test.txt", "images")),
    *((miniatures.cars, f"devkit/{name}") for name in ("cars_train_annos.mat", "cars_test_annos_withlabels.mat", "cars_meta.mat")),
    *((miniatures.cars, name) for name in ("cars_train", "cars_test")),
    *((miniatures.imagenet100, name) for name in ("train/n01537544", "val", "val/n01443537")),
    (miniatures.imagenet100_flat, "ILSVRC2012_devkit_t12/data/meta.mat"),
    (miniatures.imagenet100_flat, "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"),
    (miniatures.herbarium19, "small-validation"),
    *((miniatures.cifar10, name) for name in ("data_batch_4", "test_batch", "batches.meta")),
    *((miniatures.cifar10_binary, name) for name in ("data_batch_5.bin", "test_batch.bin", "batches.meta.txt")),
    *((miniatures.cifar100, name) for name in ("test", "meta")),
    *((miniatures.cifar100_binary, name) for name in ("test.bin", "fine_label_names.txt")),
]  # fmt: skip


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(("maker", "gone"), GONE, ids=lambda value: getattr(value, "__name__", value))
def test_what_is_missing_is_named(maker: Maker, gone: str, tmp_path: Path, published: Published) -> None:
    made = maker(tmp_path / "sets")
    facts = published(FORMS[maker], made)
    remove(made.folder / gone)
    said = complaint(facts.name, tmp_path / "sets")
    assert f"{gone} is missing" in said and str(made.folder) in said
    assert facts.how_to_get in said
    assert not (tmp_path / "cache").exists()


LISTED = [
    *((miniatures.cub, part) for part in ("train", "test")),
    *((miniatures.cars, part) for part in ("train", "test")),
    *((miniatures.aircraft, part) for part in ("train", "test")),
    *((miniatures.pets, part) for part in ("train", "test")),
    *((miniatures.herbarium19_json, part) for part in ("train", "test")),
    (miniatures.imagenet100_flat, "test"),
]


@pytest.mark.parametrize(("maker", "part"), LISTED, ids=lambda value: getattr(value, "__name__", value))
def test_listed_images_that_are_absent(maker: Maker, part: str, tmp_path: Path, published: Published) -> None:
    """How many, and the first of them; they are never left out."""
    made = maker(tmp_path / "sets")
    facts = published(FORMS[maker], made)
    rows = getattr(made, part)
    for path, _, _ in rows[3:6]:
        (made.folder / path).unlink()
    said = complaint(facts.name, tmp_path / "sets")
    assert f"3 of the {len(rows)} images" in said
    assert any(f"the first is {made.folder / path}" in said for path, _, _ in rows[3:6])
    assert facts.how_to_get in said


@pytest.mark.parametrize("maker", [miniatures.imagenet100, miniatures.imagenet1k, miniatures.herbarium19])
def test_too_few_images_where_there_is_no_list(maker: Maker, tmp_path: Path, published: Published) -> None:
    made = maker(tmp_path / "sets")
    facts = published(FORMS[maker], made)
    (made.folder / next(path for path, number, _ in made.train if number == 1)).unlink()  # one of two
    said = complaint(facts.name, tmp_path / "sets")
    assert f"{len(made.train)} training images, but {made.folder} gives {len(made.train) - 1}" in said
    assert facts.how_to_get in said


def test_imagenet100_has_to_have_the_papers_numbers(
    tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exact number of training images was not published: the paper's rounded ones are what it is held against."""
    made = miniatures.imagenet100(tmp_path / "sets")
    facts = replace(published("imagenet100", made), train=None)
    monkeypatch.setattr("debgcd.datasets.facts_of", lambda _: facts)
    assert "31.9K" in complaint("imagenet100", tmp_path / "sets")


def test_an_imagenet_with_synsets_of_another_one(tmp_path: Path, published: Published) -> None:
    made = miniatures.imagenet1k(tmp_path / "sets")
    published("imagenet1k", made)
    (made.folder / "train" / "n00000001").mkdir()
    assert "1001 synset folders, expected 1000" in complaint("imagenet1k", tmp_path / "sets")


def test_an_empty_synset(tmp_path: Path, published: Published) -> None:
    made = miniatures.imagenet100(tmp_path / "sets")
    published("imagenet100", made)
    for path in (made.folder / "train" / "n01537544").iterdir():
        path.unlink()
    assert f"{made.folder / 'train' / 'n01537544'} has no images" in complaint("imagenet100", tmp_path / "sets")


@pytest.mark.parametrize("maker", FORMS, ids=lambda maker: maker.__name__)
def test_a_wrong_root(maker: Maker, tmp_path: Path) -> None:
    facts = facts_of(FORMS[maker])
    (tmp_path / "sets" / "holiday").mkdir(parents=True)
    (tmp_path / "sets" / "holiday" / "beach.jpg").write_bytes(miniatures.PICTURES[0])
    said = complaint(facts.name, tmp_path / "sets")
    assert f"no {facts.title} in {tmp_path / 'sets'}" in said and facts.how_to_get in said
    assert "no folder" in complaint(facts.name, tmp_path / "nowhere", UsageError)
    assert "no folder" in complaint(facts.name, tmp_path / "sets" / "holiday" / "beach.jpg", UsageError)


def test_a_set_whose_numbers_are_others(tmp_path: Path) -> None:
    """A miniature is not the published set: nothing is used of it."""
    miniatures.pets(tmp_path / "sets")
    assert "3680 training images, but" in complaint("pets", tmp_path / "sets")


def test_the_other_form_of_cars(tmp_path: Path) -> None:
    (tmp_path / "sets" / "car_ims").mkdir(parents=True)
    savemat(tmp_path / "sets" / "cars_annos.mat", {"annotations": 1})
    assert "the published labelled half is unknown" in complaint("cars", tmp_path / "sets")


def test_cars_labels_of_test_images_beside_the_devkit(tmp_path: Path, published: Published) -> None:
    made = miniatures.cars(tmp_path / "sets")
    published("cars", made)
    before = read_benchmark("cars", tmp_path / "sets", tmp_path)
    name = "cars_test_annos_withlabels.mat"
    (made.folder / "devkit" / name).rename(made.folder / name)
    assert read_benchmark("cars", tmp_path / "sets", tmp_path) == before


# Files that are there but are not what they were: (form, file, what becomes of its content, what the error says)
def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def first_line(line: str) -> Callable[[bytes], bytes]:
    return lambda content: line.encode() + b"\n" + content.partition(b"\n")[2]


CHANGED: list[tuple[Maker, str, Callable[[bytes], bytes], str]] = [
    (miniatures.cub, "image_class_labels.txt", first_line("1 201"), "'201' is not a class"),
    (miniatures.cub, "image_class_labels.txt", first_line("1 0"), "'0' is not a class"),
    (miniatures.cub, "image_class_labels.txt", first_line("1 one"), "'one' is not a class"),
    (miniatures.cub, "image_class_labels.txt", first_line(""), "its image numbers differ from those of images.txt"),
    (miniatures.cub, "train_test_split.txt", first_line("1 2"), "0 or 1, got '2'"),
    (miniatures.cub, "train_test_split.txt", first_line("2 1"), "twice"),
    (miniatures.cub, "images.txt", first_line("1"), "line 1 is '1', expected 2 fields"),
    (miniatures.cub, "images.txt", lambda _: b"", "it is empty"),
    (miniatures.cub, "images.txt", lambda _: b"1 \xff\xfe\n", "cannot be read"),
    (miniatures.cub, "classes.txt", lambda content: content + b"201 201.Dodo\n", "201 classes, expected 1 to 200"),
    (miniatures.aircraft, "variants.txt", first_line("Zeppelin"), "is not in variants.txt"),
    (miniatures.aircraft, "variants.txt", lambda content: content + b"Zeppelin\n", "101 variants, expected 100"),
    (miniatures.aircraft, "images_variant_test.txt", first_line("0000001 Zeppelin"), "the variant 'Zeppelin'"),
    (miniatures.pets, "annotations/test.txt", first_line("Cat_1 38 1 1"), "'38' is not a class"),
    (miniatures.pets, "annotations/test.txt", first_line("Dodo_1 2 1 1"), "class 2 is both"),
    (miniatures.pets, "annotations/test.txt", first_line("Dodo_1"), "expected 4 fields"),
    (miniatures.cars, "devkit/cars_train_annos.mat", cut, "cars_train_annos.mat is not as published"),
    (miniatures.cars, "devkit/cars_meta.mat", lambda _: b"names", "cars_meta.mat is not as published"),
    (miniatures.imagenet100_flat, "ILSVRC2012_devkit_t12/data/meta.mat", cut, "meta.mat is not as published"),
    (
        miniatures.imagenet100_flat,
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt",
        first_line("7000"),
        "line 1 is '7000', which is not in meta.mat",
    ),
    (miniatures.herbarium19_json, "train.json", cut, "train.json is not as published"),
    (miniatures.herbarium19_json, "train.json", lambda _: b"[]", "train.json is not as published"),
    (miniatures.cifar10, "data_batch_2", cut, "data_batch_2 is not as published"),
    (miniatures.cifar10, "data_batch_2", lambda _: miniatures.python2_pickle([1, 2]), "does not hold a dict"),
    (miniatures.cifar10, "batches.meta", lambda _: miniatures.python2_pickle({b"names": [b"a"]}), "no label_names"),
    (miniatures.cifar10_binary, "data_batch_3.bin", lambda content: content[:-1], "not whole rows of 3073"),
    (miniatures.cifar10_binary, "data_batch_3.bin", lambda _: b"", "not whole rows"),
    (miniatures.cifar10_binary, "data_batch_3.bin", lambda content: b"\x0b" + content[1:], "a label is not in 0..9"),
    (miniatures.cifar100_binary, "train.bin", lambda content: content[:3073], "not whole rows of 3074"),
]


@pytest.mark.parametrize(
    ("maker", "file", "change", "part"), CHANGED, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_damaged_files(
    maker: Maker, file: str, change: Callable[[bytes], bytes], part: str, tmp_path: Path, published: Published
) -> None:
    made = maker(tmp_path / "sets")
    facts = published(FORMS[maker], made)
    (made.folder / file).write_bytes(change((made.folder / file).read_bytes()))
    said = complaint(facts.name, tmp_path / "sets")
    assert part in said and facts.how_to_get in said


def test_a_category_that_was_never_trained_on(tmp_path: Path, published: Published) -> None:
    made = miniatures.herbarium19_json(tmp_path / "sets")
    published("herbarium19", made)
    listed = json.loads((made.folder / "val.json").read_text())
    listed["annotations"][0]["category_id"] = 4000
    (made.folder / "val.json").write_text(json.dumps(listed))
    assert "category '4000'" in complaint("herbarium19", tmp_path / "sets")
