"""`debgcd predict`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.options import Subparsers, add_cache, add_command
from debgcd.commands.output import add_force, require_free
from debgcd.progress import escaped, say

if TYPE_CHECKING:
    from debgcd.inference.predict import Prediction


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "predict",
        predict,
        "assign new images to the categories of a run",
        "debgcd predict runs/photos more/ -o out.csv",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run or its model folder")
    parser.add_argument("path", type=Path, metavar="PATH", help="an image, a folder, a CSV or Parquet file")
    parser.add_argument(
        "-o", dest="out", type=Path, metavar="OUT.csv", help="output file (default: print to standard output)"
    )
    add_force(parser)
    add_cache(parser)
    parser.add_argument("--backbone", metavar="PATH", help="the backbone's weights, if they have moved since training")


def predict(options: argparse.Namespace) -> None:
    """`debgcd predict`."""
    from debgcd.data.manifest import read_manifest, write_skipped
    from debgcd.files import write_text
    from debgcd.inference.predict import open_model
    from debgcd.inference.predict import predict as ask
    from debgcd.machine import cache_folder
    from debgcd.train.finish import predictions_csv

    model = open_model(options.run, cache_folder(options.cache), options.backbone)
    manifest = read_manifest(options.path)
    listed: Path | None = None
    if options.out is not None:
        require_free(options, "-o", options.out, manifest.paths)
        listed = options.out.with_suffix(".skipped.csv")
        require_free(options, "-o: its list of skipped files", listed, manifest.paths)
        options.out.parent.mkdir(parents=True, exist_ok=True)
    found = ask(model, manifest)
    if options.out is None:
        rows = [_for_terminal(row) for row in found.rows] if sys.stdout.isatty() else found.rows
        print(predictions_csv(rows), end="")
    else:
        write_text(options.out, predictions_csv(found.rows))
        print(f"categories of {len(found.rows)} images: {escaped(options.out)}")
    if listed is not None:
        if found.skipped or listed.exists():  # an older list would not belong to these predictions
            write_skipped(found.skipped, listed)
        if found.skipped:
            say(f"files that cannot be used: {len(found.skipped)}; for the reasons see {listed}")
    else:
        for entry in found.skipped:
            say(f"not used: {entry.file!r}: {entry.reason}")


def _for_terminal(row: Prediction) -> Prediction:
    return {name: escaped(value) if isinstance(value, str) else value for name, value in row.items()}
