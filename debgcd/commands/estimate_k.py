"""`debgcd estimate-k`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from debgcd.commands.arguments import (
    Subparsers,
    absolute,
    add_command,
    add_feature_options,
    add_source,
    configured,
    read_source,
)
from debgcd.commands.output import add_force, print_json, require_free
from debgcd.errors import UsageError

OF_IMAGES = (
    "benchmark",
    "root",
    "split",
    "preset",
    "quality",
    "backbone",
    "bank",
    "config",
    "set",
)  # options that a finished run has already fixed


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "estimate-k",
        estimate_k,
        "estimate the number of categories, known and new",
        "debgcd estimate-k photos/ --plot k.png",
    )
    add_source(parser, or_run=True)
    parser.add_argument(
        "--way",
        choices=("consensus", "ward", "brent"),
        default="consensus",
        help="consensus (default, with an interval), or one of the two searches on its own",
    )
    parser.add_argument(
        "--max", type=int, metavar="K", help="the largest K to consider (default: depends on the size of the data)"
    )
    parser.add_argument("--plot", type=Path, metavar="OUT.png", help="plot the score against K")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_feature_options(parser)


def estimate_k(options: argparse.Namespace) -> None:
    """`debgcd estimate-k`."""
    from debgcd import estimate
    from debgcd.report.plots import k_figure, new_figure, write_figure
    from debgcd.run.directory import open_run

    if options.plot is not None:
        if options.plot.suffix.lower() != ".png":
            raise UsageError(f"--plot needs a .png path, got {options.plot}")
        if not options.plot.parent.is_dir():
            raise UsageError(f"no folder {options.plot.parent} for the plot; create it, or choose another with --plot")
        require_free(options, "--plot", options.plot)
        new_figure("--plot")  # without matplotlib, refuse before any work
    if options.path is not None and (options.path / "config.yaml").is_file():
        if options.plot is not None:
            require_free(options, "--plot", options.plot, open_run(options.path).manifest.paths)
        found = estimate.from_run(options.path, _for_a_run(options), options.way, options.max)
    else:
        source = read_source(options)
        if options.plot is not None:
            require_free(options, "--plot", options.plot, source.manifest.paths)
        found = estimate.from_images(source.manifest, configured(options, source), options.way, options.max)
    if options.json:
        print_json(found.to_json())
    else:
        print(
            f"about {found.k} categories, known and new (between {found.low} and {found.high}); "
            f"estimated in {found.seconds:.0f} s"
        )
    if options.plot is not None:
        write_figure(k_figure(found), options.plot)


def _for_a_run(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that may differ from the run's own configuration; other options are refused."""
    for name in OF_IMAGES:
        if getattr(options, name):
            raise UsageError(
                f"--{name} cannot change the features of the finished run {options.path}; omit it, or give the images instead"
            )
    how = {"cache": absolute(options.cache), "device": options.device, "workers": options.workers}
    values = {"seed": options.seed, "run": {name: value for name, value in how.items() if value is not None}}
    return {name: value for name, value in values.items() if value is not None}
