"""csv and parquet: the rows of predictions.csv as a reviewer left them, with what he said in the column `review`."""

from __future__ import annotations

from pathlib import Path

from debgcd.export.items import items
from debgcd.run.directory import Run
from debgcd.run.predictions import REVIEWED_COLUMNS, Table, to_csv, to_parquet
from debgcd.system.files import write_bytes, write_text


def write_csv(run: Run, out: Path) -> None:
    """As predictions.csv; a cell that a spreadsheet would compute gets a quote, which `files.csv_field` removes."""
    write_text(out, to_csv(_table(run)))


def write_parquet(run: Run, out: Path) -> None:
    """The same columns with types."""
    write_bytes(out, to_parquet(_table(run)))


def _table(run: Run) -> Table:
    rows = [item.row for item in items(run) if item.row is not None]
    return {name: [row[name] for row in rows] for name in REVIEWED_COLUMNS}
