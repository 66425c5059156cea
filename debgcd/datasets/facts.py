"""What was published about each benchmark, its files on disk checked against that, and every number of the paper's tables.

The published classes, sizes and addresses are data, `datasets/splits/*.json`, and so are the eighteen tables,
`datasets/paper.json`. A file that is missing or
differs from the published one is an error that names the file and says how to get it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from debgcd.data.sources import IMAGE_SUFFIXES
from debgcd.errors import DataError, UsageError, suggest
from debgcd.system.files import parse_json, readable

NAMES = ("cifar10", "cifar100", "imagenet100", "imagenet1k", "cub", "cars", "aircraft", "pets", "herbarium19")

Entries = tuple[tuple[str, int], ...]  # absolute path and class of each image


@dataclass(frozen=True)
class Archive:
    """A file to download."""

    address: str
    checksum: str  # as published, "md5:..." or "sha256:..."
    inside: str  # the folder in the archive that holds the set; "" for the whole archive


@dataclass(frozen=True)
class Facts:
    """One set. Classes are numbered in the set's own order; `old` ones are labelled, `new` ones are to be discovered."""

    name: str
    title: str
    folder: str  # the usual name of its folder
    train: int | None  # images; None where the number was not published
    test: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    paper: (
        dict[str, Any] | None
    )  # the row of the paper's Table 1, numbers of images as printed ("1.5K"); None if it has none
    archives: tuple[Archive, ...] = ()  # none where they require a login or a form
    by_hand: str = ""  # how to get it without archives
    synsets: tuple[str, ...] = ()  # the classes of ImageNet-100, which are folders of ImageNet

    @property
    def classes(self) -> int:
        """K: old and new together."""
        return len(self.old) + len(self.new)

    @property
    def how_to_get(self) -> str:
        """The end of an error message about a missing file."""
        return f"to get the complete set: debgcd fetch {self.name} --root DIR" if self.archives else self.by_hand


def resolve(name: str) -> str:
    """The name of a set as in NAMES; case, hyphens and underscores do not matter."""
    plain = name.lower().replace("-", "").replace("_", "")
    if plain in NAMES:
        return plain
    raise UsageError(f"no benchmark {name!r}{suggest(plain, NAMES)}")


@cache
def facts_of(name: str) -> Facts:
    """The published facts of a set, by any name that `resolve` takes."""
    name = resolve(name)
    file = resources.files("debgcd.datasets") / "splits" / f"{name}.json"
    data: dict[str, Any] = parse_json(file.read_text("utf-8"))
    archives = tuple(Archive(**archive) for archive in data.pop("archives", ()))
    fields = {key: value for key, value in data.items() if key in Facts.__dataclass_fields__}
    published: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return Facts(name=name, paper=data_sets().get(name), archives=archives, **published)


@dataclass(frozen=True)
class Listing:
    """The images of a set on disk, in the set's own order: the published labelled half depends on that order."""

    folder: Path
    classes: tuple[str, ...]  # class i of the published split is classes[i]
    train: Entries
    test: Entries


def find_folder(facts: Facts, root: Path, is_set: Callable[[Path], bool], sign: str, inner: Sequence[str] = ()) -> Path:
    """The set's folder: `root`, a folder in it, or one of `inner` in these; `sign` is what `is_set` looks for.

    A partly unpacked set is recognised by the name of its folder: the layout then reports which file is missing.
    """
    root = Path(os.path.abspath(root))
    if not root.is_dir():
        raise UsageError(f"no folder {root}; give the folder of {facts.title} or its parent")
    usual = root / facts.folder
    with readable(root, "check its permissions"):
        children = sorted(Path(entry.path) for entry in os.scandir(root) if entry.is_dir())
    outer = [root, *(child for child in (usual, *children) if child.is_dir())]
    for place in outer:
        for candidate in (place, *(place / name for name in inner)):
            if is_set(candidate):
                return candidate
    for place in (root, usual):
        if place.is_dir() and place.name == facts.folder:
            return next((place / name for name in inner if (place / name).is_dir()), place)
    raise DataError(f"no {facts.title} in {root}: neither it nor a folder in it has {sign}; {facts.how_to_get}")


def need(facts: Facts, folder: Path, name: str) -> Path:
    """A file or folder that must exist."""
    path = folder / name
    if not path.exists():
        raise DataError(f"{facts.title} in {folder} is incomplete: {name} is missing; {facts.how_to_get}")
    return path


def broken(facts: Facts, path: Path, why: str) -> DataError:
    """The error for a file that exists but differs from the published one."""
    return DataError(f"{path} is not as published ({why}); replace it; {facts.how_to_get}")


@contextmanager
def as_published(facts: Facts, path: Path) -> Iterator[None]:
    """Turn whatever reading this file raises into `broken`: scipy, for one, raises nearly anything on damaged input."""
    try:
        yield
    except Exception as error:
        raise broken(facts, path, f"it cannot be read: {error}") from error


def need_images(facts: Facts, listed: Path, images: Iterable[tuple[str, int]]) -> Entries:
    """Images named in a list; a missing one is an error, never left out."""
    found = tuple(images)
    absent = [path for path, _ in found if not os.path.isfile(path)]
    if absent:
        raise DataError(
            f"{len(absent)} of the {len(found)} images named in {listed} are missing, the first is {absent[0]}; "
            f"{facts.how_to_get}"
        )
    return found


def read_list(facts: Facts, path: Path, fields: int) -> list[list[str]]:
    """The rows of a text list with this many fields (the last may contain spaces); blank and # lines are skipped."""
    with as_published(facts, path):
        lines = path.read_bytes().decode("utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        row = line.strip().split(maxsplit=fields - 1)
        if len(row) != fields:
            raise broken(facts, path, f"line {number} is {line[:60]!r}, expected {fields} fields")
        rows.append(row)
    if not rows:
        raise broken(facts, path, "it is empty")
    return rows


def read_mat(facts: Facts, path: Path, name: str) -> np.ndarray:
    """One variable of a MATLAB file, as a flat array."""
    from scipy.io import loadmat  # here, because most sets do not need it

    with as_published(facts, path):
        variables: dict[str, Any] = loadmat(path, variable_names=[name], squeeze_me=True)
    if name not in variables:
        raise broken(facts, path, f"it has no {name}")
    return np.atleast_1d(variables[name])


def class_number(facts: Facts, path: Path, text: str) -> int:
    """A class id from 0, of the number from 1 that lists use."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= facts.classes:
        raise broken(facts, path, f"{text[:60]!r} is not a class number in 1..{facts.classes}")
    return int(text) - 1


def class_folders(folder: Path) -> list[str]:
    """The names of the subfolders, sorted as strings."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def folder_images(folder: Path) -> list[str]:
    """The paths of the images in one folder, sorted by name."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    return [os.path.join(folder, name) for name in names if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES]


@dataclass(frozen=True)
class Number:
    """A number as printed, in percent or in classes, with its deviation where the table has one."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Table:
    """A table of results: the measures, and per row the numbers of each set ("average" is one of them)."""

    number: int
    title: str
    measures: tuple[str, ...]
    rows: dict[str, dict[str, dict[str, Number]]]  # row -> set -> measure; only what is printed


def data_sets() -> dict[str, dict[str, Any]]:
    """Table 1: one row per data set, numbers of images as printed ("1.5K")."""
    found: dict[str, dict[str, Any]] = _paper()["1"]["rows"]
    return found


@cache
def table(number: int) -> Table:
    """Tables 2 to 18."""
    data = _paper()[str(number)]
    rows = {
        row: {
            name: {measure: _number(value) for measure, value in zip(data["measures"], values, strict=False)}
            for name, values in sets.items()
        }
        for row, sets in data["rows"].items()
    }
    return Table(number, data["title"], tuple(data["measures"]), rows)


def _number(value: float | list[float]) -> Number:
    return Number(*value) if isinstance(value, list) else Number(value)


@cache
def _paper() -> dict[str, Any]:
    found: dict[str, Any] = parse_json((resources.files("debgcd.datasets") / "paper.json").read_text("utf-8"))
    return found
