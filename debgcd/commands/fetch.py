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
    add_cache(parser)


def fetch(options: argparse.Namespace) -> None:
    """`debgcd fetch`."""
    from debgcd.datasets import facts_of, read_benchmark
    from debgcd.datasets.fetch import fetch as get
    from debgcd.system.machine import cache_folder

    about = facts_of(options.name)
    folder = options.root / about.folder
    if folder.exists():  # do not download it twice
        try:
            read_benchmark(about.name, folder, cache_folder(options.cache))
        except DataError as error:
            raise DataError(f"{folder} exists but cannot be used ({error}); move it away and fetch again") from error
    else:
        get(about, options.root)
    print(f"""{about.title}: {escaped(folder)}
next: debgcd check --benchmark {about.name} --root {escaped(options.root)}""")
