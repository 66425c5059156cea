"""The table of predictions: its columns, built from a network's answers, written as CSV or Parquet, and read back."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from debgcd.data.image.crop import Picture
from debgcd.run.categories import RESTORE, Category, living
from debgcd.system.files import csv_cell, csv_field, readable
from debgcd.system.machine import optional

if TYPE_CHECKING:
    from debgcd.novelty.base import NoveltyThreshold

TOP = 3  # categories listed per image

# The order is fixed: a further column goes to the end, and files without it stay readable.
COLUMNS: dict[str, type] = {
    **{"path": str, "category": int, "id": str, "name": str, "known": bool, "confidence": float, "novelty": float},
    **{f"top{rank}_{what}": kind for rank in range(1, TOP + 1) for what, kind in (("id", str), ("p", float))},
    "looks_new": bool,
}
REVIEWED = {**COLUMNS, "review": str}  # with what a reviewer said: open, accepted or rejected
REQUIRED = {"path", "category", "id", "name", "known", "confidence"}  # the others may be empty

Prediction = dict[str, Any]  # one row: a value of the column's type, or None
Table = dict[str, list[Any]]  # the same by column

WORDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false"}
FORMAT: dict[type, Callable[[Any], str]] = {str: csv_cell, int: str, bool: lambda value: str(value).lower()}
FORMAT[float] = "{:.6f}".format
PARSE: dict[type, Callable[[str], Any]] = {str: csv_field, int: int, float: float}
PARSE[bool] = {"true": True, "false": False}.__getitem__


@dataclass(frozen=True)
class Inference:
    """A network's answers for N images, in their order."""

    top: NDArray[np.int64]  # (N, min(TOP, K)) categories, the most probable first
    probability: NDArray[np.float32]  # of each of them
    novelty: NDArray[np.float32] | None = None  # (N,) where the method has a detector and it was asked
    others: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # (N,) of further classifiers, by name

    @property
    def category(self) -> NDArray[np.int64]:
        return self.top[:, 0]


def prediction_table(
    paths: Sequence[Picture], inference: Inference, categories: Sequence[Category], novel: NoveltyThreshold | None
) -> Table:
    """The table of these images; looks_new is empty without a novelty score or a threshold for it."""
    ids = np.array([category.merged_into or category.id for category in categories], object)
    names = np.array([category.name for category in categories], object)
    known = np.array([category.known for category in categories])
    best = np.array(living(categories))[inference.category]
    found: dict[str, NDArray[Any]] = {"category": best, "id": ids[best], "name": names[best], "known": known[best]}
    found["confidence"] = inference.probability[:, 0]
    for rank in range(inference.top.shape[1]):
        found[f"top{rank + 1}_id"] = ids[inference.top[:, rank]]
        found[f"top{rank + 1}_p"] = inference.probability[:, rank]
    if inference.novelty is not None:
        found["novelty"] = inference.novelty
        if novel is not None:
            found["looks_new"] = inference.novelty > novel.above
    table: Table = {name: found[name].tolist() if name in found else [None] * len(paths) for name in COLUMNS}
    return table | {"path": [str(path) for path in paths]}


def rows_of(table: Table) -> list[Prediction]:
    """One dictionary per image."""
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def to_csv(table: Table, header: bool = True) -> str:
    """The table as CSV: true/false, six decimals, empty for None; a text that a spreadsheet would compute is quoted."""
    lines = [",".join(table)] if header else []
    lines += map(",".join, zip(*(_cells(REVIEWED[name], values) for name, values in table.items()), strict=True))
    return "\n".join([*lines, ""])


def _cells(kind: type, values: list[Any]) -> list[str]:
    """A column as text: numbers, which all differ, are formatted at once; anything else once per value."""
    if kind is float and None not in values:
        return ("%.6f\n" * len(values) % tuple(values)).split("\n")[:-1]
    texts = {value: "" if value is None else FORMAT[kind](value) for value in set(values)}
    return [texts[value] for value in values]


def is_parquet(path: Path) -> bool:
    """Whether a table is Parquet, by the suffix of its file."""
    return path.suffix.lower() in (".parquet", ".pq")


def to_parquet(table: Table) -> bytes:
    """The table as the content of a Parquet file."""
    arrow, parquet = pyarrow()
    content = io.BytesIO()
    parquet.write_table(arrow.Table.from_pydict(table, _schema(arrow, table)), content)
    return content.getvalue()


def join_csv(parts: Iterable[Path], file: IO[bytes]) -> None:
    """Write one CSV of parts without headers."""
    file.write((",".join(COLUMNS) + "\n").encode())
    for path in parts:
        with open(path, "rb") as part:
            shutil.copyfileobj(part, file)


def join_parquet(parts: Iterable[Path], file: IO[bytes]) -> None:
    """Write one Parquet file of several."""
    arrow, parquet = pyarrow()
    with parquet.ParquetWriter(file, _schema(arrow, COLUMNS)) as writer:
        for path in parts:
            writer.write_table(parquet.read_table(path))


def _schema(arrow: Any, columns: Iterable[str]) -> Any:
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float32(), bool: arrow.bool_()}
    return arrow.schema([(name, types[REVIEWED[name]]) for name in columns])


def pyarrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet, which are optional."""
    arrow, parquet = (optional(name, "parquet", "Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    return arrow, parquet


def read_predictions(path: Path, columns: Collection[str] = tuple(COLUMNS)) -> Table:
    """These columns of a file of predictions, CSV or Parquet; a DataError says what is wrong with its content."""
    with readable(path, RESTORE, missing=False):
        table = _parquet_columns(path, columns) if is_parquet(path) else _csv_columns(path, columns)
        missing = [name for name in columns if name in REQUIRED and name not in table]
        if missing:
            raise ValueError(f"it has no column {missing[0]}")
    count = len(next(iter(table.values()), ()))
    return {name: table.get(name, [None] * count) for name in columns}


def _csv_columns(path: Path, columns: Collection[str]) -> Table:
    with open(path, encoding="utf-8", newline="") as file:
        header, *lines = [line for line in csv.reader(file, strict=True) if line] or [[]]
    for number, line in enumerate(lines, 1):
        if len(line) != len(header):
            raise ValueError(f"row {number} has {len(line)} fields, expected {len(header)}")
    return {name: _parsed(name, [line[i] for line in lines]) for i, name in enumerate(header) if name in columns}


def _parsed(name: str, cells: list[str]) -> list[Any]:
    parse, optional, values = PARSE[COLUMNS[name]], name not in REQUIRED, list[Any]()
    try:
        for cell in cells:
            values.append(None if optional and not cell else parse(cell))
    except (ValueError, KeyError) as error:
        row = len(values) + 1
        raise ValueError(f"row {row}: {name} is {cell!r:.80}, not {WORDS[COLUMNS[name]]}") from error
    return values


def _parquet_columns(path: Path, columns: Collection[str]) -> Table:
    arrow, parquet = pyarrow()
    table = parquet.read_table(path)
    here = [name for name in columns if name in table.column_names]
    return table.select(here).cast(_schema(arrow, here)).to_pydict()
