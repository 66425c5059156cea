"""What commands write and print: files they may write and never replace, tables and JSON on standard output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debgcd.errors import UsageError
from debgcd.system.progress import escaped
from debgcd.system.text_table import text_table

if TYPE_CHECKING:
    from debgcd.run.categories import Category
    from debgcd.run.predictions import Prediction


RUN_FILES = ("config.yaml", "manifest.csv")  # a folder with both is a run directory
MODEL_FILES = ("config.json", "categories.json")  # a folder with both is a model folder
INPUT_OPTIONS = ("path", "run", "config", "backbone", "start", "detections")  # options that name what a command reads


def add_force(parser: argparse.ArgumentParser) -> None:
    """`--force`."""
    parser.add_argument("--force", action="store_true", help="replace output files that exist already")


def require_free(options: argparse.Namespace, flag: str, path: Path, images: Iterable[os.PathLike[str]] = ()) -> None:
    """Refuse an output file that exists unless --force is given; called before any work is done.

    Refused even with --force: a folder, a file inside a run or a model, an input of the command, one of its `images`.
    """
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a folder; give the path of a file")
    target = Path(os.path.realpath(path))
    for folder in target.parents:
        for names, what in ((RUN_FILES, "run directory"), (MODEL_FILES, "model folder")):
            if all((folder / name).is_file() for name in names):
                raise UsageError(f"{flag} {path} lies inside the {what} {folder}; choose a path outside it")
    if not target.is_file():  # a new file, a pipe or a device: nothing can be lost
        return
    inputs = [Path(given) for name in INPUT_OPTIONS if (given := getattr(options, name, None)) is not None]
    for given in inputs:
        if _same(given, target):
            raise UsageError(f"{flag} {path} is an input of this command; choose another path")
    if any(_same(image, target) for image in images) or any(_image_below(target, given) for given in inputs):
        raise UsageError(f"{flag} {path} is one of the input images; choose another path")
    if not options.force:
        raise UsageError(f"{flag} {path} exists; choose another path, or replace it with --force")


def _same(first: os.PathLike[str], second: Path) -> bool:
    """Whether both paths lead to the same file, also through symbolic or hard links."""
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):
        return False


def _image_below(file: Path, folder: Path) -> bool:
    """Whether a file in this folder has the suffix of an image; whether it can be decoded does not matter."""
    from debgcd.data.sources import IMAGE_SUFFIXES

    return file.suffix.lower() in IMAGE_SUFFIXES and folder.is_dir() and file.is_relative_to(os.path.realpath(folder))


def open_page(url: str) -> None:
    """Open a page in the browser if there is a screen and standard output is a terminal.

    url: it becomes an argument of the browser's command line, which every user of the machine can read.
    """
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if screen and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(url)


TERMINAL_WIDTH = 80  # columns
CATEGORIES_LISTED = 30  # in the table at the end of a run
MISLEADING_GAP = 0.1  # accuracy on Old by class name minus accuracy by matching, above which a note is printed


def print_summary(
    rows: Sequence[Prediction], categories: Sequence[Category], said: Sequence[str], scores: dict[str, Any]
) -> None:
    """Print the summary of a run: a table of its categories, what `report.summary` says, and the accuracy if it is known."""
    members = defaultdict(list)
    for row in rows:
        members[row["category"]].append(row)
    used = sorted((each for each in categories if members[each.category]), key=lambda c: -len(members[c.category]))
    new = [each for each in used if not each.known]
    known = [each for each in used if each.known]
    empty = len(categories) - len(used)
    print(
        f"\nFound {_count(len(new), 'new category', 'new categories')} and images of "
        f"{_count(len(known), 'known class', 'known classes')} among {len(rows)} unlabelled images"
        + (f"; {_count(empty, 'category has', 'categories have')} none." if empty else ".")
    )
    lines = []
    for each in (new + known)[:CATEGORIES_LISTED]:
        images = sorted(members[each.category], key=lambda row: -row["confidence"])
        confidence = sum(row["confidence"] for row in images) / len(images)
        files = [Path(row["path"].partition("#xywh=")[0]).stem for row in images[:3]]
        kind = "known" if each.known else "new"
        lines.append([each.name, kind, str(len(images)), f"{100 * confidence:.0f} %", *files, *[""] * (3 - len(files))])
    print()
    short_table(["category", "", "images", "sure", "examples", "", ""], lines)
    if len(used) > CATEGORIES_LISTED:
        print(f"... and {len(used) - CATEGORIES_LISTED} more")
    print()
    for line in said:
        print(escaped(line))
    print_accuracy(scores)


def three_answers(
    answers: Mapping[str, int], categories: Sequence[Category], before: Mapping[str, int] | None
) -> list[str]:
    """How many new images show a known class, a category found before or none of these, and which categories grew, as lines.

    answers: see `predictions.tally`; before: how many images of the run each category has by its id, if that is known.
    """
    from debgcd.run.predictions import NOTHING

    living = {each.merged_into or each.id: each for each in categories}
    kinds = Counter({True: 0, False: 0})
    for id, count in answers.items():
        if id != NOTHING:
            kinds[living[id].known] += count
    text = f"{kinds[True]} show a known class, {kinds[False]} a category found before, {answers.get(NOTHING, 0)} none of these"
    rows = []
    for id, count in sorted(answers.items(), key=lambda item: -item[1]):
        if id != NOTHING:
            size = [] if before is None else [str(before.get(id, 0)), str(before.get(id, 0) + count)]
            rows.append(
                [
                    _shorten(living[id].name, TERMINAL_WIDTH // 3),
                    "known" if living[id].known else "found",
                    f"+{count}",
                    *size,
                ]
            )
    if not rows:
        return [text]
    head = ["category", "", "new", *([] if before is None else ["before", "now"])]
    more = [f"... and {len(rows) - CATEGORIES_LISTED} more"] if len(rows) > CATEGORIES_LISTED else []
    return [text, *text_table(head, rows[:CATEGORIES_LISTED]).splitlines(), *more]


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def print_accuracy(scores: dict[str, Any]) -> None:
    """Print the accuracy on each split whose truth is known."""
    names = {"unlabelled": "unlabelled images", "reviewed": "unlabelled images after the review", "test": "test images"}
    for part, name in names.items():
        if part in scores:
            accuracy = scores[part]["gcd"]["accuracy"]
            named = scores[part]["gcd"].get("named", accuracy["old"])  # by name: a matching may call a wrong name right
            print(
                f"Accuracy on the {name}: {percent(accuracy['all'])} % (known classes {percent(named)} % by name, new "
                f"categories {percent(accuracy['new'])} %)."
            )


def print_scores(scores: dict[str, Any]) -> None:
    """Print a table with a row per classifier and split; and a note if Old understates how many old images got their class."""
    rows, hidden = [], []
    for part in ("unlabelled", "reviewed", "test"):
        for classifier in ("gcd", "debiased"):
            measured = scores.get(part, {}).get(classifier)
            if measured is None:
                continue
            accuracy, errors = measured["accuracy"], measured["errors"]
            auroc = scores[part]["auroc"] if classifier == "gcd" else None
            values = [accuracy[name] for name in ("all", "old", "new")]
            values += [measured["balanced"], measured["nmi"], measured["ari"], auroc]
            values += [errors[name] for name in ("true_old", "false_new", "false_old", "true_new")]
            rows.append([part, classifier, str(measured["images"]), *map(percent, values)])
            # an older evaluation.json has no `named`
            old, named = accuracy["old"], measured.get("named")
            if old is not None and named is not None and named - old > MISLEADING_GAP:
                hidden.append(f"{percent(named)} % ({part}, {classifier})")
    names = ["images", "All", "Old", "New", "balanced", "NMI", "ARI", "AUROC"]
    names += ["True Old", "False New", "False Old", "True New"]
    table(["of", "classifier", *names], rows)
    if hidden:
        print(
            "note: Old and New are based on one matching of categories to classes (Eq. 15), which may assign the category of a "
            f"known class to a larger new class; by class name, Old images in their class: {', '.join(hidden)}"
        )


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def table(head: list[str], rows: list[list[str]], left: Collection[int] = (0,)) -> None:
    """Print aligned columns, see `text_table`."""
    print(text_table(head, rows, left))


def short_table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table that fits into a terminal: its last three columns are file names, which share the remaining width."""
    lines = [[escaped(cell) for cell in row] for row in [head, *rows]]
    lines = [[_shorten(row[0], TERMINAL_WIDTH // 3), *row[1:]] for row in lines]
    widths = [max(len(row[i]) for row in lines) for i in range(len(head) - 3)]
    name_width = (TERMINAL_WIDTH - sum(widths) - 2 * len(widths) - 4) // 3
    head, *rows = ([*row[:-3], *(_shorten(name, name_width) for name in row[-3:])] for row in lines)
    table(head, rows, left=(0, *range(len(head) - 3, len(head))))


def _shorten(text: str, width: int) -> str:
    """The text in at most `width` characters, with dots for its middle: file names often differ only at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 2) // 2
    return text[: width - 2 - tail] + ".." + text[len(text) - tail :]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
