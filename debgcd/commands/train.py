"""`debgcd train` and `debgcd resume`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd import ranks
from debgcd.commands.options import Subparsers, add_command, add_run_options, add_source, configured, read_source
from debgcd.commands.report import add_no_report, report_at_the_end
from debgcd.commands.show import print_found
from debgcd.progress import escaped

if TYPE_CHECKING:
    from debgcd.train.run import Run


def add(subparsers: Subparsers) -> None:
    """Add both commands and their options."""
    parser = add_command(
        subparsers,
        "train",
        train,
        "discover categories among partly labelled images",
        "debgcd train photos/ --k 20 -o runs/photos",
    )
    add_source(parser)
    parser.add_argument(
        "-o", dest="out", type=Path, metavar="RUN", help="run directory, new or empty (default: runs/<name>)"
    )
    _add_verify(parser)
    add_no_report(parser)
    parser.add_argument(
        "--start", type=Path, metavar="RUN", help="start from another run's network instead of the pretrained one"
    )
    add_run_options(parser)

    parser = add_command(subparsers, "resume", resume, "continue an interrupted run", "debgcd resume runs/photos")
    parser.add_argument("run", type=Path, metavar="RUN")
    _add_verify(parser)
    add_no_report(parser)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read every image again; by default a file whose size, time and inode are unchanged is trusted",
    )


def train(options: argparse.Namespace) -> None:
    """`debgcd train`."""
    from debgcd.train.run import require_apart, require_new
    from debgcd.train.start import begin, require_ready
    from debgcd.train.start import resume as go_on

    source = read_source(options)
    if options.out is None:
        options.out = Path("runs") / source.name
    config = configured(options, source)
    require_ready(source.manifest, config)
    require_apart(options.out, source.folder)
    if ranks.restarted() and ranks.first((options.out / "config.yaml").is_file):
        _end(go_on(options.out, options.verify), options)  # torchrun --max-restarts repeats the command
        return
    if ranks.rank() == 0:
        require_new(options.out)
    _end(begin(source.manifest, config, options.out, options.verify), options)


def resume(options: argparse.Namespace) -> None:
    """`debgcd resume`."""
    from debgcd.train.run import open_run
    from debgcd.train.start import resume as go_on

    run = open_run(options.run)
    if not run.finished:
        _end(go_on(options.run, options.verify), options)
        return
    print(f"run {escaped(options.run)} has already finished; results: {escaped(run.predictions)}")
    if not run.report.exists():  # killed while it was written
        _report(run, options)


def _end(run: Run, options: argparse.Namespace) -> None:
    _print_results(run)
    _report(run, options)


def _report(run: Run, options: argparse.Namespace) -> None:
    """Write the report, unless it was not asked for or several ranks would have to agree on it."""
    if options.no_report:
        return
    if ranks.count() > 1:
        print(
            f"report: not written by several ranks; to write it: debgcd report {escaped(shlex.quote(str(run.folder)))}"
        )
        return
    report_at_the_end(run)


def _print_results(run: Run) -> None:
    """Print what a finished run found, and where it is."""
    from debgcd.inference.model import read_novel
    from debgcd.train.finish import read_evaluation, read_health, read_predictions

    if ranks.rank():
        return
    rows, categories = read_predictions(run)
    scores = read_evaluation(run) if run.evaluation.exists() else {}
    print_found(rows, categories, read_novel(run.model), scores, read_health(run))
    print(f"""
categories of {len(rows)} unlabelled images: {escaped(run.predictions)}
next: debgcd predict {escaped(shlex.quote(str(run.folder)))} PATH -o out.csv""")
