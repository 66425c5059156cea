"""`debgcd name`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debgcd.commands.arguments import Subparsers, add_cache, add_command
from debgcd.errors import UsageError
from debgcd.system.progress import escaped, say

if TYPE_CHECKING:
    from debgcd.review.replay import Review

NO_WORDS = Path()  # `--suggest` without a file


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "name",
        name,
        "give categories of a run a name, or merge them under one",
        "debgcd name runs/photos new-03=lynx new-04+new-07=fox\n  debgcd name runs/photos new-05+oak=      into a known class\n"
        "  debgcd name runs/photos --suggest words.txt",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="CATEGORY[+CATEGORY...]=NAME",
        help="a category by its id or present name; of several, the first lives on, or the known class among them; "
        "without a NAME after =, one loses its name and several keep that of the one that lives on",
    )
    parser.add_argument(
        "--suggest",
        nargs="?",
        type=Path,
        const=NO_WORDS,
        metavar="WORDS",
        help="print the known classes that each new category looks like and, with a file of words, those that fit it; nothing is named",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="for WORDS: a text-image model in CLIP's form, a folder or a hub id (default: a CLIP of LAION)",
    )
    add_cache(parser)


def name(options: argparse.Namespace) -> None:
    """`debgcd name`: all or nothing, by the same log as the review."""
    if (options.suggest is None) is not bool(options.names):
        raise UsageError("give either CATEGORY=NAME, e.g. new-03=lynx, or --suggest")
    if options.suggest is not None:
        _suggest(options)
        return
    from debgcd.review.log import LOG, Log

    with Log(options.run) as log:
        trial = log.trial()
        acts: list[dict[str, Any]] = []
        for number, text in enumerate(options.names):
            for act in _acts(trial, text):
                try:
                    trial.apply({**act, "id": f"{number} {len(acts)}"})
                except UsageError as error:
                    raise UsageError(f"{text!r}: {error}; nothing was changed") from error
                acts.append(act)
        for act in acts:
            log.act(act)
        touched = dict.fromkeys(
            log.review.living(id).id for act in acts for id in act.get("categories", [act.get("category")])
        )
        for id in touched:
            one = log.review.categories[id]
            print(f"{escaped(id)}: {escaped(one.name)}, {one.images} images")
        if log.behind:
            say(log.behind)
    print(f"written to {escaped(options.run / LOG)}; undo in debgcd review, or train again with debgcd train --from")


def _suggest(options: argparse.Namespace) -> None:
    from debgcd.commands.output import table
    from debgcd.model.text_image import DEFAULT
    from debgcd.review.suggest_names import read_words, suggest
    from debgcd.run.directory import finished_run
    from debgcd.system.machine import cache_folder

    words = [] if options.suggest == NO_WORDS else read_words(options.suggest)
    if options.model is not None and not words:
        raise UsageError("--model needs a file of words after --suggest")
    run = finished_run(options.run)
    cache = cache_folder(options.cache or run.config.run.cache)
    found = suggest(run, cache, words, options.model or DEFAULT)

    def said(scored: Iterable[tuple[str, float]]) -> str:
        return ", ".join(f"{escaped(text)} {score:.2f}" for text, score in scored)

    rows = [[escaped(one.category.name), str(one.images), said(one.like), said(one.words)] for one in found]
    head = ["category", "images", "looks like (cosine)", *(["words (probability)"] if words else [])]
    table(head, [row[: len(head)] for row in rows], left=(0, 2, 3))
    print(
        f"nothing was named; to name one: debgcd name {escaped(options.run)} {found[0].category.id if found else 'new-01'}=NAME"
    )


def _acts(review: Review, text: str) -> list[dict[str, Any]]:
    """The acts that an argument stands for."""
    from debgcd.review.log import outcome
    from debgcd.run.categories import find

    left, equals, name = text.rpartition("=")
    if not equals or not left:
        raise UsageError(f"{text!r} is not of the form CATEGORY=NAME, e.g. new-03=lynx or new-04+new-07=fox")
    found = outcome(review)
    whole = left in review.categories or any(one.name == left for one in review.categories.values())
    ids = [find(found, part.strip()) for part in ([left] if whole else left.split("+"))]  # a name may have a plus
    into = next((id for id in ids if review.categories[id].known), ids[0])
    merge = {"act": "merge", "categories": [id for id in ids if id != into], "into": into}
    named = {"act": "name", "category": into, "name": name}
    return ([merge] if len(set(ids)) > 1 else []) + ([named] if name.strip() or len(ids) == 1 else [])
