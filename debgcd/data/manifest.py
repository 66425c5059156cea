"""The front door of this room: read, write and scan manifests, make them from Python objects, check them for training."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from debgcd.data.crop import BOX, Crop, Picture, number_text
from debgcd.data.rows import SPLITS, Manifest, Row, Skipped, assemble, label_text, text
from debgcd.data.scan import scan
from debgcd.data.sources import COLUMNS, read_manifest
from debgcd.errors import DataError, UsageError
from debgcd.files import csv_text, named_errors, write_text

__all__ = [
    "Manifest",
    "Skipped",
    "from_arrays",
    "from_paths",
    "lost_classes",
    "manifest_text",
    "read_manifest",
    "relabelled",
    "require_trainable",
    "scan",
    "write_manifest",
    "write_skipped",
]


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
    write_text(path, csv_text(("file", "reason"), ((entry.file, entry.reason) for entry in skipped)))


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
    labels: Mapping[str, str],
    out: Collection[str],
    ids: Mapping[str, str],
    more: Manifest | None = None,
) -> Manifest:
    """The images with these labels besides their own, without those in `out`, and with the images of `more` that are not here.

    labels, out: by the text of a path. ids: what a truth, or a label of `more`, is called here, if not by itself.
    """
    rows, here = [], {_file(path) for path in manifest.paths}
    for i, path in enumerate(manifest.paths):
        if str(path) not in out:
            rows.append(_row(manifest, i, labels.get(str(path), manifest.labels[i]), ids))
    if more is None:
        return assemble(rows)
    for i, path in enumerate(more.paths):
        label = more.labels[i]
        if label is not None or _file(path) not in here:  # without a label it says nothing new
            rows.append(_row(more, i, None if label is None else ids.get(label, label), ids))
    return assemble(rows, more.skipped)


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
