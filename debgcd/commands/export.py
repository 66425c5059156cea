"""`debgcd export`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.arguments import Subparsers, add_cache, add_command
from debgcd.commands.output import add_force, require_free
from debgcd.errors import UsageError
from debgcd.system.progress import escaped

if TYPE_CHECKING:
    from debgcd.run.directory import Run

FILES = ("csv", "parquet", "coco", "labelstudio", "megadetector", "atlas", "onnx")
FOLDERS = ("folders", "hf", "fiftyone")


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "export",
        export,
        "write the results of a run, or its model, in a format that other tools read",
        "debgcd export runs/photos --to folders -o sorted/\n  debgcd export runs/photos --to onnx -o model.onnx",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument(
        "--to",
        required=True,
        choices=(*FILES, *FOLDERS),
        help=f"{', '.join(FILES)}: OUT is a file; {', '.join(FOLDERS)}: a new folder",
    )
    parser.add_argument("-o", dest="out", type=Path, required=True, metavar="OUT")
    parser.add_argument(
        "--link",
        choices=("copy", "hard", "symlink"),
        help="how images get into a folder: copies (default), hard links or symbolic links",
    )
    parser.add_argument(
        "--separate",
        action="store_true",
        help="with --to folders: labelled/<class>/ and unlabelled/<category>/, as train reads them, instead of <category>/",
    )
    parser.add_argument(
        "--detections",
        type=Path,
        metavar="JSON",
        help="with --to megadetector: the file that the run was trained on; OUT is the same with categories",
    )
    add_force(parser)
    add_cache(parser)


def export(options: argparse.Namespace) -> None:
    """`debgcd export`."""
    from debgcd.export import annotations, atlas, folders, megadetector, onnx, tables
    from debgcd.run.directory import finished_run
    from debgcd.system.machine import cache_folder

    run = finished_run(options.run)
    out: Path = options.out
    if options.separate and options.to != "folders":
        raise UsageError(f"--separate is for folders, not for {options.to}; leave it out")
    if options.detections is not None and options.to != "megadetector":
        raise UsageError(f"--detections is for megadetector, not for {options.to}; leave it out")
    if options.to in FOLDERS:
        folders.require_new_folder(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        writers: dict[str, Callable[[Run, Path, str], None]] = {
            "folders": partial(folders.write_folders, separate=options.separate),
            "hf": folders.write_hf,
            "fiftyone": folders.write_fiftyone,
        }
        writers[options.to](run, out, options.link or "copy")
    else:
        if options.link is not None:
            raise UsageError(f"--link is for {', '.join(FOLDERS)}; {options.to} writes no images")
        require_free(options, "-o", out, run.manifest.paths)
        beside = {"onnx": ("sample script", onnx.sample_of), "labelstudio": ("labelling setup", annotations.setup_of)}
        what, place = beside.get(options.to, ("", None))
        if place is not None:
            require_free(options, f"-o: its {what}", place(out), run.manifest.paths)
        out.parent.mkdir(parents=True, exist_ok=True)
        cache = cache_folder(options.cache or run.config.run.cache)
        files: dict[str, Callable[[Run, Path], None]] = {
            "csv": tables.write_csv,
            "parquet": tables.write_parquet,
            "coco": annotations.write_coco,
            "labelstudio": annotations.write_labelstudio,
            "megadetector": partial(megadetector.write_megadetector, detections=options.detections),
            "atlas": partial(atlas.write_atlas, cache=cache),
            "onnx": partial(onnx.write_onnx, cache=cache),
        }
        files[options.to](run, out)
        if place is not None:
            print(f"{what}: {escaped(place(out))}")
    print(f"{options.to}: {escaped(out)}")
