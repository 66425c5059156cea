"""What the runs of an experiment found, as data."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from debgcd.data.paper import Number
from debgcd.reproduce.experiments import Experiment
from debgcd.reproduce.grid import Cell
from debgcd.train.run import open_run


@dataclass(frozen=True)
class Result:
    """A finished run: accuracies and AUROC in per cent, None where there is none."""

    row: str
    set: str
    seed: int
    folder: str
    views: str
    backbone: str
    preset: str
    k: int
    images: int  # unlabelled ones
    unlabelled: dict[str, float | None]  # all, old, new, auroc
    test: dict[str, float | None] = field(default_factory=dict)  # all, old, new, and named (see `evaluate.Scores`)


@dataclass(frozen=True)
class Outcome:
    """An experiment as far as it has come."""

    experiment: Experiment
    scale: str
    sets: tuple[str, ...]
    seeds: int
    results: tuple[Result, ...]
    not_run: tuple[str, ...]  # a sentence each
    facts: dict[str, Any]  # date, machine, versions

    def here(self, row: str, name: str, measure: str, split: str = "unlabelled") -> Number | None:
        """Mean over the seeds, and their standard deviation if there are several."""
        found = [
            value
            for result in self.results
            if (result.row, result.set) == (row, name)
            and (value := result.k if measure == "k" else getattr(result, split).get(measure)) is not None
        ]
        if not found:
            return None
        return Number(statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None)

    def seeds_of(self, row: str, name: str) -> int:
        """How many runs of a row have finished."""
        return sum((result.row, result.set) == (row, name) for result in self.results)

    def chosen(self, name: str) -> str | None:
        """The row that is best on test images of the known classes; no truth of a new class is looked at."""
        known = {row: self.here(row, name, "named", "test") for row in self.experiment.rows}
        there = {row: value.mean for row, value in known.items() if value is not None}
        return max(there, key=there.__getitem__) if there else None

    def to_json(self) -> dict[str, Any]:
        """All but the table, which is made from this and the paper's numbers."""
        return {
            "experiment": self.experiment.name,
            "scale": self.scale,
            "seeds": self.seeds,
            **self.facts,
            "runs": [asdict(result) for result in self.results],
            "not_run": list(self.not_run),
        }


def result(cell: Cell) -> Result:
    """What a finished run says of itself."""
    run = open_run(cell.folder)
    found = json.loads(run.evaluation.read_text("utf-8"))
    gcd = found["unlabelled"]["gcd"]
    return Result(
        row=cell.row,
        set=cell.set,
        seed=cell.seed,
        folder=str(Path(cell.set) / cell.folder.parent.name / cell.folder.name),
        views=found["views"],
        backbone=Path(found["backbone"]).name,
        preset=found["preset"],
        k=len(json.loads((run.model / "categories.json").read_text("utf-8"))),
        images=gcd["images"],
        unlabelled=_per_cent({**gcd["accuracy"], "auroc": found["unlabelled"]["auroc"]}),
        test=_per_cent({**found["test"]["gcd"]["accuracy"], "named": found["test"]["gcd"]["named"]})
        if "test" in found
        else {},
    )


def _per_cent(values: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else 100 * value for name, value in values.items()}
