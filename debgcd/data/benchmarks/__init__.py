"""The nine benchmarks of the paper, each from its original files, with the published classes and labelled half."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from debgcd.data.benchmarks.cars import cars
from debgcd.data.benchmarks.cifar import cifar10, cifar100
from debgcd.data.benchmarks.facts import NAMES, Facts, facts_of, resolve
from debgcd.data.benchmarks.halves import SPLITS, Split, to_manifest
from debgcd.data.benchmarks.herbarium import herbarium
from debgcd.data.benchmarks.imagenet import imagenet
from debgcd.data.benchmarks.lists import aircraft, cub, pets
from debgcd.data.benchmarks.places import Images
from debgcd.data.rows import Manifest
from debgcd.errors import DataError

__all__ = ["NAMES", "SPLITS", "Benchmark", "Facts", "Split", "facts_of", "read_benchmark", "resolve"]

LAYOUTS: dict[str, Callable[[Facts, Path, Path], Images]] = {
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
    """A set that was read whole."""

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
        """|D_u|: training images without a label."""
        return int((self.manifest.training_labels < 0).sum())

    @property
    def labelled_classes(self) -> int:
        """|Y_l|."""
        return len(self.manifest.classes)

    @property
    def unlabelled_classes(self) -> int:
        """|Y_u|: classes of the training images without a label, old ones too."""
        rows = zip(self.manifest.truths, self.manifest.labels, self.manifest.splits, strict=True)
        return len({truth for truth, label, split in rows if split == "train" and label is None})

    def to_json(self) -> dict[str, Any]:
        """The numbers of the paper's Table 1, here and there; `paper` is None where it has no row."""
        here = {
            "labelled": self.labelled,
            "labelled_classes": self.labelled_classes,
            "unlabelled": self.unlabelled,
            "unlabelled_classes": self.unlabelled_classes,
        }
        paper = None if self.facts.paper is None else asdict(self.facts.paper)
        return {
            "name": self.facts.name,
            "folder": str(self.folder),
            "split": self.split,
            "here": here,
            "paper": paper,
        }


def read_benchmark(name: str, root: Path, cache: Path, split: Split = "published") -> Benchmark:
    """Read a set from its folder or the folder that holds it; one that is not whole is an error, never a smaller set.

    cache: where the images of sets that have them in arrays (CIFAR) are kept as files.
    """
    about = facts_of(name)
    images = LAYOUTS[about.name](about, root, cache)
    for part, rows, published in (("training", images.train, about.train), ("test", images.test, about.test)):
        if published is not None and len(rows) != published:
            raise _not_whole(about, images.folder, f"{published} {part} images", len(rows))
    found = Benchmark(about, images.folder, split, to_manifest(images, about.old, split))
    if about.train is None and about.paper is not None:  # then the paper's rounded numbers have to do
        for printed, count in ((about.paper.labelled, found.labelled), (about.paper.unlabelled, found.unlabelled)):
            if as_printed(count, printed) != printed:
                raise _not_whole(about, images.folder, f"{printed} labelled or unlabelled images", count)
    return found


def _not_whole(about: Facts, folder: Path, published: str, count: int) -> DataError:
    return DataError(
        f"{about.title} has {published}, but {folder} gives {count}: it is not whole, or not the published set; "
        f"{about.how_to_get}"
    )


def as_printed(count: int, like: str) -> str:
    """A number of images in thousands with as many digits as the paper prints: 1498 like "4.5K" is "1.5K"."""
    digits = len(like.rstrip("K").partition(".")[2])
    return f"{count / 1000:.{digits}f}K"
