"""Rows of predictions.csv, and categories of new images from a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from debgcd.data.image.crop import Picture
from debgcd.data.loader import default_workers, from_files
from debgcd.data.manifest import Manifest, Skipped
from debgcd.data.scan import scan
from debgcd.errors import DataError, UsageError
from debgcd.infer.infer import TOP, Inference, features, infer, probabilities
from debgcd.novelty.base import Novel
from debgcd.review.log import carry
from debgcd.run.categories import Category, living
from debgcd.run.model_folder import Model, load_model
from debgcd.system import distributed
from debgcd.system.files import csv_cell
from debgcd.system.progress import Report, progress
from debgcd.tokens.sources import FreshTokens

Prediction = dict[str, str | int | float | bool]  # one row of predictions.csv, by column
Table = dict[str, Any]  # a column by name: one value per image, or None where there is nothing to say

UNIT = 8192  # images per rank in a part: the most that is in memory, and that a kill can lose
COLUMNS = ["path", "category", "id", "name", "known", "confidence", "novelty"]
COLUMNS += [f"top{i}_{what}" for i in range(1, TOP + 1) for what in ("id", "p")]
COLUMNS += ["looks_new"]


def prediction_table(
    paths: Sequence[Picture], inference: Inference, categories: Sequence[Category], novel: Novel | None
) -> Table:
    """The columns of predictions.csv."""
    ids = np.array([category.merged_into or category.id for category in categories], object)
    names = np.array([category.name for category in categories], object)
    known, best = (
        np.array([category.known for category in categories]),
        np.array(living(categories))[inference.category],
    )
    table: Table = {
        "path": [str(path) for path in paths],
        "category": best,
        "id": ids[best],
        "name": names[best],
        "known": known[best],
        "confidence": inference.probability[:, 0],
        "novelty": inference.novelty,
    }
    for rank in range(TOP):
        there = rank < inference.top.shape[1]
        table[f"top{rank + 1}_id"] = ids[inference.top[:, rank]] if there else None
        table[f"top{rank + 1}_p"] = inference.probability[:, rank] if there else None
    known_limit = inference.novelty is not None and novel is not None
    table["looks_new"] = inference.novelty > novel.above if known_limit else None  # type: ignore[union-attr,operator]
    return table


def prediction_rows(table: Table) -> list[Prediction]:
    """One row per image; an empty text where there is nothing to say."""
    count = len(table["path"])
    columns = {name: np.full(count, "") if table[name] is None else np.asarray(table[name]) for name in COLUMNS}
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def predictions_csv(table: Table, header: bool = True) -> str:
    """The table as CSV, with true/false and six decimals."""
    columns = [_cells(table[name], len(table["path"])) for name in COLUMNS]
    rows = [",".join(COLUMNS)] if header else []
    rows += map(",".join, zip(*columns, strict=True))
    return "\n".join(rows) + "\n" if rows else ""


def _cells(values: Any, count: int) -> list[str]:
    """A column as text; formatted at once, because a loop over a million rows would take a minute."""
    if values is None:
        return [""] * count
    if isinstance(values, list):
        return [csv_cell(text) for text in values]
    if values.dtype == object:  # few texts, each many times
        texts = {text: csv_cell(text) for text in set(values)}
        return [texts[text] for text in values]
    if values.dtype == bool:
        return np.where(values, "true", "false").tolist()
    form = "%.6f\n" if values.dtype.kind == "f" else "%d\n"
    return (form * count % tuple(values.tolist())).split("\n")[:-1]


def open_model(folder: Path, cache: Path, backbone: str | None = None) -> Model:
    """The model of a run directory, or a model folder itself."""
    inner = folder / "model"
    if not inner.is_dir() and not (folder / "config.json").is_file():
        hint = f"the run has not finished; first: debgcd resume {folder}" if (folder / "config.yaml").is_file() else ""
        raise UsageError(f"{folder} holds no model: {hint or 'give a finished run, or its model folder'}")
    carry(folder)
    return load_model(inner if inner.is_dir() else folder, backbone=backbone, cache=cache)


@dataclass(frozen=True)
class Part:
    """What a model says of the next images of a list."""

    end: int  # how many images of the list are done with this part
    tables: list[bytes]  # its rows, one text or file per rank
    rows: int
    skipped: list[Skipped]


def predict(
    model: Model,
    manifest: Manifest,
    workers: int | None = None,
    done: int = 0,
    form: Callable[[Table], bytes] = lambda table: predictions_csv(table, header=False).encode(
        "utf-8", "backslashreplace"
    ),
) -> Iterator[Part]:
    """Categories, confidence and novelty of the images of a list from number `done` on, in parts of bounded size.

    Each rank computes rows of its own, and `form` makes bytes of them; only rank 0 gets those of all.
    """
    begun, usable, total = done, 0, len(manifest)
    several = total - done > UNIT * distributed.count()
    with progress("predicting") if several else nullcontext() as report:  # of one part, its own steps are reported
        while done < total:
            unit = min(UNIT, -(-(total - done) // distributed.count()))
            start = min(total, done + distributed.rank() * unit)
            own = replace(manifest, skipped=()).select(np.arange(start, min(total, start + unit)))
            own = usable_images(own, workers)
            tables = distributed.blobs(form(tabulate(model, own, workers)) if len(own) else b"")
            facts = distributed.all_gather([len(own), [[entry.file, entry.reason] for entry in own.skipped]])
            rows, skipped = sum(count for count, _ in facts), [Skipped(*entry) for _, some in facts for entry in some]
            done, usable = min(total, done + distributed.count() * unit), usable + rows
            if not begun and not usable and done == total:
                raise _unusable(skipped, total)
            yield Part(done, tables, rows, skipped)
            if report is not None:
                report(done, total)


def _unusable(skipped: Sequence[Skipped], total: int) -> DataError:
    return DataError(f"none of the {total} images can be used, e.g. {skipped[-1].file}: {skipped[-1].reason}")


def tabulate(model: Model, usable: Manifest, workers: int | None = None) -> Table:
    """The columns of predictions.csv of images that are known to be usable; refused if there are none."""
    if not len(usable):
        raise _unusable(usable.skipped, len(usable.skipped))
    return prediction_table(usable.paths, ask(model, usable, workers), model.categories, model.novel)


def ask(model: Model, usable: Manifest, workers: int | None = None) -> Inference:
    """What the model says of images that are known to be usable."""
    with progress("predicting") as report:
        return infer(model.network, model.method, _tokens(model, usable, workers, report), heads=model.method.detectors)


def ask_all(model: Model, usable: Manifest, workers: int | None = None) -> NDArray[np.float32]:
    """The probability of every category for images that are known to be usable: (N, K)."""
    with progress("predicting") as report:
        return probabilities(model.network, model.method, _tokens(model, usable, workers, report))


def embed(model: Model, usable: Manifest, workers: int | None = None) -> Tensor:
    """The features of images that are known to be usable: (N, width)."""
    with progress("computing features") as report:
        return features(model.network, _tokens(model, usable, workers, report))


def usable_images(manifest: Manifest, workers: int | None) -> Manifest:
    """The manifest without what cannot be decoded."""
    with progress("reading images") as report:
        return scan(manifest, workers, report)


def _tokens(model: Model, usable: Manifest, workers: int | None, report: Report) -> Iterator[Tensor]:
    workers = default_workers() if workers is None else workers
    images = from_files(
        usable.paths, replace(model.config.views, upright=True)
    )  # a benchmark's model may say otherwise
    source = FreshTokens(model.network.backbone, images, model.config.seed, workers)
    done = 0
    for tokens in source.centre(np.arange(len(usable))):
        yield tokens
        done += len(tokens)
        report(done, len(usable))
