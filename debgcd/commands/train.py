"""`debgcd train` and `debgcd resume`."""

from __future__ import annotations

import argparse
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
from debgcd.commands.output import print_summary
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
        dest="reviewed",
        type=Path,
        metavar="RUN",
        help="train again with what was named, accepted and rejected in RUN; PATH, if given, has more images, of which those "
        "look new that show no labelled class and no category of RUN",
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
    from debgcd.train import train as runs
    from debgcd.train.plan import require_ready

    if options.reviewed is None:
        source, reviewed_run, continued = read_source(options), None, None
    else:
        source, reviewed_run, continued = _read_reviewed(options)
    if options.out is None:
        options.out = Path("runs") / source.name
    config = configured(options, source, continued)
    require_ready(source.manifest, config)
    require_apart(options.out, source.folder)
    if distributed.restarted() and distributed.from_rank0(lambda: begun_by_launcher(options.out)):
        # torchrun --max-restarts repeats the command
        _print_and_report(runs.resume(options.out, options.verify), options)
        return
    if distributed.rank() == 0:
        require_new(options.out)
    _print_and_report(runs.train(source.manifest, config, options.out, options.verify, reviewed_run), options)


def _read_reviewed(options: argparse.Namespace) -> tuple[Source, ReviewedRun, Config]:
    """For `--from`: the images, labelled as their reviewer decided; the reviewed run; the configuration to continue with."""
    from debgcd.data.fingerprints import forget_contents
    from debgcd.data.sources import read_manifest
    from debgcd.run.directory import finished_run
    from debgcd.system.machine import cache_folder
    from debgcd.train.continue_run import continued_config, reviewed_images

    for name in ("benchmark", "root", "split", "start", "preset", "quality", "backbone"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name} does not go with --from, which continues {options.reviewed} with its own settings; leave it out"
            )
    run = finished_run(options.reviewed)
    more = None if options.path is None else read_manifest(options.path)
    cache = cache_folder(options.cache or run.config.run.cache)
    if options.verify:
        forget_contents(run.manifest.paths, cache)
    manifest, reviewed_run = reviewed_images(run, cache, more)
    source = Source(f"{run.folder.resolve().name}-again", options.path or run.folder, manifest, None)
    return source, reviewed_run, continued_config(run, manifest, reviewed_run)


def resume(options: argparse.Namespace) -> None:
    """`debgcd resume`."""
    from debgcd.run.directory import open_run
    from debgcd.train import train as runs

    run = open_run(options.run)
    if not run.finished:
        _print_and_report(runs.resume(options.run, options.verify), options)
        return
    print(f"run {escaped(options.run)} has already finished; results: {escaped(run.predictions)}")
    # a run killed after predictions.csv has no report
    if not run.report.exists():
        _report(run, options)


def _print_and_report(run: Run, options: argparse.Namespace) -> None:
    _print_results(run)
    _report(run, options)


def _report(run: Run, options: argparse.Namespace) -> None:
    """Write report.html unless --no-report is given, on rank 0 after the other ranks have exited; and say what comes next."""
    from debgcd.report.summary import next_steps
    from debgcd.review.log import reviewed_predictions

    leads = distributed.rank() == 0
    if not options.no_report and distributed.leave():
        report_at_the_end(run)
    if leads:
        rows, _ = reviewed_predictions(run.folder)
        for what, words in reversed(next_steps(run.folder, rows)):
            print(f"{what}: {escaped(words)}")


def _print_results(run: Run) -> None:
    """Print the categories of a finished run and the path of its predictions."""
    from debgcd.report.summary import summary
    from debgcd.review.log import reviewed_predictions
    from debgcd.train.continue_run import describe_fate
    from debgcd.train.finish import read_evaluation

    if distributed.rank():
        return
    rows, categories = reviewed_predictions(run.folder)
    scores = read_evaluation(run) if run.evaluation.exists() else {}
    print_summary(rows, categories, summary(run, rows, categories), scores)
    fates = describe_fate(run, rows, categories)
    if fates:
        print("\nWhat became of the categories of the run before:")
    for line in fates:
        print(f"  {escaped(line)}")
    print(f"\ncategories of {len(rows)} unlabelled images: {escaped(run.predictions)}")
