"""`debgcd methods`."""

from __future__ import annotations

import argparse

from debgcd.commands.arguments import Subparsers, add_command
from debgcd.commands.output import table
from debgcd.errors import UsageError


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    add_command(
        subparsers, "methods", methods, "list the methods, what they need and the paper's figures", "debgcd methods"
    )


def methods(options: argparse.Namespace) -> None:
    """`debgcd methods`."""
    from debgcd.methods import METHODS, clashes, origin

    rows, notes = [], list(clashes().values())
    for name in METHODS:
        try:
            method = METHODS[name]
        except UsageError as error:  # another package's
            notes.append(str(error))
            continue
        about = method.about
        needs = [] if about.finds_k else ["K"]
        needs += ["a ViT"] if about.needs_vit else []
        needs += [f"first stage {method.first}"] if method.first else []
        needs += [f"package {about.package}"] if about.package else []
        bank = "no" if method.cut.early else "yes" if method.trains else "–"
        source = origin(name)
        idea = about.idea if source is None else f"{about.idea} (from {source})"
        rows.append([name, str(about.year), about.venue, ", ".join(needs), bank, *_figures(about.title), idea])
    head = ["method", "year", "venue", "needs", "bank", "SSB", "CIFAR-100", "ImageNet-100", "idea"]
    table(head, rows, left=(0, 2, 3, 4, 8))
    print(
        "\nSSB, CIFAR-100, ImageNet-100: accuracy over all unlabelled images in the paper's Tables 2 and 3 (DINO, K known). "
        "K: the number of categories, which --k says or a run estimates. bank: can use a view bank."
    )
    for note in notes:
        print(f"\n{note}")


def _figures(title: str) -> list[str]:
    """The paper's All for a row of its tables: the mean over CUB, Cars and Aircraft, then CIFAR-100 and ImageNet-100."""
    from debgcd.datasets.facts import table as printed

    found = []
    for number, column in ((2, "average"), (3, "cifar100"), (3, "imagenet100")):
        value = printed(number).rows.get(title, {}).get(column, {}).get("all")
        found.append("–" if value is None else f"{value.mean:.1f}")
    return found
