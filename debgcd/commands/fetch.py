"""`debgcd fetch`."""

from __future__ import annotations

import argparse
from pathlib import Path

from debgcd.commands.arguments import BENCHMARKS, Subparsers, add_cache, add_command
from debgcd.errors import DataError
from debgcd.system.progress import escaped


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "fetch",
        fetch,
        "download a benchmark from where it is published",
        "debgcd fetch cub --root data/",
    )
    parser.add_argument("name", metavar="NAME", help=f"one of {BENCHMARKS}")
    parser.add_argument(
        "--root", type=Path, required=True, metavar="DIR", help="the folder to put the data set's folder into"
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=("official", "npm"),
        help="default: the official address; for cifar10, npm if that is unreachable",
    )
    add_cache(parser)


def fetch(options: argparse.Namespace) -> None:
    """`debgcd fetch`."""
    from debgcd.datasets import facts_of, read_benchmark
    from debgcd.datasets.fetch import fetch as get
    from debgcd.datasets.fetch import folders
    from debgcd.system.machine import cache_folder

    about = facts_of(options.name)
    there = next((folder for folder in folders(about, options.root) if folder.exists()), None)
    if there is not None:  # do not download it twice
        try:
            read_benchmark(about.name, there, cache_folder(options.cache))
        except DataError as error:
            raise DataError(f"{there} exists but cannot be used ({error}); move it away and fetch again") from error
    else:
        there = get(about, options.root, options.source)
    print(f"""{about.title}: {escaped(there)}
next: debgcd check --benchmark {about.name} --root {escaped(options.root)}""")
