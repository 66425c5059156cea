"""Tables and JSON on standard output."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debgcd.system.progress import escaped

if TYPE_CHECKING:
    from debgcd.infer.predict import Prediction
    from debgcd.novelty.base import Novel
    from debgcd.run.categories import Category

WIDTH = 80  # columns of a terminal
LISTED = 30  # categories in the table at the end of a run
MISLEADING = 0.1  # accuracy on Old by class name minus accuracy by matching


def print_found(
    rows: Sequence[Prediction],
    categories: Sequence[Category],
    novel: Novel | None,
    scores: dict[str, Any],
    health: dict[str, Any] | None,
) -> None:
    """What a run found, in plain words: its categories, how many images look new, whether it is healthy."""
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
    for each in (new + known)[:LISTED]:
        found = sorted(members[each.category], key=lambda row: -float(row["confidence"]))
        sure = sum(float(row["confidence"]) for row in found) / len(found)
        files = [Path(str(row["path"]).partition("#xywh=")[0]).stem for row in found[:3]]
        kind = "known" if each.known else "new"
        lines.append([each.name, kind, str(len(found)), f"{100 * sure:.0f} %", *files, *[""] * (3 - len(files))])
    print()
    short_table(["category", "", "images", "sure", "examples", "", ""], lines)
    if len(used) > LISTED:
        print(f"... and {len(used) - LISTED} more")
    look_new = [row["looks_new"] for row in rows if row["looks_new"] != ""]
    if look_new and novel is not None:
        count = sum(value in (True, "true") for value in look_new)
        print(f"\n{count} of {len(look_new)} images look new ({_errors(novel)}).")
    print_accuracy(scores)
    if health is not None:
        print("The run is healthy." if health["healthy"] else f"Warning: in training, {health['problem']}.")
        if health["kept_step"] is not None:
            print(f"The model is that of step {health['kept_step']}, the best seen.")


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _errors(novel: Novel) -> str:
    """How often `looks_new` is expected to be wrong."""
    text = f"expected errors: {_share(novel.error_known)} of the known images"
    return text if novel.error_new is None else f"{text}, {_share(novel.error_new)} of the new ones"


def _share(value: float) -> str:
    return "under 1 %" if value < 0.01 else f"{100 * value:.0f} %"


def print_accuracy(scores: dict[str, Any]) -> None:
    """One line per split with truth: how many images are in the right category."""
    names = {"unlabelled": "unlabelled images", "reviewed": "unlabelled images after the review", "test": "test images"}
    for part, name in names.items():
        if part in scores:
            accuracy = scores[part]["gcd"]["accuracy"]
            old, new = percent(accuracy["old"]), percent(accuracy["new"])
            print(
                f"Accuracy on the {name}: {percent(accuracy['all'])} % (known classes {old} %, new categories {new} %)."
            )


def print_scores(scores: dict[str, Any]) -> None:
    """One row per classifier and split; a note if the column Old hides that known classes were recognised."""
    rows, hidden = [], []
    for part in ("unlabelled", "reviewed", "test"):
        for classifier in ("gcd", "debiased"):
            found = scores.get(part, {}).get(classifier)
            if found is None:
                continue
            accuracy, errors = found["accuracy"], found["errors"]
            auroc = scores[part]["auroc"] if classifier == "gcd" else None
            values = [accuracy[name] for name in ("all", "old", "new")]
            values += [found["balanced"], found["nmi"], found["ari"], auroc]
            values += [errors[name] for name in ("true_old", "false_new", "false_old", "true_new")]
            rows.append([part, classifier, str(found["images"]), *map(percent, values)])
            old, named = accuracy["old"], found.get("named")  # missing from an older evaluation.json
            if old is not None and named is not None and named - old > MISLEADING:
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
    """Print aligned columns, flush left if their number is in `left`. Control characters in cells are escaped."""
    head, *rows = ([escaped(cell) for cell in row] for row in [head, *rows])
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def short_table(head: list[str], rows: list[list[str]]) -> None:
    """As `table` in WIDTH columns: the last three columns are file names, which share what the others leave."""
    head, *rows = ([escaped(cell) for cell in row] for row in [head, *rows])
    lines = [[_cut(row[0], WIDTH // 3), *row[1:]] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in lines) for i in range(len(head) - 3)]
    each = (WIDTH - sum(widths) - 2 * len(widths) - 4) // 3
    files = [min(each, max(len(row[i]) for row in lines)) for i in (-3, -2, -1)]
    for row in lines:
        cells = [row[0].ljust(widths[0])] + [row[i].rjust(widths[i]) for i in range(1, len(widths))]
        cells += [_cut(name, width).ljust(width) for name, width in zip(row[-3:], files, strict=True)]
        print("  ".join(cells).rstrip())


def _cut(text: str, width: int) -> str:
    """At most this wide, with dots for the middle: names of files often differ at their ends only."""
    if len(text) <= width:
        return text
    tail = (width - 2) // 2
    return text[: width - 2 - tail] + ".." + text[len(text) - tail :]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
