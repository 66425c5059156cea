"""`debgcd add`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.arguments import Subparsers, add_cache, add_command
from debgcd.errors import UsageError
from debgcd.system.progress import escaped, say

if TYPE_CHECKING:
    from debgcd.grow.add import Added


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "add",
        add_images,
        "add new images to a finished run: into its categories, and into new ones for what fits none of them; no id changes",
        "debgcd add runs/photos next_week/\n  debgcd add runs/photos --undo",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run")
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        metavar="PATH",
        help="an image, a folder, a CSV or Parquet file; labels are not used",
    )
    parser.add_argument(
        "--new", type=_whole, metavar="N", help="number of new categories among them (default: estimated)"
    )
    parser.add_argument("--undo", action="store_true", help="take the last batch back; its folder stays and is ignored")
    add_cache(parser)


def add_images(options: argparse.Namespace) -> None:
    """`debgcd add`."""
    from debgcd.data.sources import read_manifest
    from debgcd.grow.add import add, take_back
    from debgcd.run.directory import finished_run
    from debgcd.system.machine import cache_folder

    if options.undo == (options.path is not None):
        raise UsageError("give a PATH with images to add, or --undo to take the last batch back")
    if options.undo:
        print(
            f"batch {take_back(options.run)} of {escaped(options.run)} is taken back: its images and categories do not count"
        )
        return
    run = finished_run(options.run)
    manifest = read_manifest(options.path)
    if any(manifest.labels):
        say("labels are not used here; to train with them: debgcd train --from RUN PATH")
    _print(add(options.run, manifest, cache_folder(options.cache or run.config.run.cache), options.new), options.run)


def _print(added: Added, run: Path) -> None:
    """What became of the batch."""
    kinds = {"known classes": 0, "categories found before": 0, "new categories": 0}
    for id, count in added.images.items():
        known = added.categories[id].known
        kinds["known classes" if known else "new categories" if id in added.new else "categories found before"] += count
    total = sum(kinds.values())
    parts = ", ".join(f"{count} in {kind}" for kind, count in kinds.items())
    print(f"{total} images added to {escaped(run)} as batch {added.number}: {parts}.")
    if added.new:
        print("new: " + ", ".join(f"{id} ({added.images[id]} images)" for id in added.new))
    if added.unplaced:
        print(
            f"{added.unplaced} images fit nothing and are too few of a kind for a category: they are where they fit best (looks_new)."
        )
    if added.skipped:
        first = added.skipped[-1]
        say(f"not added: {len(added.skipped)} files, e.g. {escaped(first.file)}: {escaped(first.reason)}")
    if added.again:
        print(f"{added.again[0].upper()}{escaped(added.again[1:])}")
    print(
        f"next: debgcd review {escaped(shlex.quote(str(run)))}; undo: debgcd add {escaped(shlex.quote(str(run)))} --undo"
    )


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)
