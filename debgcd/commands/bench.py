"""`debgcd bench`."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.arguments import Subparsers, add_command
from debgcd.commands.output import add_force, require_free, table
from debgcd.errors import UsageError, suggest
from debgcd.reproduce.bench import PARTS
from debgcd.system.progress import escaped

if TYPE_CHECKING:
    from debgcd.reproduce.bench.session import Line

BACKBONES = ("vit-s16", "vit-b16")


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "bench",
        bench,
        "measure speed and memory on this machine, compared with a plain implementation",
        "debgcd bench step decode -o results.json",
    )
    listed = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all. {listed}")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="timed rounds; the median is reported (default 3)"
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="images per step (default 16 for vit-s16, 8 for vit-b16)"
    )
    parser.add_argument(
        "--backbone-size", action="append", choices=BACKBONES, help="default: both; repeatable", dest="backbones"
    )
    parser.add_argument("-o", dest="out", type=Path, metavar="FILE.json", help="also write the results to this file")
    add_force(parser)


def bench(options: argparse.Namespace) -> None:
    """`debgcd bench`."""
    for part in options.parts:
        if part not in PARTS:
            raise UsageError(f"no part {part!r}{suggest(part, list(PARTS))}")
    for name in ("repeats", "batch"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UsageError(f"--{name} must be at least 1, not {getattr(options, name)}")
    if options.out is not None:
        require_free(options, "-o", options.out)
        options.out.parent.mkdir(parents=True, exist_ok=True)

    from debgcd.reproduce.bench.measure import MEASURES, run
    from debgcd.reproduce.bench.session import SHAPES, Session
    from debgcd.system.files import write_json

    shapes = [SHAPES[name] for name in SHAPES if name in (options.backbones or BACKBONES)]
    if options.batch is not None:
        shapes = [replace(shape, batch=options.batch) for shape in shapes]
    with tempfile.TemporaryDirectory(prefix="debgcd-bench-") as folder:
        session = Session(Path(folder), tuple(shapes), repeats=options.repeats)
        measures = {part: work for part, work in MEASURES.items() if part in (options.parts or MEASURES)}
        results = run(session, measures, _show)
    if options.out is not None:
        write_json(options.out, results)
        print(f"results: {escaped(options.out)}")


def _show(lines: list[Line]) -> None:
    from debgcd.reproduce.bench.session import HEAD, cells

    entries = [line.to_json() for line in lines]
    table(HEAD[1:], [cells(entry)[1:] for entry in entries])
    for note in dict.fromkeys(entry["note"] for entry in entries if entry["note"]):
        print(f"note: {note}")
    print(flush=True)
