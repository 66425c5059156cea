"""The table of predictions: its columns, building it from a network's results, writing and reading CSV and Parquet."""

from __future__ import annotations

import csv
import io
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from debgcd.data.image.crop import Picture
from debgcd.run.categories import RESTORE, Category, merged_numbers
from debgcd.system.files import csv_cell, csv_field, readable
from debgcd.system.machine import optional

if TYPE_CHECKING:
    from debgcd.novelty.base import NoveltyThreshold

TOP = 3  # categories listed per image
NONE = 0.5  # none_p above which an image looks new
NOTHING = ""  # stands for no category in `tally`

# The order is fixed: a further column goes to the end, and files without it stay readable.
COLUMNS: dict[str, type] = {
    **{"path": str, "category": int, "id": str, "name": str, "known": bool, "confidence": float, "novelty": float},
    **{f"top{rank}_{what}": kind for rank in range(1, TOP + 1) for what, kind in (("id", str), ("p", float))},
    "looks_new": bool,
    "none_p": float,
}
# `review` is open, accepted or rejected; `added` is the batch that the image came with, empty for those of the run itself.
REVIEWED_COLUMNS = {**COLUMNS, "review": str, "added": str}
# Any other column may be missing or have empty cells.
REQUIRED = {"path", "category", "id", "name", "known", "confidence"}

Prediction = dict[str, Any]  # a row: column -> a value of the column's type, or None
Table = dict[str, list[Any]]  # column -> the values of all rows

TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false"}
FORMAT: dict[type, Callable[[Any], str]] = {str: csv_cell, int: str, bool: lambda value: str(value).lower()}
FORMAT[float] = "{:.6f}".format
PARSE: dict[type, Callable[[str], Any]] = {str: csv_field, int: int, float: float}
PARSE[bool] = {"true": True, "false": False}.__getitem__


@dataclass(frozen=True)
class Inference:
    """A network's results for N images."""

    top: NDArray[np.int64]  # (N, min(TOP, K)) categories, the most probable first
    probability: NDArray[np.float32]  # (N, min(TOP, K)) their probabilities
    novelty: NDArray[np.float32] | None = None  # (N,); None if no detector was run
    points: NDArray[np.float16] | None = None  # (N, axes) where `SoFar` has the images; None if it was not asked
    # (N,) categories by each further classifier, by its name
    others: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def category(self) -> NDArray[np.int64]:
        """(N,) the most probable category."""
        return self.top[:, 0]


def prediction_table(
    paths: Sequence[Picture],
    inference: Inference,
    categories: Sequence[Category],
    novel: NoveltyThreshold | None,
    none_p: NDArray[np.float32] | None = None,
) -> Table:
    """The table of predictions for these images; looks_new is empty without anything to tell it by.

    none_p: (N,) the probability that an image is of none of the categories so far; None: novelty above `novel` looks new.
    """
    ids = np.array([category.merged_into or category.id for category in categories], object)
    names = np.array([category.name for category in categories], object)
    known = np.array([category.known for category in categories])
    best = np.array(merged_numbers(categories))[inference.category]
    filled: dict[str, NDArray[Any]] = {"category": best, "id": ids[best], "name": names[best], "known": known[best]}
    filled["confidence"] = inference.probability[:, 0]
    for rank in range(inference.top.shape[1]):
        filled[f"top{rank + 1}_id"] = ids[inference.top[:, rank]]
        filled[f"top{rank + 1}_p"] = inference.probability[:, rank]
    if inference.novelty is not None:
        filled["novelty"] = inference.novelty
        if novel is not None:
            filled["looks_new"] = inference.novelty > novel.above
    if none_p is not None:
        filled |= {"looks_new": none_p > NONE, "none_p": none_p}
    table: Table = {name: filled[name].tolist() if name in filled else [None] * len(paths) for name in COLUMNS}
    return table | {"path": [str(path) for path in paths]}


def tally(table: Table) -> Counter[str]:
    """How many images are in each category, by its id; those that look new are under NOTHING instead."""
    return Counter(NOTHING if new else id for id, new in zip(table["id"], table["looks_new"], strict=True))


def rows_of(table: Table) -> list[Prediction]:
    """The rows of a table."""
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def to_csv(table: Table, header: bool = True) -> str:
    """The table as CSV: true/false, six decimals, empty for None; text that a spreadsheet would run as a formula is quoted."""
    lines = [",".join(table)] if header else []
    lines += map(
        ",".join, zip(*(_cells(REVIEWED_COLUMNS[name], values) for name, values in table.items()), strict=True)
    )
    return "\n".join([*lines, ""])


def _cells(kind: type, values: list[Any]) -> list[str]:
    """A column as text. Floats, which mostly differ, are formatted in one call; other types once per distinct value."""
    if kind is float and None not in values:
        return ("%.6f\n" * len(values) % tuple(values)).split("\n")[:-1]
    texts = {value: "" if value is None else FORMAT[kind](value) for value in set(values)}
    return [texts[value] for value in values]


def is_parquet(path: Path) -> bool:
    """Whether a path has a suffix of Parquet files."""
    return path.suffix.lower() in (".parquet", ".pq")


def to_parquet(table: Table) -> bytes:
    """The table as the content of a Parquet file."""
    arrow, parquet = pyarrow()
    content = io.BytesIO()
    parquet.write_table(arrow.Table.from_pydict(table, _schema(arrow, table)), content)
    return content.getvalue()


def join_csv(parts: Iterable[Path], file: IO[bytes]) -> None:
    """Join CSV files without headers into one with a header."""
    file.write((",".join(COLUMNS) + "\n").encode())
    for path in parts:
        with open(path, "rb") as part:
            shutil.copyfileobj(part, file)


def join_parquet(parts: Iterable[Path], file: IO[bytes]) -> None:
    """Join Parquet files into one."""
    arrow, parquet = pyarrow()
    with parquet.ParquetWriter(file, _schema(arrow, COLUMNS)) as writer:
        for path in parts:
            writer.write_table(parquet.read_table(path))


def _schema(arrow: Any, columns: Iterable[str]) -> Any:
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float32(), bool: arrow.bool_()}
    return arrow.schema([(name, types[REVIEWED_COLUMNS[name]]) for name in columns])


def pyarrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet, which are optional."""
    arrow, parquet = (optional(name, "parquet", "Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    return arrow, parquet


def read_predictions(path: Path, columns: Collection[str] = tuple(COLUMNS)) -> Table:
    """Read these columns of a CSV or Parquet file of predictions; a DataError if its content is wrong."""
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
    """The values of a column from its cells; a ValueError names the first wrong one."""
    parse, optional, values = PARSE[COLUMNS[name]], name not in REQUIRED, list[Any]()
    try:
        for cell in cells:
            values.append(None if optional and not cell else parse(cell))
    except (ValueError, KeyError) as error:
        row = len(values) + 1
        raise ValueError(f"row {row}: {name} is {cell!r:.80}, not {TYPE_NAMES[COLUMNS[name]]}") from error
    return values


def _parquet_columns(path: Path, columns: Collection[str]) -> Table:
    arrow, parquet = pyarrow()
    table = parquet.read_table(path)
    present = [name for name in columns if name in table.column_names]
    return table.select(present).cast(_schema(arrow, present)).to_pydict()
