"""Which half of the old classes' training images is labelled, and the manifest that follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from debgcd.data.benchmarks.places import Images
from debgcd.data.rows import Manifest, Row, assemble
from debgcd.errors import DataError, UsageError

Split = Literal["published", "stratified"]
SPLITS: tuple[Split, ...] = get_args(Split)


def labelled_rows(classes: Sequence[int], old: Collection[int], split: Split) -> NDArray[np.int64]:
    """Rows, in rising order, that are labelled: half of those whose class is old.

    published: as in the public code of GCD, SimGCD and DebGCD, drawn over all of them together, so a class may have more
    or fewer than half of its images labelled. stratified: half of each class, and never none.
    """
    classes_of = np.asarray(classes, dtype=np.int64)
    # Not a Generator: the published half is that of this legacy stream with this seed.
    stream = np.random.RandomState(0)
    if split == "published":
        rows = np.flatnonzero(np.isin(classes_of, list(old)))
        chosen = rows[stream.choice(len(rows), len(rows) // 2, replace=False)]
    elif split == "stratified":
        parts = []
        for number in sorted(old):
            rows = np.flatnonzero(classes_of == number)
            parts.append(stream.choice(rows, min(len(rows), max(1, len(rows) // 2)), replace=False))
        chosen = np.concatenate(parts)
    else:
        raise UsageError(f"there is no split {split!r}; choose from {', '.join(SPLITS)}")
    return np.sort(chosen)


def to_manifest(images: Images, old: Collection[int], split: Split) -> Manifest:
    """Training images first, then test images; `label` for the labelled half alone, `truth` for all."""
    labelled = set(labelled_rows([number for _, number in images.train], old, split).tolist())
    rows = []
    for at, (path, number) in enumerate(images.train):
        name = images.classes[number]
        rows.append(Row(path, name if at in labelled else None, name, "train", where=path))
    rows += [Row(path, None, images.classes[number], "test", where=path) for path, number in images.test]
    manifest = assemble(rows)
    if manifest.skipped:
        first = manifest.skipped[0]
        raise DataError(
            f"{len(manifest.skipped)} images in {images.folder} cannot be listed, e.g. {first.file!r}: {first.reason}"
        )
    return manifest
