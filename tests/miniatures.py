"""The nine benchmarks in miniature: all of their classes, a few images of each, in the original files' format.

Each maker writes a set and returns what is in it, in the order in which the set itself lists it.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from debgcd.datasets import facts_of

COLOURS = {
    "cat": (210, 60, 50),
    "dog": (60, 190, 70),
    "owl": (60, 80, 210),
}  # owl: no label names it


def draw(path: Path, kind: str, seed: int) -> Path:
    """A small noisy image in the colour of its kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).normal(0, 25, (24, 24, 3))
    Image.fromarray(np.clip(COLOURS[kind] + noise, 0, 255).astype(np.uint8)).save(path)
    return path


@dataclass(frozen=True)
class Made:
    """A miniature: its folder, and (path in it, class number, name of the class) of its images in the set's own order."""

    folder: Path
    train: list[tuple[str, int, str]]
    test: list[tuple[str, int, str]]


def _picture(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


PICTURES = [_picture(seed) for seed in range(8)]  # kinds of files are told by their content, so a PNG may be named .jpg


def write_images(folder: Path, rows: list[tuple[str, int, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    originals = [folder / f".{i}.png" for i in range(len(PICTURES))]
    for original, content in zip(originals, PICTURES, strict=True):
        original.write_bytes(content)
    for place in {(folder / name).parent for name, _, _ in rows}:
        place.mkdir(parents=True, exist_ok=True)
    for at, (name, _, _) in enumerate(rows):
        os.link(originals[at % len(PICTURES)], folder / name)  # quicker than thousands of files
    for original in originals:
        original.unlink()


def counts(classes: int) -> list[tuple[int, int]]:
    """(training, test) images of each class: few, and not the same number in each."""
    return [(1 + number % 2 if classes > 500 else 2 + number % 3, 1) for number in range(classes)]


def cub(root: Path) -> Made:
    folder = root / "CUB_200_2011"
    rows: list[tuple[str, int, str, int]] = []  # mixed within a class, as in the original
    for number, (train, test) in enumerate(counts(200)):
        name = f"{number + 1:03d}.Bird_{number}"
        for i in range(train + test):
            rows.append((f"images/{name}/Bird_{i:04d}.jpg", number, name, int(i != 1)))
    made = Made(
        folder,
        [row[:3] for row in rows if row[3]],
        [row[:3] for row in rows if not row[3]],
    )
    write_images(folder, made.train + made.test)
    names = sorted({(number, name) for _, number, name, _ in rows})
    lines = {
        "classes.txt": [f"{number + 1} {name}" for number, name in names],
        "images.txt": [f"{i} {path.removeprefix('images/')}" for i, (path, *_) in enumerate(rows, 1)],
        "image_class_labels.txt": [f"{i} {number + 1}" for i, (_, number, _, _) in enumerate(rows, 1)],
        "train_test_split.txt": [f"{i} {split}" for i, (*_, split) in enumerate(rows, 1)],
    }
    for file, text in lines.items():
        (folder / file).write_text("".join(f"{line}\n" for line in text))
    return made


def _shuffled(classes: int, name: Callable[[int], str], part: int, seed: int) -> list[tuple[int, str]]:
    """(class, its name), once for each image of a part, in an order that is not that of the classes."""
    found = [(number, name(number)) for number, sizes in enumerate(counts(classes)) for _ in range(sizes[part])]
    random.Random(seed).shuffle(found)
    return found


def cars(root: Path) -> Made:
    folder = root / "stanford_cars"
    parts = []
    for part, place in enumerate(("cars_train", "cars_test")):
        drawn = _shuffled(196, lambda number: f"Maker Model {number} 2012", part, seed=part)
        rows = [(f"{place}/{i:05d}.jpg", number, name) for i, (number, name) in enumerate(drawn, 1)]
        write_images(folder, rows)
        parts.append(rows)
    (folder / "devkit").mkdir()
    fields = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    for rows, file in zip(parts, ("cars_train_annos.mat", "cars_test_annos_withlabels.mat"), strict=True):
        annotations = np.zeros((1, len(rows)), dtype=[(field, object) for field in fields])
        for i, (path, number, _) in enumerate(rows):
            annotations[0, i] = (1, 2, 3, 4, number + 1, path.rpartition("/")[2])
        savemat(folder / "devkit" / file, {"annotations": annotations})
    names = np.zeros((1, 196), dtype=object)
    names[0] = [f"Maker Model {number} 2012" for number in range(196)]
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    return Made(folder, *parts)


def aircraft(root: Path) -> Made:
    folder = root / "fgvc-aircraft-2013b" / "data"
    # upper case sorts before lower case, and a name may hold a space
    names = sorted(
        [f"7{i:02d}-200" for i in range(40)] + [f"An-{i:02d}" for i in range(30)] + [f"ATR {i:02d}" for i in range(30)]
    )
    parts = []
    for part, file in enumerate(("images_variant_trainval.txt", "images_variant_test.txt")):
        drawn = _shuffled(100, names.__getitem__, part, seed=part)
        rows = [(f"images/{part + 1}{i:06d}.jpg", number, name) for i, (number, name) in enumerate(drawn)]
        write_images(folder, rows)
        (folder / file).write_text("".join(f"{Path(path).stem} {name}\n" for path, _, name in rows))
        parts.append(rows)
    shuffled = random.Random(0).sample(names, len(names))
    (folder / "variants.txt").write_text("".join(f"{name}\n" for name in shuffled))
    return Made(folder, *parts)


def pets(root: Path) -> Made:
    folder = root / "oxford-iiit-pet"
    parts = []
    (folder / "annotations").mkdir(parents=True)
    for part, file in enumerate(("trainval.txt", "test.txt")):
        rows = []
        for number, sizes in enumerate(counts(37)):
            name = f"British_Cat_{number}" if number % 2 else f"big_dog{number}"
            rows += [(f"images/{name}_{100 * part + i}.jpg", number, name) for i in range(sizes[part])]
        write_images(folder, rows)
        lines = [f"{Path(path).stem} {number + 1} {1 + number % 2} 7\n" for path, number, _ in rows]
        (folder / "annotations" / file).write_text("".join(lines))
        parts.append(rows)
    (folder / "annotations" / "list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\n")
    return Made(folder, *parts)


def herbarium19(root: Path) -> Made:
    folder = root / "herbarium-2019-fgvc6"
    categories = sorted(str(number) for number in range(683))  # as strings: 0, 1, 10, 100, ...
    parts = []
    for part, place in enumerate(("small-train", "small-validation")):
        rows = [
            (f"{place}/{category}/{i:05d}.jpg", number, category)
            for number, category in enumerate(categories)
            for i in range(counts(683)[number][part])
        ]
        write_images(folder, rows)
        parts.append(rows)
    return Made(folder, *parts)


def herbarium19_json(root: Path) -> Made:
    """The same with lists in COCO's form, in an order of their own."""
    made = herbarium19(root)
    for rows, file in ((made.train, "train.json"), (made.test, "val.json")):
        mixed = random.Random(0).sample(rows, len(rows))
        images = [{"id": 7 + i, "file_name": path, "width": 8} for i, (path, _, _) in enumerate(mixed)]
        marks = [{"id": i, "image_id": 7 + i, "category_id": int(name)} for i, (_, _, name) in enumerate(mixed)]
        (made.folder / file).write_text(json.dumps({"images": images, "annotations": marks, "categories": []}))
    return made


def imagenet(root: Path, synsets: list[str], others: list[str] = []) -> Made:  # noqa: B006 (not changed)
    """train/ and val/ in synset folders; `others` are synsets of ImageNet that are not in the set."""
    folder = root / "imagenet"
    parts = []
    for part, place in enumerate(("train", "val")):
        rows = [
            (f"{place}/{synset}/{synset}_{i}.JPEG", number, synset)
            for number, synset in enumerate(synsets)
            for i in range(counts(len(synsets))[number][part])
        ]
        write_images(folder, rows + [(f"{place}/{synset}/{synset}_1.JPEG", 0, "") for synset in others])
        parts.append(rows)
    return Made(folder, *parts)


def imagenet100(root: Path) -> Made:
    return imagenet(root, list(facts_of("imagenet100").synsets), ["n00000001", "n01537545", "n99999999"])


def imagenet1k(root: Path) -> Made:
    return imagenet(root, [f"n{10_000_000 + 7 * i}" for i in range(1000)])


def imagenet100_flat(root: Path) -> Made:
    """val/ as it is unpacked, with the devkit, whose numbers are not in the order of the synsets."""
    made = imagenet100(root)
    synsets = sorted({name for _, _, name in made.train} | {"n00000001", "n01537545", "n99999999"})
    ids = {synset: i for i, synset in enumerate(random.Random(0).sample(synsets, len(synsets)), 1)}
    truth = random.Random(1).sample([name for _, _, name in made.test] + ["n01537545"], len(made.test) + 1)
    for place in sorted((made.folder / "val").rglob("*"), reverse=True):
        place.unlink() if place.is_file() else place.rmdir()
    number = {name: number for _, number, name in made.train}
    images = [(f"val/ILSVRC2012_val_{i:08d}.JPEG", number.get(name, -1), name) for i, name in enumerate(truth, 1)]
    write_images(made.folder, images)
    devkit = made.folder / "ILSVRC2012_devkit_t12" / "data"
    devkit.mkdir(parents=True)
    (devkit / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{ids[name]}\n" for name in truth))
    table = np.zeros((len(ids), 1), dtype=[("ILSVRC2012_ID", object), ("WNID", object), ("words", object)])
    for i, (synset, identity) in enumerate(ids.items()):
        table[i, 0] = (identity, synset, "some words, and others")
    savemat(devkit / "meta.mat", {"synsets": table})
    return Made(made.folder, made.train, [row for row in images if row[1] >= 0])


# CIFAR. Pixels and labels are the same in every form.

TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
HUNDRED = [f"thing_{number:02d}" for number in range(100)]


@dataclass(frozen=True)
class Arrays:
    """(N, 32, 32, 3) pixels and classes; five batches of the same size, and the test images."""

    batches: list[tuple[np.ndarray, list[int]]]
    test: tuple[np.ndarray, list[int]]


def arrays(classes: int, batch: int) -> Arrays:
    draws = np.random.default_rng(classes)

    def some(count: int) -> tuple[np.ndarray, list[int]]:
        labels = [int(label) for label in draws.permutation(np.arange(count) % classes)]
        return draws.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), labels

    return Arrays([some(batch) for _ in range(5)], some(batch))


def rows_of(pixels: np.ndarray) -> np.ndarray:
    """(N, 3072): the red plane, the green, the blue, as CIFAR stores them."""
    return pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)


def made_of(folder: Path, content: Arrays, names: list[str]) -> Made:
    """The images' files are the program's own, so they are named by their place alone."""
    train = [label for _, labels in content.batches for label in labels]
    return Made(
        folder,
        [(f"train/{i:05d}.png", label, names[label]) for i, label in enumerate(train)],
        [(f"test/{i:05d}.png", label, names[label]) for i, label in enumerate(content.test[1])],
    )


TEN_ARRAYS = arrays(10, 30)
HUNDRED_ARRAYS = arrays(100, 60)


class Python2Pickle:
    """Writes protocol 2 as Python 2 did in 2009, which no Python of today does: texts are byte strings."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.puts = 0

    def put(self) -> None:
        self.puts += 1
        self.out += b"q" + bytes([self.puts]) if self.puts < 256 else b"r" + struct.pack("<I", self.puts)

    def text(self, value: bytes) -> None:
        if len(value) < 256:
            self.out += b"U" + bytes([len(value)]) + value
        else:
            self.out += b"T" + struct.pack("<i", len(value)) + value
        self.put()

    def number(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        else:
            self.out += b"J" + struct.pack("<i", value)

    def array(self, value: np.ndarray) -> None:
        self.out += b"cnumpy.core.multiarray\n_reconstruct\n"
        self.put()
        self.out += b"cnumpy\nndarray\n"
        self.put()
        self.out += b"K\x00\x85"
        self.put()
        self.out += b"U\x01b\x87R"
        self.put()
        self.out += b"(K\x01"
        for side in value.shape:
            self.number(side)
        self.out += b"\x86cnumpy\ndtype\n"
        self.put()
        self.out += b"U\x02u1K\x00K\x01\x87R"
        self.put()
        self.out += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        self.text(value.tobytes())
        self.out += b"tb"

    def value(self, value: object) -> None:
        if isinstance(value, bytes):
            self.text(value)
        elif isinstance(value, int):
            self.number(value)
        elif isinstance(value, np.ndarray):
            self.array(value)
        elif isinstance(value, list):
            self.out += b"]"
            self.put()
            self.out += b"("
            for item in value:
                self.value(item)
            self.out += b"e"
        else:
            assert isinstance(value, dict)
            self.out += b"}"
            self.put()
            self.out += b"("
            for key, item in value.items():
                self.text(key)
                self.value(item)
            self.out += b"u"


def python2_pickle(value: object) -> bytes:
    writer = Python2Pickle()
    writer.value(value)
    return bytes(writer.out) + b"."


def cifar10(root: Path) -> Made:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [name.encode() for name in TEN]
    (folder / "batches.meta").write_bytes(
        python2_pickle({b"num_cases_per_batch": 10000, b"label_names": names, b"num_vis": 3072})
    )
    files = [
        *((f"data_batch_{i}", *batch) for i, batch in enumerate(TEN_ARRAYS.batches, 1)),
        ("test_batch", *TEN_ARRAYS.test),
    ]
    for file, pixels, labels in files:
        listed = [f"image_{i}.png".encode() for i in range(len(labels))]
        value = {b"batch_label": b"training batch", b"labels": labels, b"data": rows_of(pixels), b"filenames": listed}
        (folder / file).write_bytes(python2_pickle(value))
    return made_of(folder, TEN_ARRAYS, TEN)


def cifar10_binary(root: Path) -> Made:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "batches.meta.txt").write_text("".join(f"{name}\n" for name in TEN) + "\n")
    files = [
        *((f"data_batch_{i}", *batch) for i, batch in enumerate(TEN_ARRAYS.batches, 1)),
        ("test_batch", *TEN_ARRAYS.test),
    ]
    for file, pixels, labels in files:
        rows = [bytes([label]) + row.tobytes() for label, row in zip(labels, rows_of(pixels), strict=True)]
        (folder / f"{file}.bin").write_bytes(b"".join(rows))
    return made_of(folder, TEN_ARRAYS, TEN)


def cifar10_npm(root: Path) -> Made:
    folder = root / "package"
    folder.mkdir(parents=True)
    files = [
        *((f"data_batch_{i}", batch[0]) for i, batch in enumerate(TEN_ARRAYS.batches, 1)),
        ("test_batch", TEN_ARRAYS.test[0]),
    ]
    for file, pixels in files:
        Image.fromarray(pixels.reshape(len(pixels), 1024, 3)).save(folder / f"{file}.png")
    (folder / "train_lables.json").write_text(
        json.dumps([label for _, labels in TEN_ARRAYS.batches for label in labels])
    )
    (folder / "test_lables.json").write_text(json.dumps(TEN_ARRAYS.test[1]))
    return made_of(folder, TEN_ARRAYS, TEN)


def _hundred() -> list[tuple[str, np.ndarray, list[int]]]:
    pixels = np.concatenate([pixels for pixels, _ in HUNDRED_ARRAYS.batches])
    labels = [label for _, labels in HUNDRED_ARRAYS.batches for label in labels]
    return [("train", pixels, labels), ("test", *HUNDRED_ARRAYS.test)]


def cifar100(root: Path) -> Made:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    names = [name.encode() for name in HUNDRED]
    (folder / "meta").write_bytes(python2_pickle({b"fine_label_names": names, b"coarse_label_names": [b"all"] * 20}))
    for file, pixels, labels in _hundred():
        coarse = [label // 5 for label in labels]
        value = {b"filenames": [b"x.png"] * len(labels), b"batch_label": b"1 of 1", b"fine_labels": labels}
        (folder / file).write_bytes(python2_pickle({**value, b"coarse_labels": coarse, b"data": rows_of(pixels)}))
    return made_of(folder, HUNDRED_ARRAYS, HUNDRED)


def cifar100_binary(root: Path) -> Made:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    (folder / "fine_label_names.txt").write_text("".join(f"{name}\n" for name in HUNDRED))
    for file, pixels, labels in _hundred():
        rows = [bytes([label // 5, label]) + row.tobytes() for label, row in zip(labels, rows_of(pixels), strict=True)]
        (folder / f"{file}.bin").write_bytes(b"".join(rows))
    return made_of(folder, HUNDRED_ARRAYS, HUNDRED)


# the maker of each form, and which benchmark it is
FORMS: dict[Callable[[Path], Made], str] = {
    cifar10: "cifar10",
    cifar10_binary: "cifar10",
    cifar100: "cifar100",
    cifar100_binary: "cifar100",
    imagenet100: "imagenet100",
    imagenet100_flat: "imagenet100",
    imagenet1k: "imagenet1k",
    cub: "cub",
    cars: "cars",
    aircraft: "aircraft",
    pets: "pets",
    herbarium19: "herbarium19",
    herbarium19_json: "herbarium19",
}
