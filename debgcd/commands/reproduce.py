"""`debgcd reproduce`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.options import BENCHMARKS, Subparsers, add_cache, add_command
from debgcd.commands.show import table
from debgcd.errors import DataError, UsageError

if TYPE_CHECKING:
    from debgcd.reproduce.grid import Cell


def add(subparsers: Subparsers) -> None:
    """The command's options."""
    parser = add_command(
        subparsers,
        "reproduce",
        reproduce,
        "run a table of the paper, and print the paper's numbers beside ours",
        "debgcd reproduce                                               which experiments there are\n"
        "  debgcd reproduce ssb --root data/                              Table 2, on a machine with GPUs\n"
        "  debgcd reproduce ablation --scale small --root data/ --sets cub --seeds 1",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the experiment; without it they are listed")
    parser.add_argument(
        "--root",
        type=Path,
        action="append",
        metavar="DIR",
        help="where the sets lie; repeatable, the first that has one",
    )
    parser.add_argument("--sets", metavar="A,B", help=f"some sets instead of the table's own: {BENCHMARKS}")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs with seeds 0 to N-1 (default 3)")
    parser.add_argument(
        "--scale",
        choices=("full", "small"),
        default="full",
        help="small: parts of cifar10, pets and cub, the built-in backbone and the preset small, for two cores",
    )
    parser.add_argument("--preset", choices=("paper", "released"), help="at full scale (default paper)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one value for all runs, e.g. backbone.name=PATH or views.bank=on; repeatable",
    )
    parser.add_argument(
        "-o", dest="out", type=Path, metavar="DIR", help="for runs and tables (default runs/reproduce-SCALE)"
    )
    parser.add_argument("--plan", action="store_true", help="only say which runs there are, and which are done")
    add_cache(parser)


def reproduce(options: argparse.Namespace) -> None:
    """`debgcd reproduce`."""
    from debgcd import config as configuration
    from debgcd.reproduce.experiments import experiment, experiments

    if options.name is None:
        for name, found in experiments().items():
            print(f"{name:15} {found.title} ({len(found.rows)} rows)\n{'':15} {', '.join(found.sets)}")
        return
    chosen = experiment(options.name)
    if not options.root:
        raise UsageError(f"say where the sets lie: debgcd reproduce {options.name} --root DIR (debgcd fetch gets some)")
    if options.seeds < 1:
        raise UsageError(f"--seeds must be at least 1, not {options.seeds}")
    if options.scale == "small" and options.preset:
        raise UsageError("--scale small has the preset small; leave --preset out")

    from debgcd.reproduce.run import Wish, plan
    from debgcd.reproduce.run import reproduce as work
    from debgcd.reproduce.table import page
    from debgcd.train.start import cache_folder

    wish = Wish(
        experiment=chosen,
        roots=tuple(options.root),
        out=(options.out or Path("runs") / f"reproduce-{options.scale}").absolute(),
        cache=cache_folder(options.cache),
        scale=options.scale,
        sets=tuple(name.strip() for name in options.sets.split(",")) if options.sets else (),
        seeds=options.seeds,
        preset=options.preset or "paper",
        settings=tuple(configuration.assignment(text) for text in options.set),
    )
    cells, missing = plan(wish)
    if not cells:
        raise DataError("none of the sets is there: " + "; ".join(missing))
    if options.plan:
        _print_plan(cells, missing)
        return
    outcome = work(wish, cells, missing)
    print(page(outcome), end="")
    print(f"\nwritten to {wish.out / chosen.name}.md and .json")
    if any(not cell.finished for cell in cells):
        raise DataError("some runs failed, see above; to try them again, type the same again")


def _print_plan(cells: list[Cell], missing: list[str]) -> None:
    table(
        ["set", "row", "seed", "done", "folder"],
        [[cell.set, cell.row, str(cell.seed), "yes" if cell.finished else "no", str(cell.folder)] for cell in cells],
    )
    for sentence in missing:
        print(f"not there: {sentence}")
