"""What every format writes: the images of a run, each with its class or category; and safe names for files."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from debgcd.data.fingerprints import require_own
from debgcd.data.image.crop import Crop, Picture, number_text
from debgcd.data.image.decode import Unusable, decode, regular_file
from debgcd.data.sources import CLUTTER, IMAGE_SUFFIXES
from debgcd.errors import DataError, UsageError
from debgcd.review.log import read_review, reviewed_predictions
from debgcd.review.state import ACCEPTED, REJECTED
from debgcd.run.categories import Category
from debgcd.run.directory import Run, read_digests
from debgcd.run.predictions import Prediction
from debgcd.system.progress import progress, say

UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*\u2028\u2029]+')  # not allowed on some system, or misread by some tool
RESERVED = {*CLUTTER, "con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(1, 10))}
LONGEST = 150  # bytes of a name; systems allow 255, and a number may be added
LONGEST_SUFFIX = 20  # bytes; what is longer is no suffix of a file

NAMED = 20  # images left out that are named


@dataclass(frozen=True)
class Item:
    """An image of a run: labelled, with its class, or unlabelled, with its predicted category."""

    picture: Picture
    category: Category
    row: Prediction | None  # of predictions.csv; None where the image is labelled
    sha256: str  # of its file, when the run began

    @property
    def path(self) -> Path:
        """The file, whether or not the image is only a part of it."""
        return Path(os.fspath(self.picture))

    @property
    def is_crop(self) -> bool:
        return isinstance(self.picture, Crop)

    @property
    def review(self) -> str:
        """What a reviewer said of it: open, accepted or rejected."""
        return ACCEPTED if self.row is None else self.row["review"]

    @property
    def added(self) -> str | None:
        """The batch that it came with; None for an image of the run itself."""
        return None if self.row is None else self.row["added"]

    @property
    def confidence(self) -> float | None:
        return None if self.row is None else self.row["confidence"]

    @property
    def novelty(self) -> float | None:
        return None if self.row is None else self.row["novelty"]


def items(run: Run) -> list[Item]:
    """The training images of a finished run, the unlabelled ones first, as a reviewer left them."""
    rows, categories = reviewed_predictions(run.folder)
    manifest, digests = run.manifest, read_digests(run)
    said = {row["path"]: row for row in rows}
    number = {each.id: each.category for each in categories}
    corrected = read_review(run.folder).corrected()
    free, labelled = [], []
    for i in manifest.training_rows:
        picture, label = manifest.paths[i], manifest.labels[i]
        if label is not None and str(picture) in corrected:
            label = corrected[str(picture)]
            if label is None:  # it was taken away, and the model has said nothing of this image
                continue
        if label is None:
            row = said[str(picture)]
            free.append(Item(picture, categories[row["category"]], row, digests[i]))
        else:
            labelled.append(Item(picture, categories[number[label]], None, digests[i]))
    return free + labelled


def tell_left_out(gone: Mapping[Picture, str], there: int) -> None:
    """Say which images are not in an export and why: their files vanished or changed since the run, or cannot be read here."""
    if not gone:
        return
    if not there:
        picture, why = next(iter(gone.items()))
        raise DataError(f"no image of the run can be used, e.g. {picture}: {why}")
    more = f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""
    named = ", ".join(f"{picture} ({why})" for picture, why in list(gone.items())[:NAMED])
    say(f"left out of the export: {named}{more}")


def kept(run: Run) -> list[Item]:
    """`items` without those that a reviewer rejected."""
    found = items(run)
    kept = [item for item in found if item.review != REJECTED]
    if len(kept) < len(found):
        say(f"images that were rejected in the review and are left out: {len(found) - len(kept)}")
    return kept


def file_name(item: Item) -> str:
    """The name of an image; a folder is read by suffix, a file by its content, so any suffix of an image will do."""
    if isinstance(item.picture, Crop):
        return f"{item.path.stem}_{'_'.join(map(number_text, item.picture.box))}.png"
    return item.path.name if item.path.suffix.lower() in IMAGE_SUFFIXES else f"{item.path.name}.jpg"


class Names:
    """Safe and unique names: of two that would be the same on some system, the second gets a number.

    taken: names that nothing gets.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {name.lower() for name in taken}

    def give(self, name: str) -> str:
        """A name near this one that is a plain file name everywhere."""
        whole = UNSAFE.sub("_", name).strip(". ") or "_"
        stem, suffix = os.path.splitext(whole)
        if len(suffix.encode()) > LONGEST_SUFFIX:  # a name such as 183.Northern_Waterthrush
            stem, suffix = whole, ""
        if {stem.lower(), f"{stem}{suffix}".lower()} & RESERVED:
            stem = f"_{stem}"
        stem = stem.encode()[:LONGEST].decode(errors="ignore").strip(". ") or "_"
        for number in range(1, 10**9):
            given = f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}"
            if given.lower() not in self._taken:
                self._taken.add(given.lower())
                return given
        raise AssertionError("more names than numbers")


def put_images(places: Iterable[tuple[Item, Path]], how: str) -> list[Item]:
    """Copy or link each image to its new place; one that is a part of its file is cut out of it. Returns those that are there."""
    pairs = list(places)
    if how != "copy" and any(item.is_crop for item, _ in pairs):
        raise UsageError(f"--link {how} cannot link to a part of a file, and this run has boxes; use --link copy")
    there: list[Item] = []
    gone: dict[Picture, str] = {}
    with progress("writing images") as report:
        for done, (item, place) in enumerate(pairs, 1):
            report(done, len(pairs))
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                _put(item, place, how)
            except Unusable as error:
                gone[item.picture] = str(error)
                continue
            except OSError as error:
                if how != "hard":
                    raise
                raise DataError(
                    f"{item.path} cannot be linked to {place} ({error.strerror}); use --link copy"
                ) from error
            there.append(item)
    tell_left_out(gone, len(there))
    return there


def _put(item: Item, place: Path, how: str) -> None:
    """Unusable, and nothing at its place, where the file is not what the run was trained on."""
    if item.is_crop or how == "symlink":
        require_own(item.picture, item.sha256)
        if item.is_crop:
            Image.fromarray(decode(item.picture)).save(place)
        else:
            os.symlink(os.path.realpath(item.path), place)
        return
    regular_file(item.picture)
    if how == "hard":
        os.link(os.path.realpath(item.path), place)
    else:
        shutil.copyfile(item.path, place)
    try:
        require_own(place, item.sha256)  # what is there now: the file may change while it is copied
    except Unusable:
        place.unlink(missing_ok=True)
        raise
