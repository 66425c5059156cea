"""Output: which files a command may write and what it never replaces; pages to look at."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from debgcd.errors import UsageError

RUN = ("config.yaml", "manifest.csv")  # a folder with both is a run directory
MODEL = ("config.json", "categories.json")  # and with these, a model folder
INPUTS = ("path", "run", "config", "backbone", "start")  # options that name what a command reads


def add_force(parser: argparse.ArgumentParser) -> None:
    """`--force`."""
    parser.add_argument("--force", action="store_true", help="replace output files that exist already")


def require_free(options: argparse.Namespace, flag: str, path: Path, images: Iterable[os.PathLike[str]] = ()) -> None:
    """Refuse an output file that exists, unless --force is given; before any work is done.

    Even with --force: a folder, a file of a run or a model, what the command reads, and `images`, those of its input.
    """
    require_harmless(options, flag, path, images)
    if path.is_file() and not options.force:
        raise UsageError(f"{flag} {path} exists; choose another path, or replace it with --force")


def require_harmless(
    options: argparse.Namespace, flag: str, path: Path, images: Iterable[os.PathLike[str]] = ()
) -> None:
    """The part of `require_free` that --force does not change."""
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a folder; give the path of a file")
    place = Path(os.path.realpath(path))
    for folder in place.parents:
        for names, what in ((RUN, "run directory"), (MODEL, "model folder")):
            if all((folder / name).is_file() for name in names):
                raise UsageError(f"{flag} {path} lies inside the {what} {folder}; choose a path outside it")
    if not place.is_file():  # what is not there cannot be lost; pipes and devices neither
        return
    inputs = [Path(given) for name in INPUTS if (given := getattr(options, name, None)) is not None]
    for given in inputs:
        if _same(given, place):
            raise UsageError(f"{flag} {path} is an input of this command; choose another path")
    if any(_same(image, place) for image in images) or any(_image_below(place, given) for given in inputs):
        raise UsageError(f"{flag} {path} is one of the input images; choose another path")


def _same(one: os.PathLike[str], other: Path) -> bool:
    """Whether both are one file, also through a link of either kind."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def _image_below(place: Path, folder: Path) -> bool:
    """Whether a file is an image of this folder by its name, though perhaps one that cannot be used."""
    from debgcd.data.sources import IMAGE_SUFFIXES

    return place.suffix.lower() in IMAGE_SUFFIXES and folder.is_dir() and place.is_relative_to(os.path.realpath(folder))


def open_page(url: str) -> None:
    """Open a page in the browser where somebody sits before a screen."""
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if screen and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(url)
