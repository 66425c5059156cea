"""`debgcd review`."""

from __future__ import annotations

import argparse
import html
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.arguments import Subparsers, add_cache, add_command
from debgcd.commands.output import open_page
from debgcd.errors import UsageError
from debgcd.system.progress import escaped, say

if TYPE_CHECKING:
    from debgcd.review.log import Log
    from debgcd.run.directory import Run


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "review",
        review,
        "look through what a run found and correct it, in a page on this machine: select, name, merge, split, undo",
        "debgcd review runs/photos\n  debgcd review runs/photos --next 30          which images to label next\n"
        "  debgcd review runs/photos --apply colleague.jsonl",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="port of 127.0.0.1 (default: any that is free)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the URL")
    parser.add_argument(
        "--next",
        type=int,
        metavar="N",
        help="print the N images whose answers teach most, and end; D in the page goes through them",
    )
    parser.add_argument(
        "--apply", type=Path, metavar="FILE", help="add the acts of another decisions.jsonl to this one, and end"
    )
    add_cache(parser)


def review(options: argparse.Namespace) -> None:
    """`debgcd review`."""
    from debgcd.review.log import Log
    from debgcd.run.directory import finished_run

    if options.next is not None and options.next < 1:
        raise UsageError(f"--next must be 1 or more, not {options.next}")
    run = finished_run(options.run)
    if options.next is not None:
        _next(options, run)
        return
    with Log(run.folder) as log:
        if options.apply is not None:
            _apply(log, options.apply)
        else:
            _page(options, run, log)


def _next(options: argparse.Namespace, run: Run) -> None:
    from debgcd.commands.output import table
    from debgcd.review.next_images import next_images
    from debgcd.run.categories import read_categories
    from debgcd.system.machine import cache_folder

    rows = next_images(run, cache_folder(options.cache or run.config.run.cache), options.next)
    if not rows:
        print("every image is reviewed")
        return
    name = {one.id: one.name for one in read_categories(run.model, len(run.manifest.classes))}
    lines = [[row["path"], row["name"], name.get(row["top2_id"], "")] for row in rows]
    table(["image", "category", "or"], [[escaped(cell) for cell in line] for line in lines], left=(0, 1, 2))


def _apply(log: Log, other: Path) -> None:
    added = log.add(other)
    failed = [(line, log.review.problems[line["id"]]) for line in added if line["id"] in log.review.problems]
    for line, why in failed:
        say(f"act {line['id']} does not apply: {why}")
    print(f"{len(added)} acts added, {len(added) - len(failed)} of them apply")


def _page(options: argparse.Namespace, run: Run, log: Log) -> None:
    """Serve the page until it is stopped; the URL is printed as soon as it can be opened."""
    from debgcd.review.page.pictures import Pictures
    from debgcd.review.page.server import HOST, build, listen, serve
    from debgcd.review.page.session import ReviewSession
    from debgcd.system.machine import cache_folder

    cache = cache_folder(options.cache or run.config.run.cache)
    with closing(listen(options.port)) as place:
        port = place.getsockname()[1]
        with closing(ReviewSession(run, log, cache)) as session, closing(Pictures(*session.images, cache)) as pictures:
            guard = build(session, pictures, port)
            url = f"http://{HOST}:{port}/?token={guard.token}"
            print(url, flush=True)
            try:
                with _redirection(run.folder, url) as page:
                    if not options.no_browser:
                        open_page(page.resolve().as_uri())
                    serve(guard, place)
            except KeyboardInterrupt:  # the way to end it
                say(f"the review ended; {log.review.version} acts are in {run.folder}")


@contextmanager
def _redirection(folder: Path, url: str) -> Iterator[Path]:
    """A file that leads to a URL, which only this user can read: the URL has the token, and a command line is public."""
    place = folder / ".review.html"
    place.unlink(missing_ok=True)  # left over from a kill
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">\n')
    try:
        yield place
    finally:
        place.unlink(missing_ok=True)
