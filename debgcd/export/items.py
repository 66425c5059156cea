"""What every format writes: the images of a run, each with its class or category; and safe names for files."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from debgcd.data.crop import Crop
from debgcd.data.sources import CLUTTER, IMAGE_SUFFIXES
from debgcd.errors import DataError, UsageError
from debgcd.inference.acts import ACCEPTED, REJECTED
from debgcd.inference.categories import Category
from debgcd.inference.predict import Prediction
from debgcd.progress import progress, say
from debgcd.train.finish import read_predictions
from debgcd.train.run import Run

UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*\u2028\u2029]+')  # not allowed on some system, or misread by some tool
RESERVED = {*CLUTTER, "con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(1, 10))}
LONGEST = 150  # bytes of a name; systems allow 255, and a number may be added

PUT: dict[str, Callable[[str, str], object]] = {"copy": shutil.copyfile, "hard": os.link, "symlink": os.symlink}


@dataclass(frozen=True)
class Item:
    """An image of a run: labelled, with its class, or unlabelled, with its predicted category."""

    path: Path
    category: Category
    row: Prediction | None  # of predictions.csv; None where the image is labelled

    @property
    def review(self) -> str:
        """What a reviewer said of it: open, accepted or rejected."""
        return ACCEPTED if self.row is None else str(self.row["review"])

    @property
    def confidence(self) -> float | None:
        return None if self.row is None else float(self.row["confidence"])

    @property
    def novelty(self) -> float | None:
        return None if self.row is None or self.row["novelty"] == "" else float(self.row["novelty"])


def items(run: Run) -> list[Item]:
    """The training images of a finished run, the unlabelled ones first, as a reviewer left them."""
    rows, categories = read_predictions(run)
    found = [Item(Path(str(row["path"])), categories[int(row["category"])], row) for row in rows]
    manifest = run.manifest
    number = {name: i for i, name in enumerate(manifest.classes)}
    for row in manifest.training_rows:
        label = manifest.labels[row]
        if label is not None:
            found.append(Item(Path(str(manifest.paths[row])), categories[number[label]], None))
    return found


def whole_files(run: Run) -> list[Item]:
    """The same, for formats that point to files or copy them: refused where an image is only a part of its file."""
    if any(isinstance(path, Crop) for path in run.manifest.paths):
        raise UsageError(
            f"the run in {run.folder} has objects in boxes, which this format cannot say; export it to csv or parquet"
        )
    return items(run)


def kept_files(run: Run) -> list[Item]:
    """`whole_files` without those that a reviewer rejected."""
    found = whole_files(run)
    kept = [item for item in found if item.review != REJECTED]
    if len(kept) < len(found):
        say(f"images that were rejected in the review and are left out: {len(found) - len(kept)}")
    return kept


def file_name(item: Item) -> str:
    """The name of an image; a folder is read by suffix, a file by its content, so any suffix of an image will do."""
    return item.path.name if item.path.suffix.lower() in IMAGE_SUFFIXES else f"{item.path.name}.jpg"


class Names:
    """Safe and unique names: of two that would be the same on some system, the second gets a number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, name: str) -> str:
        """A name near this one that is a plain file name everywhere."""
        stem, suffix = os.path.splitext(UNSAFE.sub("_", name).strip(". ") or "_")
        if {stem.lower(), f"{stem}{suffix}".lower()} & RESERVED:
            stem = f"_{stem}"
        stem = stem.encode()[:LONGEST].decode(errors="ignore").strip(". ") or "_"
        suffix = suffix.encode()[:20].decode(errors="ignore")
        for number in range(1, 10**9):
            given = f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}"
            if given.lower() not in self._taken:
                self._taken.add(given.lower())
                return given
        raise AssertionError("more names than numbers")


def put_images(places: Iterable[tuple[Path, Path]], how: str) -> None:
    """Copy or link each image to its new place, which must not be there yet."""
    pairs = list(places)
    with progress("writing images") as report:
        for done, (source, place) in enumerate(pairs, 1):
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                PUT[how](str(source), str(place))
            except FileNotFoundError as error:
                raise DataError(f"{source} was there when the run began but is not now; put the file back") from error
            except OSError as error:
                if how != "hard":
                    raise
                raise DataError(f"{source} cannot be linked to {place} ({error.strerror}); use --link copy") from error
            report(done, len(pairs))
