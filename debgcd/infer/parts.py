"""A table of predictions on disk, written part by part: bounded memory, and a stopped command goes on where it was.

.OUT.partial/{state.json, 000000008192-0, ...}    beside OUT; each part is whole, and the state counts those that are there
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from debgcd import __version__
from debgcd.data.manifest import Manifest, Skipped
from debgcd.infer.predict import COLUMNS, Part, Table, predictions_csv
from debgcd.run.model_folder import Model
from debgcd.system.files import named_errors, read_json, write_bytes, write_json
from debgcd.system.optional import optional
from debgcd.system.progress import say

STATE = "state.json"


class Parts:
    """The table in `out`: CSV, or Parquet by its suffix."""

    def __init__(self, out: Path, model: Model, manifest: Manifest):
        self._out = Path(os.path.realpath(out))
        self._folder = self._out.with_name(f".{self._out.name}.partial")
        self._parquet = out.suffix.lower() in (".parquet", ".pq")
        if self._parquet:
            _pyarrow()
        names = hashlib.sha256("\0".join(map(str, manifest.paths)).encode("utf-8", "surrogateescape")).hexdigest()
        said = [category.to_json() for category in model.categories]  # a review may have changed names
        self._facts = {"debgcd": __version__, "model": model.sha256, "images": names, "parquet": self._parquet}
        self._facts["categories"] = hashlib.sha256(json.dumps(said).encode()).hexdigest()
        self._done, self._rows, self._skipped = 0, 0, 0
        self._parts: list[str] = []

    def begin(self) -> int:
        """How many images an earlier command has done."""
        try:
            state = read_json(self._folder / STATE)
            if state["facts"] == self._facts:
                self._done, self._rows, self._parts = int(state["done"]), int(state["rows"]), list(state["parts"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if self._done:
            say(f"{self._done} images are done already: going on")
            return self._done
        with named_errors(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._out.parent.mkdir(parents=True, exist_ok=True)
        return 0

    def form(self, table: Table) -> bytes:
        """Rows as bytes of a part."""
        if not self._parquet:
            return predictions_csv(table, header=False).encode("utf-8", "backslashreplace")
        arrow, parquet = _pyarrow()
        columns = {
            name: arrow.array([None] * len(table["path"]) if table[name] is None else table[name], _type(arrow, name))
            for name in COLUMNS
        }
        content = io.BytesIO()
        parquet.write_table(arrow.table(columns), content)
        return content.getvalue()

    def add(self, part: Part) -> None:
        """Keep a part; the state is written last, so that all that it counts is there."""
        self._folder.mkdir(exist_ok=True)
        for i, content in enumerate(part.tables):
            if content:
                self._parts.append(f"{part.end:012d}-{i}")
                write_bytes(self._folder / self._parts[-1], content)
        write_json(self._folder / f"{part.end:012d}.skipped.json", [asdict(entry) for entry in part.skipped])
        self._done, self._rows = part.end, self._rows + part.rows
        state = {"facts": self._facts, "done": self._done, "rows": self._rows, "parts": self._parts}
        write_json(self._folder / STATE, state)

    def finish(self) -> tuple[int, list[Skipped]]:
        """Join the parts; returns how many rows there are, and what was skipped."""
        skipped = [
            Skipped(**entry) for path in sorted(self._folder.glob("*.skipped.json")) for entry in read_json(path)
        ]
        special = self._out.exists() and not self._out.is_file()  # a pipe or a device cannot be replaced
        temporary = self._out if special else self._out.with_name(f".{self._out.name}.tmp")
        try:
            with named_errors(self._out):
                with open(temporary, "wb") as file:
                    (self._join_parquet if self._parquet else self._join_csv)(file)
                    if not special:
                        file.flush()
                        os.fsync(file.fileno())
                if not special:
                    os.replace(temporary, self._out)
        finally:
            if not special:
                temporary.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        return self._rows, skipped

    def _join_csv(self, file: Any) -> None:
        file.write((",".join(COLUMNS) + "\n").encode())
        for path in self._paths():
            with open(path, "rb") as part:
                shutil.copyfileobj(part, file)

    def _join_parquet(self, file: Any) -> None:
        arrow, parquet = _pyarrow()
        schema = arrow.schema([(name, _type(arrow, name)) for name in COLUMNS])
        with parquet.ParquetWriter(file, schema) as writer:
            for path in self._paths():
                writer.write_table(parquet.read_table(path))

    def _paths(self) -> Iterator[Path]:
        return (self._folder / name for name in self._parts)


def _type(arrow: Any, name: str) -> Any:
    kinds = {
        "category": arrow.int64(),
        "known": arrow.bool_(),
        "looks_new": arrow.bool_(),
        "confidence": arrow.float32(),
        "novelty": arrow.float32(),
    }
    return kinds.get(name, arrow.float32() if name.endswith("_p") else arrow.string())


def _pyarrow() -> tuple[Any, Any]:
    arrow, parquet = (optional(name, "parquet", "writing Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    return arrow, parquet
