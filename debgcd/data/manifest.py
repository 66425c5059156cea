"""The manifest: images, labels, truth, splits and groups; written as CSV, made from Python objects, checked for training."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from debgcd.data.image.crop import BOX, Box, Crop, Picture, number_text
from debgcd.data.image.decode import Reason
from debgcd.errors import DataError, UsageError
from debgcd.system.files import csv_text, named_errors, write_text

COLUMNS = ("path", "label", "truth", "split", "group")  # of a table of images
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

    Training reads labels, never truths: only what measures a run calls `truth_ids` and `has_truth`. What is computed from
    the columns is computed once; callers must not change the arrays.
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

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The known classes, sorted as strings: category c < M is classes[c]."""
        return tuple(sorted({label for label in self.labels if label is not None}))

    @cached_property
    def training_rows(self) -> Rows:
        """Rows of the training split, labelled or not: all that training sees."""
        return np.flatnonzero([split == "train" for split in self.splits])

    @cached_property
    def test_rows(self) -> Rows:
        """Rows of the test split: measured, never trained on."""
        return np.flatnonzero([split == "test" for split in self.splits])

    @cached_property
    def training_paths(self) -> list[Picture]:
        """The files of the training rows."""
        return [self.paths[row] for row in self.training_rows]

    @cached_property
    def training_labels(self) -> NDArray[np.int64]:
        """The class ids of the training rows, positions in `classes`; -1 without a label."""
        number: dict[str | None, int] = {None: -1, **{name: i for i, name in enumerate(self.classes)}}
        return np.array([number[self.labels[row]] for row in self.training_rows], dtype=np.int64)

    @cached_property
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

    @cached_property
    def has_truth(self) -> bool:
        """Whether an image without a label has a truth, so that there is something to measure against."""
        return any(truth is not None and label is None for truth, label in zip(self.truths, self.labels, strict=True))

    @cached_property
    def tests_known_classes(self) -> bool:
        """Whether the test split has an image whose truth is a known class."""
        known = set(self.classes)
        return any(self.truths[row] in known for row in self.test_rows)

    def select(self, rows: np.ndarray | Iterable[int]) -> Manifest:
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
    """A path as valid UTF-8; invalid bytes appear as \\xNN, what stands for no byte at all as \\uNNNN."""
    try:
        return os.fsencode(str(path)).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate, from JSON
        return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


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
        if problem := bad_name(row.path):
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


def bad_name(path: str) -> str:
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


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write path, label, truth, split, group and, where there are boxes, x, y, w, h as CSV; `read_manifest` reads the same rows."""
    write_text(path, manifest_text(manifest))


def manifest_text(manifest: Manifest) -> str:
    """The CSV that `write_manifest` writes."""
    paths = [os.fspath(path) for path in manifest.paths]
    rows = zip(paths, manifest.labels, manifest.truths, manifest.splits, manifest.groups, strict=True)
    if not any(isinstance(path, Crop) for path in manifest.paths):
        return csv_text(COLUMNS, rows)
    boxes = (map(number_text, path.box) if isinstance(path, Crop) else [""] * len(BOX) for path in manifest.paths)
    return csv_text((*COLUMNS, *BOX), ((*row, *box) for row, box in zip(rows, boxes, strict=True)))


def write_skipped(skipped: Iterable[Skipped], path: Path) -> None:
    """Write file, reason as CSV, atomically."""
    write_text(path, skipped_text(skipped))


def skipped_text(skipped: Iterable[Skipped]) -> str:
    """The CSV that `write_skipped` writes."""
    return csv_text(("file", "reason"), ((entry.file, entry.reason) for entry in skipped))


def from_paths(
    paths: Iterable[str | os.PathLike[str]],
    labels: Iterable[Any] | None = None,
    truths: Iterable[Any] | None = None,
    splits: Iterable[str] | None = None,
    groups: Iterable[Any] | None = None,
) -> Manifest:
    """A manifest of these paths, in their order; -1, None, NaN and "" mean unlabelled, other labels become strings.

    The manifest may be shorter than `paths`: of a file given twice, the second row goes to `skipped`.
    """
    if isinstance(paths, str | os.PathLike):
        raise UsageError(
            f"paths must be a sequence of paths, got the one path {os.fspath(paths)!r}; put it into a list"
        )
    files = [os.path.abspath(path) for path in paths]
    if not files:
        raise DataError("no images in paths; give at least one")
    given = {"labels": labels, "truths": truths, "splits": splits, "groups": groups}
    columns = {name: _column(name, values, len(files)) for name, values in given.items()}
    rows = []
    for i, file in enumerate(files):
        split = text(columns["splits"][i]) or "train"
        if split not in SPLITS:
            raise UsageError(f"splits[{i}] is {split!r}; use 'train' or 'test'")
        label, truth = label_text(columns["labels"][i]), label_text(columns["truths"][i])
        rows.append(Row(file, label, truth, split, text(columns["groups"][i]), where=f"paths[{i}]"))
    return assemble(rows)


def from_arrays(
    images: Sequence[np.ndarray],
    labels: Iterable[Any] | None,
    folder: Path,
    truths: Iterable[Any] | None = None,
    groups: Iterable[Any] | None = None,
) -> Manifest:
    """Write images, each (H, W), (H, W, 3) or (H, W, 4), uint8 or float 0..1, as folder/000000.png ... and list them.

    Existing files with these names are overwritten.
    """
    folder = Path(os.path.abspath(folder))
    if not len(images):
        raise DataError("no images in the arrays; give at least one")
    given = {"labels": labels, "truths": truths, "groups": groups}
    columns = {name: _column(name, values, len(images)) for name, values in given.items()}
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for i, image in enumerate(images):
        paths.append(folder / f"{i:06d}.png")
        with named_errors(paths[-1]):
            Image.fromarray(_uint8(np.asarray(image), i)).save(paths[-1], compress_level=1)
    return from_paths(paths, columns["labels"], columns["truths"], groups=columns["groups"])


def relabelled(
    manifest: Manifest,
    labels: Mapping[str, str | None],
    out: Collection[str],
    ids: Mapping[str, str],
    more: Manifest | None,
    gone: Mapping[str, str],
) -> Manifest:
    """The images with these labels in place of their own, without those in `out`, and with the images of `more` that are not here.

    gone: why images cannot be used any more; they are skipped. labels, out, gone: by the text of a path. ids: what a truth, or
    a label of `more`, is called here, if not by itself.
    """
    rows, here = [], {_file(path) for path in manifest.paths if str(path) not in gone}
    skipped = [Skipped(shown(path), why) for path, why in gone.items()]
    for i, path in enumerate(manifest.paths):
        if str(path) not in out and str(path) not in gone:
            rows.append(_row(manifest, i, labels.get(str(path), manifest.labels[i]), ids))
    if more is None:
        return assemble(rows, skipped)
    for i, path in enumerate(more.paths):
        label = more.labels[i]
        if label is not None or _file(path) not in here:  # without a label it says nothing new
            rows.append(_row(more, i, None if label is None else ids.get(label, label), ids))
    return assemble(rows, [*more.skipped, *skipped])


def _file(path: Picture) -> str:
    """The file that a path leads to, and the box in it."""
    return os.path.realpath(path) + str(path.box if isinstance(path, Crop) else "")


def _row(manifest: Manifest, i: int, label: str | None, ids: Mapping[str, str]) -> Row:
    path, truth = manifest.paths[i], manifest.truths[i]
    return Row(
        path=os.fspath(path),
        label=label,
        truth=None if truth is None else ids.get(truth, truth),
        split=manifest.splits[i],
        group=manifest.groups[i],
        where=str(path),
        box=path.box if isinstance(path, Crop) else None,
    )


def require_trainable(manifest: Manifest, k: int | None) -> None:
    """Raise unless there are labelled and unlabelled training images, and K fits both."""
    label = manifest.training_labels
    if not (label >= 0).any():
        raise DataError(
            "no training image has a label, so there is no known class to start from; put labelled images into "
            "labelled/<class>/, or fill the column label"
        )
    if not (label < 0).any():
        raise DataError(
            "every training image has a label, so there is nothing to discover; put unlabelled images into "
            "unlabelled/, or leave their label empty"
        )
    known, count = len(manifest.classes), len(label)
    if k is not None and k < known:
        raise UsageError(
            f"K is {k}, but the labels name M = {known} classes; K counts known and new ones together, so choose K at "
            f"least {known}"
        )
    if k is not None and k > count:
        raise UsageError(f"K is {k}, but there are only {count} training images; choose K at most {count}")


def lost_classes(listed: Manifest, usable: Manifest) -> list[str]:
    """At most one line: the known classes that were lost because none of their images can be used."""
    lost = sorted(set(listed.classes) - set(usable.classes))
    if not lost:
        return []
    names = ", ".join(map(repr, lost[:5])) + (", ..." if len(lost) > 5 else "")
    return [f"no image of {names} can be used: {len(usable.classes)} of {len(listed.classes)} known classes left"]


def _column(name: str, values: Iterable[Any] | None, count: int) -> list[Any]:
    column = [None] * count if values is None else list(values)
    if len(column) != count:
        raise UsageError(f"{name} has {len(column)} entries for {count} images; give one per image")
    return column


def _uint8(image: np.ndarray, i: int) -> np.ndarray:
    if image.ndim not in (2, 3) or 0 in image.shape or (image.ndim == 3 and image.shape[2] not in (3, 4)):
        raise DataError(f"image {i} has the shape {image.shape}; give (H, W), (H, W, 3) or (H, W, 4)")
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    if image.dtype.kind != "f" or not (np.isfinite(image).all() and image.min() >= 0 and image.max() <= 1):
        raise DataError(f"image {i} has the type {image.dtype} or values out of range; give uint8, or floats in 0..1")
    return np.ascontiguousarray((image * 255).round().astype(np.uint8))
