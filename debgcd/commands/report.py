"""`debgcd report`, and the report that `train`, `resume` and `demo` end with."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.arguments import Subparsers, add_cache, add_command
from debgcd.commands.output import add_force, open_page, require_free
from debgcd.errors import DebgcdError, UsageError
from debgcd.system.progress import escaped, say

if TYPE_CHECKING:
    from debgcd.run.directory import Run

FIGURES = "tsne, utilisation, classifiers, novelty, attention, errors, sizes, k"  # a test compares this with the list in report/


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "report",
        report,
        "write the report of a finished run, a page to look at and to send; or one of the paper's figures",
        "debgcd report runs/photos\n  debgcd report runs/photos --figure errors --beside runs/simgcd -o errors.svg",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument(
        "-o",
        dest="out",
        type=Path,
        metavar="FILE",
        help="output (default: RUN/report.html, or RUN/figures/NAME.png and .svg)",
    )
    parser.add_argument("--figure", metavar="NAME", help=f"a figure instead of the page: {FIGURES}")
    parser.add_argument("--beside", type=Path, metavar="RUN2", help="another run to compare with in the figure")
    add_force(parser)
    add_cache(parser)


def add_no_report(parser: argparse.ArgumentParser) -> None:
    """`--no-report`."""
    parser.add_argument("--no-report", action="store_true", help="do not write report.html at the end")


def report(options: argparse.Namespace) -> None:
    """`debgcd report`."""
    from debgcd.report.page import write_report
    from debgcd.run.directory import finished_run
    from debgcd.system.machine import cache_folder

    if options.beside is not None and options.figure is None:
        raise UsageError("--beside needs --figure NAME: only figures compare two runs")
    run = finished_run(options.run)
    cache = cache_folder(options.cache or run.config.run.cache)
    if options.figure is not None:
        _figure(options, run, cache)
        return
    out = run.report if options.out is None else options.out
    if not _own(out, run):
        require_free(options, "-o", out, run.manifest.paths)
        out.parent.mkdir(parents=True, exist_ok=True)
    write_report(run, out, cache)
    _tell(out)


def report_at_the_end(run: Run) -> None:
    """Write the report of a run that has just finished; what goes wrong is said, because the results are there."""
    from debgcd.report.page import write_report
    from debgcd.system.machine import cache_folder

    try:
        write_report(run, run.report, cache_folder(run.config.run.cache))
    except (DebgcdError, OSError) as error:
        say(f"the report was not written ({error}); to try again: debgcd report {run.folder}")
        return
    _tell(run.report)


def _own(out: Path, run: Run) -> bool:
    """Whether this is the run's own report, which may always be written again."""
    return os.path.realpath(out) == os.path.realpath(run.report)


def _tell(out: Path) -> None:
    """Print where the report is, and show it."""
    print(f"report: {escaped(out)}")
    open_page(out.resolve().as_uri())


def _figure(options: argparse.Namespace, run: Run, cache: Path) -> None:
    from debgcd.report.plots import SUFFIXES, draw, write_figure
    from debgcd.run.directory import finished_run

    if options.out is None:
        places = [run.folder / "figures" / f"{options.figure}{suffix}" for suffix in SUFFIXES]
    else:
        if options.out.suffix.lower() not in SUFFIXES:
            raise UsageError(f"-o needs a .png or .svg path for a figure, got {options.out}")
        require_free(options, "-o", options.out, run.manifest.paths)
        places = [options.out]
    runs = [run] if options.beside is None else [run, finished_run(options.beside)]
    figure = draw(options.figure, runs, cache)
    for place in places:
        write_figure(figure, place)
        print(f"figure: {escaped(place)}")
