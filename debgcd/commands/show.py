"""Tables and JSON on standard output."""

from __future__ import annotations

import json
from typing import Any

from debgcd.progress import escaped

MISLEADING = 0.1  # accuracy on Old by class name minus accuracy by matching


def print_scores(scores: dict[str, Any]) -> None:
    """One row per classifier and split; a note if the column Old hides that known classes were recognised."""
    rows, hidden = [], []
    for part in ("unlabelled", "test"):
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


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print aligned columns: the first flush left, the others flush right. Control characters in cells are escaped."""
    head, *rows = ([escaped(cell) for cell in row] for row in [head, *rows])
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
