"""`debgcd reproduce`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debgcd.commands.arguments import BENCHMARKS, Subparsers, add_cache, add_command
from debgcd.commands.output import table
from debgcd.errors import DataError, UsageError
from debgcd.system.progress import escaped

if TYPE_CHECKING:
    from debgcd.reproduce.run import Plan


DATASETS = "datasets"
STREAM = "stream"
DIGITS = "digits"  # named here too, since the room's module imports much
OWN = {"method", "k", "k_times", "prune", "seed", "preset"}  # set by the experiment itself


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "reproduce",
        reproduce,
        "run the experiments of a table of the paper, and print the paper's numbers next to ours",
        "debgcd reproduce                                               list the experiments\n"
        "  debgcd reproduce ssb --root data/                              Table 2, on a machine with GPUs\n"
        "  debgcd reproduce datasets --root data/                         Table 1, the data sets\n"
        "  debgcd reproduce stream --root data/                           categories that come over five stages\n"
        "  debgcd reproduce ablation --scale small --root data/ --sets cub --seeds 1",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the experiment (default: list all)")
    parser.add_argument(
        "--root",
        type=Path,
        action="append",
        metavar="DIR",
        help="folder of the data sets; repeatable, the first one that has a set is used",
    )
    parser.add_argument(
        "--sets",
        metavar="A,B",
        help=f"data sets to use instead of the table's own: {BENCHMARKS}; at small scale also digits, which need no --root",
    )
    parser.add_argument(
        "--methods", metavar="A,B", help="rows of these methods only, e.g. simgcd,debgcd (default: all)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs with seeds 0 to N-1 (default 3)")
    parser.add_argument(
        "--scale",
        choices=("full", "small"),
        default="full",
        help="small: subsets of cifar10, pets and cub with the built-in backbone and the preset small, for two cores",
    )
    parser.add_argument("--preset", choices=("paper", "released"), help="for full scale (default: paper)")
    parser.add_argument(
        "--backbone", metavar="NAME", help="use another backbone for all runs: a hub id, a folder, or a .pth file"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one configuration value for all runs, e.g. views.bank=on; repeatable",
    )
    parser.add_argument(
        "-o", dest="out", type=Path, metavar="DIR", help="folder for runs and tables (default: runs/reproduce-SCALE)"
    )
    parser.add_argument("--plan", action="store_true", help="only list the runs and whether they are done")
    add_cache(parser)


def reproduce(options: argparse.Namespace) -> None:
    """`debgcd reproduce`."""
    from debgcd import config as configuration
    from debgcd.reproduce.experiments import experiment, experiments

    if options.name is None:
        from debgcd.reproduce.stream import PUBLISHED, TITLE

        print(f"{DATASETS:15} Table 1: the data sets and their splits")
        print(f"{STREAM:15} {TITLE}\n{'':15} {', '.join(PUBLISHED)}")
        for name, found in experiments().items():
            print(f"{name:15} {found.title} ({len(found.rows)} rows)\n{'':15} {', '.join(found.sets)}")
        return
    if options.name == DATASETS:
        _count(options)
        return
    if options.name == STREAM:
        _stream(options)
        return
    chosen = experiment(options.name)
    if options.methods is not None:
        chosen = chosen.only([name.strip() for name in options.methods.split(",")])
    settings = [configuration.assignment(text) for text in options.set]
    if options.backbone:
        settings.append({"backbone": {"name": options.backbone}})
    _require_sense(options, settings)
    if chosen.backbone != "dino" and options.scale == "small":
        raise UsageError(
            f"{chosen.name} needs another backbone than --scale small has; choose an experiment that uses DINO"
        )
    if not options.root and options.sets != DIGITS:
        raise UsageError(
            f"no --root given; run debgcd reproduce {options.name} --root DIR (debgcd fetch downloads some data sets)"
        )
    from debgcd.reproduce.run import Wish, plan
    from debgcd.reproduce.run import reproduce as work
    from debgcd.reproduce.table import page
    from debgcd.system.machine import cache_folder

    wish = Wish(
        experiment=chosen,
        roots=tuple(options.root or ()),
        out=(options.out or Path("runs") / f"reproduce-{options.scale}").absolute(),
        cache=cache_folder(options.cache),
        command=_typed(options),
        scale=options.scale,
        sets=tuple(name.strip() for name in options.sets.split(",")) if options.sets is not None else (),
        seeds=options.seeds,
        preset=options.preset or "paper",
        settings=tuple(settings),
    )
    planned = plan(wish)
    if not planned.cells:
        raise DataError("none of the data sets was found: " + "; ".join(planned.missing))
    if options.plan:
        _print_plan(planned)
        return
    outcome = work(wish, planned)
    print(page(outcome), end="")
    print(f"\nwritten to {escaped(wish.out / chosen.name)}.md and .json")
    if len(outcome.results) < len(planned.cells):
        raise DataError("some runs did not finish (see above); repeat the command to try them again")


def _count(options: argparse.Namespace) -> None:
    """Print and write Table 1, for the sets that are there."""
    from debgcd.datasets import resolve
    from debgcd.datasets.facts import data_sets, facts_of
    from debgcd.reproduce.counts import counted_page, read_first
    from debgcd.system.files import write_text
    from debgcd.system.machine import cache_folder

    for name in ("methods", "preset", "backbone", "set", "plan"):
        if getattr(options, name):
            raise UsageError(f"{DATASETS} trains nothing, so --{name} has no meaning; omit it")
    if options.scale != "full":
        raise UsageError(f"{DATASETS} counts whole data sets; omit --scale {options.scale}")
    _require_sense(options, [])
    if not options.root:
        raise UsageError(f"no --root given; run debgcd reproduce {DATASETS} --root DIR")
    names = list(data_sets()) if options.sets is None else [resolve(name.strip()) for name in options.sets.split(",")]
    found, missing = [], []
    for name in names:
        try:
            found.append(read_first(name, options.root, cache_folder(options.cache)))
        except DataError as error:
            missing.append(f"{facts_of(name).title}: {error}")
    if not found:
        raise DataError("none of the data sets was found: " + "; ".join(missing))
    out = (options.out or Path("runs") / "reproduce-full").absolute()
    out.mkdir(parents=True, exist_ok=True)
    text = counted_page(found, missing)
    write_text(out / f"{DATASETS}.md", text)
    print(f"{text}\nwritten to {escaped(out / DATASETS)}.md")


def _stream(options: argparse.Namespace) -> None:
    """Run and print the stages of images that come one after another."""
    from debgcd import config as configuration
    from debgcd.datasets import resolve
    from debgcd.reproduce.stream import Wish, footnote, table
    from debgcd.reproduce.stream import reproduce as work
    from debgcd.system.machine import cache_folder

    for name in ("methods", "plan"):
        if getattr(options, name):
            raise UsageError(f"{STREAM} always has the same rows and runs, so --{name} has no meaning; omit it")
    settings = [configuration.assignment(text) for text in options.set]
    if options.backbone:
        settings.append({"backbone": {"name": options.backbone}})
    _require_sense(options, settings)
    if not options.root:
        raise UsageError(f"no --root given; run debgcd reproduce {STREAM} --root DIR")
    out = (options.out or Path("runs") / f"reproduce-{options.scale}").absolute()
    names = () if options.sets is None else tuple(resolve(name.strip()) for name in options.sets.split(","))
    written = work(
        Wish(
            roots=tuple(options.root),
            out=out,
            cache=cache_folder(options.cache),
            command=_typed(options),
            scale=options.scale,
            sets=names,
            seeds=options.seeds,
            preset=options.preset or "paper",
            settings=tuple(settings),
        )
    )
    print(f"{table(written['runs'])}\n\n{footnote(written)}\n\nwritten to {escaped(out / STREAM)}.md and .json")


def _require_sense(options: argparse.Namespace, settings: list[dict[str, Any]]) -> None:
    """Refuse options that contradict each other or the experiment."""
    for name in sorted({key for values in settings for key in values} & OWN):
        raise UsageError(f"--set {name}: the experiment sets {name} itself; omit it")
    if options.seeds < 1:
        raise UsageError(f"--seeds must be at least 1, not {options.seeds}")
    if options.scale == "small" and options.preset:
        raise UsageError("--scale small always uses the preset small; omit --preset")
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise UsageError(f"-o {options.out} is a file; give a folder")
    for root in options.root or ():
        if not root.is_dir():
            raise UsageError(f"--root {root} is not a folder; give the folder of the data sets")


def _typed(options: argparse.Namespace) -> str:
    """The command as typed, without options that are only paths."""
    words = ["debgcd", "reproduce", options.name, "--scale", options.scale, "--seeds", str(options.seeds)]
    for name in ("preset", "sets", "methods", "backbone"):
        if getattr(options, name):
            words += [f"--{name}", str(getattr(options, name))]
    return shlex.join(words + [word for text in options.set for word in ("--set", text)])


def _print_plan(found: Plan) -> None:
    table(
        ["set", "row", "seed", "done", "folder"],
        [
            [cell.set, cell.row, str(cell.seed), "yes" if cell.finished else "no", str(cell.folder)]
            for cell in found.cells
        ],
    )
    for sentence in found.missing:
        print(f"missing: {escaped(sentence)}")
