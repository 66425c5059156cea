"""The results of an experiment's runs, as data."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from debgcd.datasets.paper import Number
from debgcd.errors import DataError, DebgcdError
from debgcd.reproduce.experiments import Experiment
from debgcd.reproduce.grid import Cell
from debgcd.run.directory import open_run
from debgcd.system.files import read_json


@dataclass(frozen=True)
class Result:
    """The result of a finished run: accuracies and AUROC in per cent, or None."""

    row: str
    set: str
    seed: int
    folder: str
    views: str
    backbone: str
    preset: str
    k_trained: int  # given or estimated
    k: int  # at the end: smaller if categories were pruned
    images: int  # number of unlabelled images scored
    unlabelled: dict[str, float | None]  # all, old, new, auroc
    test: dict[str, float | None] = field(default_factory=dict)  # all, old, new, and named (see `evaluate.Scores`)


@dataclass(frozen=True)
class Outcome:
    """The state of an experiment: its results so far."""

    experiment: Experiment
    command: str  # as typed
    scale: str
    sets: tuple[str, ...]
    true_k: dict[str, int]  # data set -> K, for the sets found
    seeds: int
    results: tuple[Result, ...]
    not_run: tuple[str, ...]  # one sentence per run or data set
    facts: dict[str, Any]  # date, machine, versions
    figures: tuple[tuple[str, str], ...] = ()  # title, and the path beside the page or why there is none

    def here(self, row: str, name: str, measure: str, split: str = "unlabelled") -> Number | None:
        """Mean over the seeds, with the standard deviation if there are several."""
        found = [
            value
            for result in self.results
            if (result.row, result.set) == (row, name)
            and (value := result.k_trained if measure == "k" else getattr(result, split).get(measure)) is not None
        ]
        if not found:
            return None
        return Number(statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None)

    def seeds_of(self, row: str, name: str) -> int:
        """The number of finished runs of a row."""
        return sum((result.row, result.set) == (row, name) for result in self.results)

    def chosen(self, name: str) -> str | None:
        """The row with the best accuracy on test images of known classes; the truth of new classes is never used."""
        known = {row: self.here(row, name, "named", "test") for row in self.experiment.rows}
        there = {row: value.mean for row, value in known.items() if value is not None}
        return max(there, key=there.__getitem__) if there else None

    def to_json(self) -> dict[str, Any]:
        """Everything except the table, which is made from this and the paper's numbers."""
        return {
            "experiment": self.experiment.name,
            "command": self.command,
            "scale": self.scale,
            "seeds": self.seeds,
            **self.facts,
            "runs": [asdict(result) for result in self.results],
            "not_run": list(self.not_run),
        }


def result(cell: Cell) -> Result:
    """Read the result of a finished run."""
    try:
        return _result(cell)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DebgcdError) as error:
        raise DataError(
            f"{cell.folder} cannot be used ({error}); fix the cause, delete this folder, run again"
        ) from error


def _result(cell: Cell) -> Result:
    run = open_run(cell.folder)
    found = read_json(run.evaluation)
    gcd = found["unlabelled"]["gcd"]
    if len(run.manifest) != cell.images.count:
        raise DataError(f"some images cannot be read; see {run.folder / 'skipped.csv'}")
    assert run.config.k is not None
    return Result(
        row=cell.row,
        set=cell.set,
        seed=cell.seed,
        folder=str(Path(cell.set) / cell.folder.parent.name / cell.folder.name),
        views=found["views"],
        backbone=Path(found["backbone"]).name,
        preset=found["preset"],
        k_trained=run.config.k,
        k=found["k"],
        images=gcd["images"],
        unlabelled=_per_cent({**gcd["accuracy"], "auroc": found["unlabelled"]["auroc"]}),
        test=_per_cent({**found["test"]["gcd"]["accuracy"], "named": found["test"]["gcd"]["named"]})
        if "test" in found
        else {},
    )


def _per_cent(values: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else 100 * value for name, value in values.items()}
