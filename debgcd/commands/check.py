"""`debgcd check`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.arguments import (
    Subparsers,
    add_command,
    add_run_options,
    add_source,
    configured,
    read_source,
)
from debgcd.commands.output import add_force, print_json, require_free, table
from debgcd.errors import DataError
from debgcd.system.progress import duration, escaped

if TYPE_CHECKING:
    from debgcd.check import Findings
    from debgcd.datasets import Benchmark


SHOWN = 20  # classes, labels that look wrong and images with copies that are printed


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "check",
        check,
        "report labelled images, broken files and what a run would do",
        "debgcd check photos/ --k 20\n  debgcd check --cache                   read the whole cache, delete what is damaged or old",
    )
    add_source(parser)
    parser.add_argument(
        "--manifest", type=Path, metavar="OUT.csv", help="write the manifest that a run would use to this file"
    )
    parser.add_argument(
        "--labels", action="store_true", help="also list labels that look wrong: most similar images have another one"
    )
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_run_options(parser, cache_alone=True)


def check(options: argparse.Namespace) -> None:
    """`debgcd check`."""
    if options.cache is not None and options.path is None and options.benchmark is None:
        _check_cache(options)
        return
    options.cache = options.cache or None
    from debgcd.check import check as look
    from debgcd.data.manifest import write_manifest

    source = read_source(options)
    if options.manifest is not None:
        require_free(options, "--manifest", options.manifest, source.manifest.paths)
        options.manifest.parent.mkdir(parents=True, exist_ok=True)
    if source.benchmark is not None and not options.json:
        _print_benchmark(source.benchmark)
    found, manifest = look(source.manifest, configured(options, source), options.labels)
    if options.manifest is not None:
        write_manifest(manifest, options.manifest)
    if options.json:
        compared = {} if source.benchmark is None else {"benchmark": source.benchmark.to_json()}
        print_json({**compared, **found.to_json()})
    else:
        _print_findings(found)
    if found.problem is not None:
        raise DataError(f"a run would be refused: {found.problem}")


def _check_cache(options: argparse.Namespace) -> None:
    from debgcd.cache import FREED, check_cache
    from debgcd.system.files import amount
    from debgcd.system.machine import cache_folder

    folder = cache_folder(options.cache)
    found = check_cache(folder)
    freed = [entry for entry in found if entry.state in FREED]
    if options.json:
        print_json([{**vars(entry), "path": str(entry.path)} for entry in found])
        return
    table(
        ["what", "name", "size", "state"],
        [[entry.what, entry.path.name, amount(entry.bytes), entry.state] for entry in found],
    )
    size = amount(sum(entry.bytes for entry in freed))
    print(f"{escaped(folder)}: {len(found)} entries; {len(freed)} were damaged or old and are deleted, {size}")


def _print_benchmark(found: Benchmark) -> None:
    """Print |D_l|, |Y_l|, |D_u|, |Y_u| here and in the paper's Table 1."""
    counts = found.to_json()
    paper = counts["paper"] or dict.fromkeys(counts["here"], "-")
    print(f"{found.facts.title} in {escaped(found.folder)}, labelled half: {found.split}")
    table(
        ["", "|D_l|", "|Y_l|", "|D_u|", "|Y_u|"],
        [["here", *map(str, counts["here"].values())], ["paper", *(str(paper[name]) for name in counts["here"])]],
    )
    if counts["paper"] is None:
        print("(not in the paper's table of data sets)")
    print(flush=True)  # before the images are read, which takes long for large data sets


def _print_findings(found: Findings) -> None:
    from debgcd.train.cost import describe

    print(
        f"{found.images} images: {found.labelled} labelled, {found.unlabelled} unlabelled, {found.test} in the test split"
    )
    print(f"{len(found.classes)} known classes; {found.with_truth} images have a truth")
    table(["class", "labelled images"], [[name, str(count)] for name, count in list(found.classes.items())[:SHOWN]])
    if len(found.classes) > SHOWN:
        print(f"... and {len(found.classes) - SHOWN} more")
    if found.skipped:
        print(f"\nfiles that cannot be used: {len(found.skipped)}")
        for entry in found.skipped[:10]:
            print(f"  {entry['file']!r}: {escaped(entry['reason'])}")
        if len(found.skipped) > 10:
            print(f"  ... and {len(found.skipped) - 10} more (use --json to list all)")
    _print_copies(found)
    if found.doubts is not None:
        print(f"\nlabels that look wrong: {len(found.doubts)} of {found.labelled}")
        rows = [[d.file, d.label, d.neighbours, f"{d.certainty:.2f}"] for d in found.doubts[:SHOWN]]
        if rows:
            table(["file", "label", "similar images have", "certainty"], rows)
        if len(found.doubts) > SHOWN:
            print(f"... and {len(found.doubts) - SHOWN} more (use --json to list all)")
    for warning in found.warnings:
        print(f"note: {escaped(warning)}")
    if found.plan is not None:
        plan, cache = found.plan, escaped(found.cache)
        into = "categories, estimating their number," if plan.k is None else f"{plan.k} categories"
        after = "" if plan.first is None else f", after {plan.first[1]} steps of {plan.first[0]}"
        print(f"""
A run would sort {found.unlabelled} images into {into} with {plan.method}, preset {plan.preset}:
  backbone {escaped(plan.backbone)}, {plan.image_size} px, {plan.views}, {plan.steps} steps of {plan.batch} images each{after}
  about {duration(plan.seconds)} on this machine, and {plan.bank_bytes / 1e6:,.0f} MB in {cache} (now {found.cache_bytes / 1e6:,.0f} MB)""")
        if plan.quality is not None and plan.levels:
            print(f"  {describe(plan.quality, plan.levels)}")


def _print_copies(found: Findings) -> None:
    """Those that contradict each other first."""
    rows = [
        ["exact" if one.exact else "near", str(number), file, "-" if label is None else label]
        for number, one in enumerate(
            sorted(found.copies, key=lambda one: (not one.contradict, not one.known_and_asked)), 1
        )
        for file, label in zip(one.files, one.labels, strict=True)
    ]
    if rows:
        print(f"\nimages with copies: {len(rows)} in {len(found.copies)} groups")
        table(["copy", "group", "file", "label"], rows[:SHOWN])
        if len(rows) > SHOWN:
            print(f"... and {len(rows) - SHOWN} more (use --json to list all)")
