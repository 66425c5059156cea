"""`debgcd predict`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.arguments import Subparsers, add_cache, add_command
from debgcd.commands.output import add_force, require_free, three_answers
from debgcd.system import distributed
from debgcd.system.progress import escaped, say

if TYPE_CHECKING:
    from debgcd.data.manifest import Manifest
    from debgcd.run.model_folder import Model


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "predict",
        predict,
        "assign new images to the categories of a run, or say that they fit none of these (looks_new)",
        "debgcd predict runs/photos more/ -o out.csv",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run or its model folder")
    parser.add_argument("path", type=Path, metavar="PATH", help="an image, a folder, a CSV or Parquet file")
    parser.add_argument(
        "-o",
        dest="out",
        type=Path,
        metavar="OUT.csv",
        help="output file, .csv or .parquet (default: print to standard output)",
    )
    add_force(parser)
    add_cache(parser)
    parser.add_argument("--backbone", metavar="PATH", help="the backbone's weights, if they have moved since training")


def predict(options: argparse.Namespace) -> None:
    """`debgcd predict`."""
    from debgcd.data.sources import read_manifest
    from debgcd.grow.splits import open_model
    from debgcd.system.machine import cache_folder

    model = open_model(options.run, cache_folder(options.cache), options.backbone)
    distributed.set_timeout(model.config.run.timeout)
    manifest = read_manifest(options.path)
    if options.out is None:
        _print(model, manifest)
        return
    require_free(options, "-o", options.out, manifest.paths)
    listed = options.out.with_suffix(".skipped.csv")
    require_free(options, "-o: its list of skipped files", listed, manifest.paths)
    distributed.barrier()  # all have looked before rank 0 writes
    _write(model, manifest, options.out, listed)


def _print(model: Model, manifest: Manifest) -> None:
    """To standard output, as rows come."""
    from debgcd.infer.predict import predict as ask
    from debgcd.run.predictions import COLUMNS, Table, to_csv

    terminal = sys.stdout.isatty()

    def form(table: Table) -> bytes:
        if terminal:
            texts = (name for name in table if COLUMNS[name] is str)
            table = table | {name: [value and escaped(value) for value in table[name]] for name in texts}
        return to_csv(table, header=False).encode("utf-8", "surrogateescape")

    skipped, begun, answers = list(manifest.skipped), False, Counter[str]()
    for part in ask(model, manifest, form=form):
        print("" if begun else ",".join(COLUMNS) + "\n", end="")
        print(*(text.decode("utf-8", "surrogateescape") for text in part.tables), sep="", end="")
        skipped, begun = skipped + part.skipped, True
        answers.update(part.answers)
    for line in three_answers(answers, model.categories, model.sizes):
        say(line)
    for entry in skipped:
        say(f"not used: {entry.file!r}: {entry.reason}")


def _write(model: Model, manifest: Manifest, out: Path, listed: Path) -> None:
    """Into a file, through a folder of finished parts beside it: a command that was stopped goes on when it is repeated."""
    from debgcd.data.manifest import write_skipped
    from debgcd.infer.predict import Parts
    from debgcd.infer.predict import predict as ask

    kept = Parts(out, model, manifest)
    for part in ask(model, manifest, todo=distributed.from_rank0(kept.begin), form=kept.form):
        if distributed.rank() == 0:
            kept.add(part)
    if distributed.rank():
        return
    answers, skipped = kept.finish()
    print(f"categories of {answers.total()} images: {escaped(out)}")
    for line in three_answers(answers, model.categories, model.sizes):
        print(escaped(line))
    skipped = [*manifest.skipped, *skipped]
    if skipped or listed.exists():  # an older list would not belong to these predictions
        write_skipped(skipped, listed)
    if skipped:
        say(f"files that cannot be used: {len(skipped)}; for the reasons see {listed}")
