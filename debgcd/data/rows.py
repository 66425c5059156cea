"""The manifest, one row an image, and the one way in which rows become one."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from debgcd.data.decode import Reason
from debgcd.errors import DataError

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Skipped:
    """A file that is not used; both texts are valid UTF-8, whatever the file's name is."""

    file: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """Which images there are and what is known about each; all five tuples are of one length."""

    paths: tuple[Path, ...]  # absolute, symbolic links not resolved, no file twice
    labels: tuple[str | None, ...]  # only for labelled training images
    truths: tuple[str | None, ...]  # for evaluation only: never read by training
    splits: tuple[str, ...]  # "train" or "test"
    groups: tuple[str | None, ...]
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.paths, self.labels, self.truths, self.splits, self.groups)}
        if len(lengths) > 1:
            raise ValueError(f"a manifest's columns must be of one length, not {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def classes(self) -> tuple[str, ...]:
        """The known classes, sorted as strings: category c < M is classes[c]."""
        return tuple(sorted({label for label in self.labels if label is not None}))

    def label_index(self) -> np.ndarray:
        """(N,) int64: each label's position in `classes`, -1 for unlabelled."""
        position = {name: at for at, name in enumerate(self.classes)}
        return np.array([-1 if label is None else position[label] for label in self.labels], dtype=np.int64)

    def is_train(self) -> np.ndarray:
        """(N,) bool: rows of the training split."""
        return np.array([split == "train" for split in self.splits], dtype=bool)

    def is_labelled(self) -> np.ndarray:
        """(N,) bool: rows with a label."""
        return np.array([label is not None for label in self.labels], dtype=bool)

    def select(self, rows: np.ndarray | Iterable[int]) -> "Manifest":
        """The rows of a boolean mask (N,) or of indices, in that order; `skipped` stays whole."""
        chosen = np.asarray(rows if isinstance(rows, np.ndarray) else list(rows))
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ValueError(f"the mask has shape {chosen.shape}, the manifest {len(self)} rows")
            chosen = np.flatnonzero(chosen)
        at = [int(row) for row in chosen]
        return Manifest(
            paths=tuple(self.paths[i] for i in at),
            labels=tuple(self.labels[i] for i in at),
            truths=tuple(self.truths[i] for i in at),
            splits=tuple(self.splits[i] for i in at),
            groups=tuple(self.groups[i] for i in at),
            skipped=self.skipped,
        )


@dataclass(frozen=True)
class Row:
    """One image on its way into a manifest; `where` is how an error message points at it ("row 3 of m.csv")."""

    path: str
    label: str | None = None
    truth: str | None = None
    split: str = "train"
    group: str | None = None
    where: str = ""


def text(value: Any) -> str | None:
    """A label, truth or group as a stripped string; None for None, NaN, NaT, NA and blank text.

    Whole floats lose their ".0": pandas turns a column of integers with gaps into floats.
    """
    value = value.item() if hasattr(value, "item") else value  # numpy and torch scalars
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float):
        if math.isnan(value):
            return None
        value = int(value) if value.is_integer() else value
    # A lone surrogate cannot be written to any file, and a class name goes into many.
    return str(value).strip().encode("utf-8", "backslashreplace").decode() or None


def label_text(value: Any) -> str | None:
    """As `text`, and None for -1, also for the "-1" that numpy makes of it in an array of strings."""
    label = text(value)
    return None if label == "-1" else label


def shown(path: str | Path) -> str:
    """A path as valid UTF-8; bytes that are none appear as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def skip(path: str | Path, reason: Reason, detail: str) -> Skipped:
    """An entry for skipped.csv in the form "reason: detail"."""
    return Skipped(shown(path), f"{reason}: {detail}")


def assemble(rows: Iterable[Row], skipped: Iterable[Skipped] = ()) -> Manifest:
    """Make a manifest of rows in their order, no file twice.

    Two rows are one file if their real paths are the same. The first one stays, or the labelled one; rows that
    contradict each other in label, truth or split are an error.
    """
    kept: dict[str, Row] = {}
    out = list(skipped)
    folders: dict[str, str] = {}
    for row in rows:
        if problem := _bad_name(row.path):
            out.append(skip(row.path, Reason.BAD_NAME, problem))
            continue
        if row.label is not None and row.split == "test":
            raise DataError(
                f"{row.where or shown(row.path)} has the label {row.label!r} and split 'test', but a label is only for "
                "training images: put it into the column truth."
            )
        identity = _real(row.path, folders)
        first = kept.setdefault(identity, row)
        if first is row:
            continue
        _agree(first, row)
        if first.label is None and row.label is not None:
            kept[identity], row = row, first
        out.append(skip(row.path, Reason.DUPLICATE, f"the same file as {kept[identity].path}"))
    unique = list(kept.values())
    return Manifest(
        paths=tuple(Path(row.path) for row in unique),
        labels=tuple(row.label for row in unique),
        truths=tuple(row.truth for row in unique),
        splits=tuple(row.split for row in unique),
        groups=tuple(row.group for row in unique),
        skipped=tuple(out),
    )


def _bad_name(path: str) -> str:
    """Why a name cannot be used: all that a run writes about an image is UTF-8, so its name has to be as well."""
    if "\0" in path:
        return "its name has a zero byte"
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    return ""


def _real(path: str, folders: dict[str, str]) -> str:
    """`os.path.realpath`, which asks for every part of every path, with the folders' answers remembered."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return os.path.join(folders[folder], name)


def _agree(first: Row, second: Row) -> None:
    for what in ("label", "truth", "split"):
        one, two = getattr(first, what), getattr(second, what)
        if one is not None and two is not None and one != two:
            both = " and ".join(dict.fromkeys(row.where or row.path for row in (first, second)))
            raise DataError(
                f"The file {first.path} has two {what}s, {one!r} and {two!r} (see {both}): keep the right one and "
                "remove the other."
            )
