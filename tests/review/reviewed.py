"""A finished run as its review sees it, without a training: what the model said, on disk."""

from __future__ import annotations

from pathlib import Path

from debgcd.run.categories import Category, categories
from debgcd.system.files import csv_text, write_json, write_text


def base(
    images: int = 12, known: tuple[str, ...] = ("ant", "bee"), k: int = 5
) -> tuple[dict[str, str], list[Category]]:
    """Images p00.png, ... of all categories in turn."""
    found = categories(known, k)
    return {f"p{i:02d}.png": found[i % k].id for i in range(images)}, found


def write_run(run: Path, images: int = 12) -> Path:
    """The files of a run that a review reads."""
    predicted, found = base(images)
    (run / "model").mkdir(parents=True)
    write_json(run / "model" / "config.json", {"known": 2})
    write_json(run / "model" / "categories.json", [one.to_json() for one in found])
    write_text(run / "predictions.csv", csv_text(["path", "id"], predicted.items()))
    return run
