"""`debgcd demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from debgcd.commands.arguments import Subparsers, absolute, add_cache, add_command
from debgcd.commands.output import percent, table
from debgcd.commands.report import add_no_report, report_at_the_end
from debgcd.system.progress import escaped


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "demo",
        demo,
        "discover handwritten digits with k-means, SimGCD and DebGCD",
        "debgcd demo -o demo-run",
    )
    parser.add_argument(
        "-o", dest="out", type=Path, default=Path("demo-run"), metavar="DIR", help="output folder (default demo-run)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="under a minute: only PIM, a classifier on features that are not trained",
    )
    parser.add_argument("--seed", type=int, default=0)
    add_no_report(parser)
    add_cache(parser)


def demo(options: argparse.Namespace) -> None:
    """`debgcd demo`."""
    from debgcd.demo import METHODS, QUICK
    from debgcd.demo import demo as run_demo
    from debgcd.methods import METHODS as ALL
    from debgcd.run.directory import open_run

    methods = QUICK if options.quick else METHODS
    summary = run_demo(options.out, options.seed, absolute(options.cache), methods)
    run = options.out / methods[-1]
    rows = [
        [
            entry["method"],
            *(percent(entry[name]) for name in ("all", "old", "new", "auroc")),
            f"{entry['seconds']:.0f}",
        ]
        for entry in summary
    ]
    print()
    table(["method", "All", "Old", "New", "AUROC", "seconds"], rows)
    print(f"""
All: per cent of the unlabelled digits that are in the right category; Old: the same for 0–4, the known classes; New: for
5–9, which had no labels. AUROC: how well the novelty score separates new from old digits (50: chance, 100: perfectly).
Backbone lite0, seed {options.seed}.

Categories found by {ALL[methods[-1]].about.title}: {escaped(options.out / "categories.png")}
Next steps:
  debgcd evaluate {escaped(run)}
  debgcd predict {escaped(run)} {escaped(options.out / "digits")} -o predictions.csv
  debgcd check PATH                      your own images: labelled/<class>/... and unlabelled/...""")
    if not options.no_report:
        report_at_the_end(open_run(run))
