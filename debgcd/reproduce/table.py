"""The paper's numbers next to ours, as a Markdown page that is also readable in a terminal."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from debgcd.datasets.facts import Number, table
from debgcd.errors import DataError, DebgcdError
from debgcd.reproduce.counts import estimated_table
from debgcd.reproduce.experiments import Experiment, title_of
from debgcd.reproduce.grid import Cell
from debgcd.run.directory import open_run
from debgcd.system.files import read_json
from debgcd.system.text_table import markdown_table


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
    estimates: dict[str, int] = field(default_factory=dict)  # data set -> K by the paper's search (Table 10)

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
            "estimates": self.estimates,
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


NAMES = {"all": "All", "old": "Old", "new": "New", "auroc": "AUROC", "k": "K"}
SMALL = (
    "Small scale: subsets of the data sets, a short schedule, and a backbone trained with ImageNet's labels. This does not "
    "reproduce the paper's numbers; only the order of the rows can be compared."
)


def page(outcome: Outcome) -> str:
    """The whole page: the machine, one table per data set, and the runs that are missing."""
    blocks = [f"# {outcome.experiment.title}", _about(outcome)]
    for name in outcome.sets:
        if any(result.set == name for result in outcome.results):
            blocks += [f"## {title_of(name)}", _table(outcome, name)]
            if outcome.experiment.calibrate:
                blocks += [
                    f"### {title_of(name)}, test split",
                    _table(outcome, name, "test"),
                    _choice(outcome, name),
                ]
    blocks += _average(outcome)
    if outcome.estimates:
        blocks += [f"## Table 10: {table(10).title}", estimated_table(outcome.true_k, outcome.estimates)]
    if outcome.experiment.others:
        blocks.append(f"In the paper's table but not run here: {', '.join(outcome.experiment.others)}.")
    if outcome.figures:
        blocks.append("## Figures")
        blocks += [
            f"{title}: {place}" if place.startswith("not drawn") else f"![{title}]({place})\n\n{title}"
            for title, place in outcome.figures
        ]
    if outcome.not_run:
        blocks.append("Not run:\n\n" + "\n".join(f"- {sentence}" for sentence in outcome.not_run))
    return "\n\n".join(blocks) + "\n"


def _about(outcome: Outcome) -> str:
    facts, results = outcome.facts, outcome.results
    seeds = "one seed" if outcome.seeds == 1 else f"{outcome.seeds} seeds, mean ± standard deviation"
    where = f"{facts['date']}, {facts['processor']}, {facts['cores']} cores" if facts else ""
    told = [f"`{outcome.command}`", seeds, where]
    for what in ("preset", "backbone"):
        values = sorted({str(getattr(result, what)) for result in results})
        told.append(f"{what}: {', '.join(values)}" if values else "")
    told += sorted({result.views for result in results})
    line = "; ".join(text for text in told if text) + ". Per cent of the unlabelled images."
    return line if outcome.scale == "full" else f"{line}\n\n{SMALL}"


def _table(outcome: Outcome, name: str, split: str = "unlabelled") -> str:
    experiment = outcome.experiment
    column = name if split == "unlabelled" else f"{name}, {split}"
    measures = experiment.measures
    head = [
        "",
        *(f"paper {NAMES[measure]}" for measure in measures),
        *(f"here {NAMES[measure]}" for measure in measures),
    ]
    head += [f"difference {NAMES[measure]}" for measure in measures]
    head += ["true K", "paper K", "here K"] if experiment.estimated_k else []
    rows = []
    for row in experiment.rows:
        printed = experiment.printed(row, column)
        here = {measure: outcome.here(row, name, measure, split) for measure in measures}
        done = outcome.seeds_of(row, name)
        title = row if done in (0, outcome.seeds) else f"{row} ({done} of {outcome.seeds} seeds)"
        cells = [_shown(printed.get(measure)) for measure in measures]
        cells += [_shown(here[measure]) for measure in measures]
        cells += [_difference(printed.get(measure), here[measure]) for measure in measures]
        rows.append([title, *cells, *(_numbers_of_classes(outcome, row, name) if experiment.estimated_k else [])])
    if outcome.scale == "full" and split == "unlabelled":
        for row in experiment.others:
            printed = experiment.printed(row, column)
            rows.append(
                [row, *(_shown(printed.get(measure)) for measure in measures), *["–"] * (len(head) - 1 - len(measures))]
            )
    return markdown_table(head, rows)


def _numbers_of_classes(outcome: Outcome, row: str, name: str) -> list[str]:
    """Table 10: the true K, the paper's estimate, and the K that the row was trained with."""
    printed = table(10).rows["estimated"].get(name, {}).get("k")
    here = outcome.here(row, name, "k")
    true = outcome.true_k.get(name)
    return ["–" if value is None else f"{value:g}" for value in (true, printed and printed.mean, here and here.mean)]


def _choice(outcome: Outcome, name: str) -> str:
    row = outcome.chosen(name)
    if row is None:
        return "No row can be selected: there is no test image of a known class."
    told = ", ".join(f"{each}: {_shown(outcome.here(each, name, 'named', 'test'))}" for each in outcome.experiment.rows)
    return f"Selected by accuracy on test images of known classes only ({told}): **{row}**."


def _average(outcome: Outcome) -> list[str]:
    """The mean over the data sets, if the paper reports it."""
    experiment = outcome.experiment
    printed = {row: experiment.printed(row, "average").get("all") for row in experiment.rows}
    ran = [row for row in experiment.rows if any(result.row == row for result in outcome.results)]
    if not any(printed.values()) or any(
        outcome.here(row, name, "all") is None for row in ran for name in experiment.sets
    ):
        return []
    rows = []
    for row in ran:
        parts = [outcome.here(row, name, "all") for name in experiment.sets]
        here = Number(statistics.mean(part.mean for part in parts if part is not None))
        rows.append([row, _shown(printed[row]), _shown(here), _difference(printed[row], here)])
    return [
        f"## Average of {', '.join(experiment.sets)}",
        markdown_table(["", "paper All", "here All", "difference All"], rows),
    ]


def _shown(number: Number | None) -> str:
    if number is None:
        return "–"
    return f"{number.mean:.1f}" if number.deviation is None else f"{number.mean:.1f} ± {number.deviation:.1f}"


def _difference(printed: Number | None, here: Number | None) -> str:
    return "–" if printed is None or here is None else f"{here.mean - printed.mean:+.1f}"
