"""The manifest, one row per image, and the only way to assemble one from rows."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd.data.crop import Box, Crop, Picture
from debgcd.data.decode import Reason
from debgcd.errors import DataError

SPLITS = ("train", "test")

Rows = NDArray[np.int64]  # positions in a manifest


@dataclass(frozen=True)
class Skipped:
    """A file that is not used; both texts are valid UTF-8, whatever bytes the file name has."""

    file: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """The images and what is known about each; all five tuples have the same length.

    Training reads labels, never truths: only what measures a run calls `truth_ids` and `has_truth`.
    """

    paths: tuple[Picture, ...]  # files, or boxes in files; absolute, symbolic links not resolved, no duplicates
    labels: tuple[str | None, ...]  # only for labelled training images
    truths: tuple[str | None, ...]  # for evaluation only
    splits: tuple[str, ...]  # "train" or "test"
    groups: tuple[str | None, ...]  # images of one scene have the same
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (self.paths, self.labels, self.truths, self.splits, self.groups)}
        if len(lengths) > 1:
            raise ValueError(f"the columns of a manifest must have the same length, got {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def classes(self) -> tuple[str, ...]:
        """The known classes, sorted as strings: category c < M is classes[c]."""
        return tuple(sorted({label for label in self.labels if label is not None}))

    @property
    def training_rows(self) -> Rows:
        """Rows of the training split, labelled or not: all that training sees."""
        return np.flatnonzero([split == "train" for split in self.splits])

    @property
    def test_rows(self) -> Rows:
        """Rows of the test split: measured, never trained on."""
        return np.flatnonzero([split == "test" for split in self.splits])

    @property
    def training_paths(self) -> list[Picture]:
        """The files of the training rows."""
        return [self.paths[row] for row in self.training_rows]

    @property
    def training_labels(self) -> NDArray[np.int64]:
        """The class ids of the training rows, positions in `classes`; -1 without a label."""
        number: dict[str | None, int] = {None: -1, **{name: i for i, name in enumerate(self.classes)}}
        return np.array([number[self.labels[row]] for row in self.training_rows], dtype=np.int64)

    @property
    def training_groups(self) -> NDArray[np.int64]:
        """The group of each training row as a number; -1 where it has none."""
        number: dict[str | None, int] = {None: -1}
        for row in self.training_rows:
            number.setdefault(self.groups[row], len(number) - 1)
        return np.array([number[self.groups[row]] for row in self.training_rows], dtype=np.int64)

    def truth_ids(self, rows: Rows) -> NDArray[np.int64]:
        """The truth of these rows as ids: known classes 0..M-1, others from M sorted by name; -1 without a truth."""
        others = sorted({truth for truth in self.truths if truth is not None} - set(self.classes))
        number: dict[str | None, int] = {None: -1, **{name: i for i, name in enumerate([*self.classes, *others])}}
        return np.array([number[self.truths[row]] for row in rows], dtype=np.int64)

    @property
    def has_truth(self) -> bool:
        """Whether an image without a label has a truth, so that there is something to measure against."""
        return any(truth is not None and label is None for truth, label in zip(self.truths, self.labels, strict=True))

    @property
    def tests_known_classes(self) -> bool:
        """Whether the test split has an image whose truth is a known class."""
        known = set(self.classes)
        return any(self.truths[row] in known for row in self.test_rows)

    def select(self, rows: np.ndarray | Iterable[int]) -> "Manifest":
        """The rows of a boolean mask (N,) or of indices, in that order; `skipped` is kept whole."""
        chosen = np.asarray(rows if isinstance(rows, np.ndarray) else list(rows))
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ValueError(f"the mask must have one entry per row, shape ({len(self)},), got {chosen.shape}")
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
    """One image on its way into a manifest; `where` locates it in error messages ("row 3 of m.csv")."""

    path: str
    label: str | None = None
    truth: str | None = None
    split: str = "train"
    group: str | None = None
    where: str = ""
    box: Box | None = None

    @property
    def picture(self) -> Picture:
        return Path(self.path) if self.box is None else Crop(Path(self.path), self.box)


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
    # a lone surrogate cannot be encoded, and class names are written to many files
    return str(value).strip().encode("utf-8", "backslashreplace").decode() or None


def label_text(value: Any) -> str | None:
    """As `text`, but also None for -1 and for "-1", which numpy makes of it in an array of strings."""
    label = text(value)
    return None if label == "-1" else label


def shown(path: str | Picture) -> str:
    """A path as valid UTF-8; invalid bytes appear as \\xNN."""
    return os.fsencode(str(path)).decode("utf-8", "backslashreplace")


def skip(path: str | Picture, reason: Reason, detail: str) -> Skipped:
    """An entry for skipped.csv in the form "reason: detail"."""
    return Skipped(shown(path), f"{reason}: {detail}")


def assemble(rows: Iterable[Row], skipped: Iterable[Skipped] = ()) -> Manifest:
    """A manifest of rows in their order, without duplicates.

    Two rows with the same real path and the same box are duplicates. The first one is kept, or the labelled one; duplicates that disagree
    in label, truth or split are an error.
    """
    kept: dict[tuple[str, Box | None], Row] = {}
    out = list(skipped)
    folders: dict[str, str] = {}
    for row in rows:
        if problem := _bad_name(row.path):
            out.append(skip(row.path, Reason.BAD_NAME, problem))
            continue
        if row.label is not None and row.split == "test":
            raise DataError(
                f"{row.where or shown(row.path)} has the label {row.label!r} and split 'test'; only training images have "
                "labels, so put it into the column truth"
            )
        identity = _real(row.path, folders), row.box
        first = kept.setdefault(identity, row)
        if first is row:
            continue
        _agree(first, row)
        if first.label is None and row.label is not None:
            kept[identity], row = row, first
        what = "file" if row.box is None else "box"
        out.append(skip(row.picture, Reason.DUPLICATE, f"the same {what} as {kept[identity].picture}"))
    unique = list(kept.values())
    return Manifest(
        paths=tuple(row.picture for row in unique),
        labels=tuple(row.label for row in unique),
        truths=tuple(row.truth for row in unique),
        splits=tuple(row.split for row in unique),
        groups=tuple(row.group for row in unique),
        skipped=tuple(out),
    )


def _bad_name(path: str) -> str:
    """Why a name cannot be used: all that a run writes about an image is UTF-8, so its name must be, too."""
    if "\0" in path:
        return "its name has a zero byte"
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    return ""


def _real(path: str, folders: dict[str, str]) -> str:
    """`os.path.realpath`, cached per folder: it makes a system call for every part of a path."""
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
            both = " and ".join(dict.fromkeys(row.where or str(row.picture) for row in (first, second)))
            raise DataError(
                f"{first.picture} has two {what}s, {one!r} and {two!r} (see {both}); keep the right one and remove the other"
            )
