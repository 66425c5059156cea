"""Where a set lies, and what every layout asks of its files: there, readable, complete; else an error that names them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from debgcd.data.benchmarks.facts import Facts
from debgcd.data.sources import IMAGE_SUFFIXES
from debgcd.errors import DataError, UsageError


@dataclass(frozen=True)
class Images:
    """A set as it lies on disk, all in its own order: the published labelled half depends on that order."""

    folder: Path
    classes: tuple[str, ...]  # class i of the published split is classes[i]
    train: tuple[tuple[str, int], ...]  # absolute path, class
    test: tuple[tuple[str, int], ...]


def find_folder(facts: Facts, root: Path, is_set: Callable[[Path], bool], sign: str, inner: Sequence[str] = ()) -> Path:
    """The set's folder: `root`, a folder in it, or one of `inner` in these; `sign` is what `is_set` looks for.

    A half-unpacked set is returned too, by the name of its folder: the layout then says which file is missing.
    """
    root = Path(os.path.abspath(root))
    if not root.is_dir():
        raise UsageError(f"there is no folder {root}: --root is the folder of {facts.title}, or the one it lies in")
    usual = root / facts.folder
    try:
        children = sorted(Path(entry.path) for entry in os.scandir(root) if entry.is_dir())
    except OSError as error:
        raise DataError(f"{root} cannot be read ({error.strerror}): check its permissions") from error
    outer = [root, *(child for child in (usual, *children) if child.is_dir())]
    for place in outer:
        for candidate in (place, *(place / name for name in inner)):
            if is_set(candidate):
                return candidate
    for place in (root, usual):
        if place.is_dir() and place.name == facts.folder:
            return next((place / name for name in inner if (place / name).is_dir()), place)
    raise DataError(
        f"there is no {facts.title} in {root}: neither it nor a folder in it has {sign}; {facts.how_to_get}"
    )


def need(facts: Facts, folder: Path, name: str) -> Path:
    """A file or folder that has to be there."""
    path = folder / name
    if not path.exists():
        raise DataError(f"{facts.title} in {folder} is not whole: {name} is missing; {facts.how_to_get}")
    return path


def broken(facts: Facts, path: Path, why: str) -> DataError:
    """The error for a file that is there but is not what was published."""
    return DataError(f"{path} is not as published ({why}): replace it; {facts.how_to_get}")


def need_images(facts: Facts, listed: Path, images: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Images that a list names; one that is absent is an error, never left out."""
    found = tuple(images)
    absent = [path for path, _ in found if not os.path.isfile(path)]
    if absent:
        raise DataError(
            f"{len(absent)} of the {len(found)} images named in {listed} are missing, the first is {absent[0]}: "
            f"{facts.title} is not whole; {facts.how_to_get}"
        )
    return found


def read_list(facts: Facts, path: Path, fields: int) -> list[list[str]]:
    """The rows of a text list, each of this many fields (the last may hold spaces); blank and # lines left out."""
    try:
        lines = path.read_bytes().decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise broken(facts, path, f"it cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        row = line.strip().split(maxsplit=fields - 1)
        if len(row) != fields:
            raise broken(facts, path, f"line {number} is {line[:60]!r}, not {fields} fields")
        rows.append(row)
    if not rows:
        raise broken(facts, path, "it is empty")
    return rows


def read_mat(facts: Facts, path: Path, name: str) -> np.ndarray:
    """One variable of a MATLAB file, as a flat array."""
    from scipy.io import loadmat  # here, because most sets do without it

    try:
        found: dict[str, Any] = loadmat(path, variable_names=[name], squeeze_me=True)
    except Exception as error:  # scipy raises nearly anything on damaged input
        raise broken(facts, path, f"it cannot be read: {error}") from error
    if name not in found:
        raise broken(facts, path, f"it has no {name}")
    return np.atleast_1d(found[name])


def class_number(facts: Facts, path: Path, text: str) -> int:
    """A class as lists count them, from 1, as a number from 0."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= facts.classes:
        raise broken(facts, path, f"{text[:60]!r} is no class: they are numbered 1 to {facts.classes}")
    return int(text) - 1


def class_folders(folder: Path) -> list[str]:
    """The names of a folder's folders, sorted as strings."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def folder_images(folder: Path) -> list[str]:
    """The paths of the images in one folder, sorted by name."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    return [os.path.join(folder, name) for name in names if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES]
