"""csv and parquet: the rows of predictions.csv as a reviewer left them, with what he said in the column `review`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from debgcd.export.items import items
from debgcd.run.directory import Run
from debgcd.system.files import csv_text, write_bytes, write_text
from debgcd.system.optional import optional

TRUTHS = ("known", "looks_new")  # columns of true and false
TEXTS = ("path", "id", "name", "review")


def write_csv(run: Run, out: Path) -> None:
    """As predictions.csv; a cell that a spreadsheet would compute gets a quote, which `files.csv_field` removes."""
    rows = _rows(run)
    names = list(rows[0]) if rows else []
    write_text(out, csv_text(names, ([_cell(row[name]) for name in names] for row in rows)))


def write_parquet(run: Run, out: Path) -> None:
    """The same columns with types."""
    parquet = optional("pyarrow.parquet", "parquet", "writing Parquet")
    arrow = optional("pyarrow", "parquet", "writing Parquet")
    rows = _rows(run)
    columns = {name: [_typed(name, row[name]) for row in rows] for name in (rows[0] if rows else [])}
    content = io.BytesIO()
    parquet.write_table(arrow.table(columns), content)
    write_bytes(out, content.getvalue())


def _rows(run: Run) -> list[dict[str, Any]]:
    return [item.row for item in items(run) if item.row is not None]


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _typed(name: str, value: Any) -> Any:
    if value == "":
        return None
    if name in TRUTHS:
        return value if isinstance(value, bool) else value == "true"
    if name in TEXTS or name.endswith("_id"):
        return value
    return int(value) if name == "category" else float(value)
