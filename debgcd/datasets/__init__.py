"""The nine benchmarks of the paper, read from their original files, with the published classes and labelled half.

- `facts`: what was published about each set, the check of its files against that, and the paper's tables
- `layouts`: original files -> classes and images in order; `cifar`: the same for CIFAR's arrays, without unpickling
- `fetch`: resumable downloads, checksums, safe unpacking
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from debgcd.data.manifest import Manifest, Row, assemble
from debgcd.datasets.cifar import cifar10, cifar100
from debgcd.datasets.facts import NAMES, Facts, Listing, facts_of, resolve
from debgcd.datasets.layouts import aircraft, cars, cub, herbarium, imagenet, pets
from debgcd.errors import DataError, UsageError

__all__ = ["NAMES", "SPLITS", "Benchmark", "Facts", "Split", "facts_of", "read_benchmark", "resolve"]

Split = Literal["published", "stratified"]
SPLITS: tuple[Split, ...] = get_args(Split)

LAYOUTS: dict[str, Callable[[Facts, Path, Path], Listing]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagenet100": imagenet,
    "imagenet1k": imagenet,
    "cub": cub,
    "cars": cars,
    "aircraft": aircraft,
    "pets": pets,
    "herbarium19": herbarium,
}


@dataclass(frozen=True)
class Benchmark:
    """A complete set."""

    facts: Facts
    folder: Path
    split: Split
    manifest: Manifest

    @property
    def labelled(self) -> int:
        """|D_l|."""
        return int((self.manifest.training_labels >= 0).sum())

    @property
    def unlabelled(self) -> int:
        """|D_u|: the training images without a label."""
        return int((self.manifest.training_labels < 0).sum())

    @property
    def labelled_classes(self) -> int:
        """|Y_l|."""
        return len(self.manifest.classes)

    @property
    def unlabelled_classes(self) -> int:
        """|Y_u|: the classes of the training images without a label, old ones included."""
        rows = zip(self.manifest.truths, self.manifest.labels, self.manifest.splits, strict=True)
        return len({truth for truth, label, split in rows if split == "train" and label is None})

    def to_json(self) -> dict[str, Any]:
        """The numbers of the paper's Table 1, counted here and printed there; `paper` is None without a row."""
        here = {
            "labelled": self.labelled,
            "labelled_classes": self.labelled_classes,
            "unlabelled": self.unlabelled,
            "unlabelled_classes": self.unlabelled_classes,
        }
        return {
            "name": self.facts.name,
            "folder": str(self.folder),
            "split": self.split,
            "here": here,
            "paper": self.facts.paper,
        }


def read_benchmark(name: str, root: Path, cache: Path, split: Split = "published") -> Benchmark:
    """Read a set from its folder or that folder's parent; an incomplete set is an error, never a smaller set.

    cache: where the image files of sets that come as arrays (CIFAR) are kept.
    """
    about = facts_of(name)
    listing = LAYOUTS[about.name](about, root, cache)
    for part, rows, published in (("training", listing.train, about.train), ("test", listing.test, about.test)):
        if published is not None and len(rows) != published:
            raise _incomplete(about, listing.folder, f"{published} {part} images", len(rows))
    found = Benchmark(about, listing.folder, split, _to_manifest(listing, about.old, split))
    if about.train is None and about.paper is not None:  # only the paper's rounded numbers are published
        for side, count in (("labelled", found.labelled), ("unlabelled", found.unlabelled)):
            printed = about.paper[side]
            if as_printed(count, printed) != printed:
                raise _incomplete(about, listing.folder, f"{printed} labelled or unlabelled images", count)
    return found


def labelled_rows(classes: Sequence[int], old: Collection[int], split: Split) -> NDArray[np.int64]:
    """The labelled rows, ascending: half of those whose class is old.

    published: as in the public code of GCD, SimGCD and DebGCD, drawn over all old classes together, so a class may have
    more or fewer than half of its images labelled. stratified: half of each class, at least one image.
    """
    classes_of = np.asarray(classes, dtype=np.int64)
    # not a Generator: the published half is that of the legacy stream with seed 0
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
        raise UsageError(f"no split {split!r}; choose from {', '.join(SPLITS)}")
    return np.sort(chosen)


def _to_manifest(listing: Listing, old: Collection[int], split: Split) -> Manifest:
    """Training images first, then test images; labels only for the labelled half, truths for all."""
    labelled = set(labelled_rows([number for _, number in listing.train], old, split).tolist())
    rows = []
    for at, (path, number) in enumerate(listing.train):
        name = listing.classes[number]
        rows.append(Row(path, name if at in labelled else None, name, "train", where=path))
    rows += [Row(path, None, listing.classes[number], "test", where=path) for path, number in listing.test]
    manifest = assemble(rows)
    if manifest.skipped:
        first = manifest.skipped[0]
        raise DataError(
            f"{len(manifest.skipped)} images in {listing.folder} cannot be used, e.g. {first.file!r}: {first.reason}"
        )
    return manifest


def _incomplete(about: Facts, folder: Path, published: str, count: int) -> DataError:
    return DataError(
        f"{about.title} has {published}, but {folder} gives {count}: it is incomplete, or not the published set; "
        f"{about.how_to_get}"
    )


def as_printed(count: int, like: str) -> str:
    """A count in thousands with the digits that the paper prints: 1498 like "4.5K" is "1.5K"."""
    digits = len(like.rstrip("K").partition(".")[2])
    return f"{count / 1000:.{digits}f}K"
