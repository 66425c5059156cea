"""`debgcd evaluate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from debgcd.commands.arguments import Subparsers, add_command
from debgcd.commands.output import print_accuracy, print_json, print_scores
from debgcd.system.progress import escaped


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "evaluate",
        evaluate,
        "measure the accuracy of a finished run on images with a known truth",
        "debgcd evaluate runs/photos --full",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--full", action="store_true", help="every measure, in the paper's terms")
    parser.add_argument("--json", action="store_true", help="print JSON")


def evaluate(options: argparse.Namespace) -> None:
    """`debgcd evaluate`."""
    from debgcd.train.train import evaluate_run

    scores = evaluate_run(options.run)
    if options.json:
        print_json(scores)
    else:
        print_scores(scores) if options.full else print_accuracy(scores)
        print(f"written to {escaped(options.run / 'evaluation.json')}")
