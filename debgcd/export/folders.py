"""Folders of images: per category, or as `debgcd train` reads them; Hugging Face's imagefolder; FiftyOne's dataset."""

from __future__ import annotations

from pathlib import Path

from debgcd.data.sources import LABELLED, UNLABELLED
from debgcd.errors import UsageError
from debgcd.export.items import Item, Names, file_name, items, kept, put_images
from debgcd.review.log import outcome, read_review
from debgcd.run.directory import Run
from debgcd.system.files import csv_text, new_folder, write_json, write_text


def write_folders(run: Run, out: Path, link: str, separate: bool = False) -> None:
    """<category>/ with labelled and unlabelled images together.

    separate: labelled/<class>/ and unlabelled/<category>/ instead, which `debgcd train` reads as it reads the images of the run.
    """
    folders: dict[tuple[str, int], tuple[str, Names]] = {}
    names: dict[str, Names] = {}
    places = []
    with new_folder(out) as new:
        for item in sorted(kept(run), key=lambda item: item.category.category):
            side = "" if not separate else "labelled" if item.row is None else "unlabelled"
            if side not in names:
                names[side] = Names(
                    [] if separate else LABELLED | UNLABELLED
                )  # else a category would be read as one of these
            key = side, item.category.category
            if key not in folders:
                folders[key] = names[side].give(item.category.name), Names()
            folder, files = folders[key]
            places.append((item, new / side / folder / files.give(file_name(item))))
        put_images(places, link)


def write_hf(run: Run, out: Path, link: str) -> None:
    """Hugging Face's imagefolder: images/ and metadata.csv with a column file_name."""
    with new_folder(out) as new:
        found = _put(run, new / "images", link)
        head = ["file_name", "label", "id", "known", "labelled", "confidence", "novelty", "review", "added"]
        rows = [
            [
                f"images/{name}",
                item.category.name,
                item.category.id,
                str(item.category.known).lower(),
                str(item.row is None).lower(),
                item.confidence,
                item.novelty,
                item.review,
                item.added,
            ]
            for name, item in found
        ]
        write_text(new / "metadata.csv", csv_text(head, rows))


def write_fiftyone(run: Run, out: Path, link: str) -> None:
    """FiftyOne's FiftyOneImageClassificationDataset: data/ and labels.json, with confidence and attributes."""
    with new_folder(out) as new:
        found = _put(run, new / "data", link)
        living = [category for category in outcome(read_review(run.folder)) if category.merged_into is None]
        number = {category.category: i for i, category in enumerate(living)}
        labels = {}
        for name, item in found:
            attributes = {"id": item.category.id, "known": item.category.known, "labelled": item.row is None}
            attributes |= {"review": item.review} | ({} if item.added is None else {"added": item.added})
            attributes |= {} if item.novelty is None else {"novelty": item.novelty}
            given: dict[str, object] = {"label": number[item.category.category], "attributes": attributes}
            if item.confidence is not None:
                given["confidence"] = item.confidence
            labels[Path(name).stem] = given  # FiftyOne names images without the suffix
        write_json(new / "labels.json", {"classes": [category.name for category in living], "labels": labels})


def _put(run: Run, folder: Path, link: str) -> list[tuple[str, Item]]:
    """All images in one folder, and their names there; names are unique also without the suffix."""
    stems = Names()
    names = {}
    for item in items(run):
        safe = Names().give(file_name(item))
        names[item.picture] = stems.give(Path(safe).stem.replace(".", "_")) + Path(safe).suffix, item
    there = put_images([(item, folder / name) for name, item in names.values()], link)
    return [names[item.picture] for item in there]


def require_new_folder(out: Path) -> None:
    """Refuse a folder that is there: nothing is ever overwritten."""
    if out.exists() or out.is_symlink():
        raise UsageError(f"-o {out} exists; give the path of a new folder")
