"""The runs of each experiment, as listed in `reproduce/experiments.yaml`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from debgcd.config.merge import parse_yaml
from debgcd.data.manifest import Manifest
from debgcd.datasets.facts import Number, facts_of, table
from debgcd.errors import UsageError, suggest
from debgcd.methods import METHODS, require_method


@dataclass(frozen=True)
class Small:
    """The subset of each data set that `--scale small` uses."""

    sets: tuple[str, ...] = ("cifar10", "pets", "cub")  # those that can be downloaded without registration
    classes: int = 50
    images: int = 1500  # training images


DIGITS = "digits"  # scikit-learn's: no data set of the paper, but no machine lacks it


def title_of(name: str) -> str:
    """The title of a data set."""
    return "Handwritten digits" if name == DIGITS else facts_of(name).title


def part(manifest: Manifest, classes: int, images: int) -> Manifest:
    """A subset with at most `classes` classes, known and new alternating, and about `images` training images.

    Keeps every n-th labelled, unlabelled and test image per class, so the proportions stay the same. Deterministic: depends
    only on the manifest, not on a seed.
    """
    known = list(manifest.classes)
    new = sorted({truth for truth in manifest.truths if truth is not None} - set(known))
    chosen = set(_in_turn(known, new)[:classes])
    groups: dict[tuple[str, bool, str], list[int]] = defaultdict(list)
    for row, (truth, label, split) in enumerate(zip(manifest.truths, manifest.labels, manifest.splits, strict=True)):
        name = truth if truth is not None else label
        if name is not None and name in chosen:
            groups[name, label is not None, split].append(row)
    training = sum(len(rows) for (_, _, split), rows in groups.items() if split == "train")
    share = min(1.0, images / training) if training else 1.0
    kept = [row for rows in groups.values() for row in _spread(rows, share)]
    return manifest.select(sorted(kept))


def classes_of(manifest: Manifest) -> int:
    """The true number of classes, known and new."""
    return len(set(manifest.truths) - {None} | set(manifest.classes))


def _in_turn(known: list[str], new: list[str]) -> list[str]:
    """First known, first new, second known, ...; then the rest of the longer list."""
    pairs = [name for pair in zip(known, new, strict=False) for name in pair]
    shorter = min(len(known), len(new))
    return pairs + known[shorter:] + new[shorter:]


def _spread(rows: list[int], share: float) -> list[int]:
    """Evenly spaced rows, at least one."""
    count = max(1, round(share * len(rows)))
    return [rows[i * len(rows) // count] for i in range(count)]


@dataclass(frozen=True)
class Experiment:
    """A table of the paper, or two tables with the same rows."""

    name: str
    tables: tuple[int, ...]
    sets: tuple[str, ...]
    rows: dict[str, dict[str, Any]]  # row -> configuration values that it changes
    backbone: str = "dino"
    paper: dict[str, dict[str, Any]] = field(default_factory=dict)  # rows whose numbers are in another table
    calibrate: bool = False  # also show the test split, and select a row by its accuracy on known classes
    figures: dict[str, list[str]] = field(default_factory=dict)  # figure -> rows whose runs it shows, per data set
    estimated_k: bool = False  # use the paper's estimate of K; where it has none, estimate K here
    paper_detector: bool = False  # at small scale too, detector and answer are those of the preset paper

    @property
    def title(self) -> str:
        """The titles of the tables."""
        numbers = (10, *self.tables) if self.estimated_k else self.tables  # the estimates stand on the same page
        return "; ".join(f"Table {number}: {table(number).title}" for number in numbers)

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures compared: All, Old, New, or AUROC."""
        return table(self.tables[0]).measures

    def printed(self, row: str, column: str) -> dict[str, Number]:
        """The paper's numbers for a row and a data set, by measure; empty if it has none.

        For a set that the experiment's own tables lack, they are those of the same run in another table.
        """
        for number, name in [*self._places(row), *self._places_elsewhere(row, column)]:
            found = table(number).rows.get(name, {}).get(column)
            if found is not None:
                return found
        return {}

    def _places(self, row: str) -> list[tuple[int, str]]:
        """Tables and their rows that hold the paper's numbers for a row."""
        elsewhere = self.paper.get(row)
        return [(elsewhere["table"], elsewhere["row"])] if elsewhere else [(number, row) for number in self.tables]

    def _places_elsewhere(self, row: str, column: str) -> list[tuple[int, str]]:
        """The same for rows of other experiments that are the same run: same backbone, known K, same values."""
        if row not in self.rows or column == "average" or self.estimated_k:
            return []
        alike = [
            each for each in experiments().values() if (each.backbone, each.measures) == (self.backbone, self.measures)
        ]
        return [
            place
            for each in alike
            if not each.estimated_k
            for name, values in each.rows.items()
            if values == self.rows[row]
            for place in each._places(name)
        ]

    def only(self, methods: Sequence[str]) -> Experiment:
        """The experiment with the rows of these methods alone.

        Where rows are named after methods, one that the paper has no row of gets a row too, without the paper's numbers.
        """
        own = {row: values.get("method", "debgcd") for row, values in self.rows.items()}
        rows = {row: values for row, values in self.rows.items() if own[row] in methods}
        compares = any(row == METHODS[name].about.title for row, name in own.items())
        for name in methods:
            if name not in own.values():
                require_method(name)
                if not compares:
                    raise UsageError(
                        f"{self.name} has no row of method {name!r}{suggest(name, sorted(set(own.values())))}"
                    )
                rows[METHODS[name].about.title] = {"method": name}
        return replace(self, rows=rows)

    @property
    def others(self) -> list[str]:
        """Rows of the paper's table that are not among the experiment's."""
        return [row for row in table(self.tables[0]).rows if row not in self.rows]


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by name, in the paper's order."""
    text = (resources.files("debgcd.reproduce") / "experiments.yaml").read_text("utf-8")
    found = {}
    for name, values in parse_yaml(text, aliases=True).items():
        values = {**values, "tables": tuple(values["tables"]), "sets": tuple(values["sets"])}
        found[name] = Experiment(name=name, **values)
    return found


def experiment(name: str) -> Experiment:
    """The experiment of this name, or an error with suggestions."""
    known = experiments()
    if name not in known:
        raise UsageError(f"no experiment {name!r}{suggest(name, list(known))}")
    return known[name]
