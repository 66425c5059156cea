"""`debgcd train` and `debgcd resume`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.arguments import (
    Source,
    Subparsers,
    add_command,
    add_run_options,
    add_source,
    configured,
    read_source,
)
from debgcd.commands.output import print_found
from debgcd.commands.report import add_no_report, report_at_the_end
from debgcd.errors import UsageError
from debgcd.system import distributed
from debgcd.system.progress import escaped

if TYPE_CHECKING:
    from debgcd.config.schema import Config
    from debgcd.run.directory import Run
    from debgcd.train.continue_run import ReviewedRun


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
        "--from",
        dest="again",
        type=Path,
        metavar="RUN",
        help="train again with what was named, accepted and rejected in RUN; PATH, if given, has more images",
    )
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
    from debgcd.run.directory import begun_by_launcher, require_apart, require_new
    from debgcd.train import train as story
    from debgcd.train.plan import require_ready

    if options.again is None:
        source, before, start = read_source(options), None, None
    else:
        source, before, start = _reviewed(options)
    if options.out is None:
        options.out = Path("runs") / source.name
    config = configured(options, source, start)
    require_ready(source.manifest, config)
    require_apart(options.out, source.folder)
    if distributed.restarted() and distributed.from_rank0(lambda: begun_by_launcher(options.out)):
        # torchrun --max-restarts repeats the command
        _end(story.resume(options.out, options.verify), options)
        return
    if distributed.rank() == 0:
        require_new(options.out)
    _end(story.train(source.manifest, config, options.out, options.verify, before), options)


def _reviewed(options: argparse.Namespace) -> tuple[Source, ReviewedRun, Config]:
    """The images of a reviewed run, what its reviewer decided, and its configuration, with which training continues."""
    from debgcd.data.fingerprints import forget_contents
    from debgcd.data.sources import read_manifest
    from debgcd.run.directory import finished_run
    from debgcd.system.machine import cache_folder
    from debgcd.train.continue_run import continued_config, reviewed_images

    for name in ("benchmark", "root", "split", "start", "preset", "quality", "backbone"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} does not go with --from, which goes on as {options.again} was; leave it out")
    run = finished_run(options.again)
    more = None if options.path is None else read_manifest(options.path)
    cache = cache_folder(options.cache or run.config.run.cache)
    if options.verify:
        forget_contents(run.manifest.paths, cache)
    manifest, before = reviewed_images(run, cache, more)
    source = Source(f"{run.folder.resolve().name}-again", options.path or run.folder, manifest, None)
    return source, before, continued_config(run, manifest)


def resume(options: argparse.Namespace) -> None:
    """`debgcd resume`."""
    from debgcd.run.directory import open_run
    from debgcd.train import train as story

    run = open_run(options.run)
    if not run.finished:
        _end(story.resume(options.run, options.verify), options)
        return
    print(f"run {escaped(options.run)} has already finished; results: {escaped(run.predictions)}")
    if not run.report.exists():  # the run was killed before its report was complete
        _report(run, options)


def _end(run: Run, options: argparse.Namespace) -> None:
    _print_results(run)
    _report(run, options)


def _report(run: Run, options: argparse.Namespace) -> None:
    """Write the report unless --no-report is given; rank 0 writes it, after the other ranks have ended."""
    if not options.no_report and distributed.leave():
        report_at_the_end(run)


def _print_results(run: Run) -> None:
    """Print what a finished run found, and where it is."""
    from debgcd.review.log import reviewed_predictions
    from debgcd.run.model_folder import read_novel
    from debgcd.train.continue_run import describe_fate
    from debgcd.train.finish import read_evaluation, read_health

    if distributed.rank():
        return
    rows, categories = reviewed_predictions(run.folder)
    scores = read_evaluation(run) if run.evaluation.exists() else {}
    print_found(rows, categories, read_novel(run.model), scores, read_health(run))
    fates = describe_fate(run, rows, categories)
    if fates:
        print("\nWhat became of the categories of the run before:")
    for line in fates:
        print(f"  {escaped(line)}")
    print(f"""
categories of {len(rows)} unlabelled images: {escaped(run.predictions)}
next: debgcd predict {escaped(shlex.quote(str(run.folder)))} PATH -o out.csv""")
