"""`debgcd push`."""

from __future__ import annotations

import argparse
from pathlib import Path

from debgcd.commands.arguments import Subparsers, add_command


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "push",
        push,
        "share a run's model on the Hugging Face hub: tail, heads, categories and card; no image leaves this machine",
        "HF_TOKEN=… debgcd push runs/photos anna/pond-insects\n"
        '  debgcd.Discoverer.from_pretrained("anna/pond-insects").predict_labels(paths)     (in Python, anywhere)',
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run, or a model folder")
    parser.add_argument("name", metavar="USER/NAME", help="the repository; created if there is none")
    parser.add_argument("--private", action="store_true", help="if it is created: only you can see it")


def push(options: argparse.Namespace) -> None:
    """`debgcd push`."""
    from debgcd.grow.splits import carry_splits
    from debgcd.review.log import added_batches
    from debgcd.run.hub import push
    from debgcd.system.machine import cache_folder
    from debgcd.system.progress import say

    carry_splits(options.run, cache_folder(None))
    if (options.run / "model").is_dir() and added_batches(options.run):
        say(
            f"this is the model before the batches of {options.run / 'added'}; for the one after them, push what Discoverer.load(RUN).save saves"
        )
    folder = options.run / "model" if (options.run / "model").is_dir() else options.run
    print(push(folder, options.name, private=options.private))
