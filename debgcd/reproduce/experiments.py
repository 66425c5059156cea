"""What each experiment runs: the data is `reproduce/experiments.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import yaml

from debgcd.data.paper import Number, table
from debgcd.errors import UsageError
from debgcd.overlay import suggest


@dataclass(frozen=True)
class Experiment:
    """A table of the paper, or two that have the same rows."""

    name: str
    tables: tuple[int, ...]
    sets: tuple[str, ...]
    rows: dict[str, dict[str, Any]]  # what each row changes in the configuration
    backbone: str = "dino"
    paper: dict[str, dict[str, Any]] = field(default_factory=dict)  # rows whose numbers stand in another table
    calibrate: bool = False  # show the test split too, and choose a row by its images of the known classes
    estimated_k: bool = False  # K as the paper estimated it; estimated here where it did not

    @property
    def title(self) -> str:
        """What the tables show."""
        return "; ".join(f"Table {number}: {table(number).title}" for number in self.tables)

    @property
    def measures(self) -> tuple[str, ...]:
        """What is compared: All, Old, New, or AUROC."""
        return table(self.tables[0]).measures

    def printed(self, row: str, column: str) -> dict[str, Number]:
        """The paper's numbers of a row for a set, by measure; empty where it has none."""
        elsewhere = self.paper.get(row)
        places = [(elsewhere["table"], elsewhere["row"])] if elsewhere else [(number, row) for number in self.tables]
        for number, name in places:
            found = table(number).rows.get(name, {}).get(column)
            if found is not None:
                return found
        return {}

    @property
    def others(self) -> list[str]:
        """Rows of the paper that are of methods which are not here."""
        return [row for row in table(self.tables[0]).rows if row not in self.rows]


def experiments() -> dict[str, Experiment]:
    """All of them, by name, in the order of the paper."""
    text = (resources.files("debgcd.reproduce") / "experiments.yaml").read_text("utf-8")
    found = {}
    for name, values in yaml.safe_load(text).items():
        values = {**values, "tables": tuple(values["tables"]), "sets": tuple(values["sets"])}
        found[name] = Experiment(name=name, **values)
    return found


def experiment(name: str) -> Experiment:
    """One of them, or an error that says which there are."""
    known = experiments()
    if name not in known:
        raise UsageError(f"there is no experiment {name!r}{suggest(name, list(known))}")
    return known[name]
