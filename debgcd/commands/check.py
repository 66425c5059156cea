"""`debgcd check`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.options import Subparsers, add_command, add_run_options, configured
from debgcd.commands.show import print_json, table
from debgcd.errors import DataError

if TYPE_CHECKING:
    from debgcd.check import Findings


def add(subparsers: Subparsers) -> None:
    """The command's options."""
    parser = add_command(
        subparsers,
        "check",
        check,
        "say what is labelled, what is broken and what a run would do",
        "debgcd check photos/ --k 20",
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="a folder, CSV or Parquet file")
    parser.add_argument("--manifest", type=Path, metavar="OUT.csv", help="write the manifest that a run would use")
    parser.add_argument("--json", action="store_true", help="the same facts for a program")
    add_run_options(parser)


def check(options: argparse.Namespace) -> None:
    """`debgcd check`."""
    from debgcd.check import check as look
    from debgcd.data.manifest import read_manifest, write_manifest

    manifest = read_manifest(options.path)
    found, manifest = look(manifest, configured(options, manifest))
    if options.manifest is not None:
        write_manifest(manifest, options.manifest)
    if options.json:
        print_json(found.to_json())
    else:
        _print_findings(found, options.k is None)
    if found.problem is not None:
        raise DataError(f"a run would be refused: {found.problem}")


def _print_findings(found: Findings, k_is_open: bool) -> None:
    from debgcd.progress import duration

    print(
        f"{found.images} images: {found.labelled} labelled, {found.unlabelled} unlabelled, {found.test} in the test split"
    )
    print(f"{len(found.classes)} known classes; the truth is known of {found.with_truth} images")
    table(["class", "labelled images"], [[name, str(count)] for name, count in list(found.classes.items())[:20]])
    if len(found.classes) > 20:
        print(f"... and {len(found.classes) - 20} more")
    if found.skipped:
        print(f"\n{len(found.skipped)} files cannot be used:")
        for entry in found.skipped[:10]:
            print(f"  {entry['file']!r}: {entry['reason']}")
        if len(found.skipped) > 10:
            print(f"  ... and {len(found.skipped) - 10} more (all with --json)")
    for warning in found.warnings:
        print(f"note: {warning}")
    if found.plan is not None:
        plan = found.plan
        known = " (say how many there are with --k)" if k_is_open else ""
        print(f"""
A run would put {found.unlabelled} images into {plan.k} categories{known} with {plan.method}, preset {plan.preset}:
  backbone {plan.backbone}, {plan.image_size} px, {plan.views}, {plan.steps} steps of {plan.batch} images
  about {duration(plan.seconds)} on this machine, and {plan.bank_bytes / 1e6:,.0f} MB in {found.cache} (now {found.cache_bytes / 1e6:,.0f} MB)""")
