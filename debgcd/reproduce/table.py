"""The paper's numbers next to ours, as a Markdown page that is also readable in a terminal."""

from __future__ import annotations

import statistics

from debgcd.datasets import facts_of
from debgcd.datasets.paper import Number, table
from debgcd.reproduce.results import Outcome

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
            blocks += [f"## {facts_of(name).title}", _table(outcome, name)]
            if outcome.experiment.calibrate:
                blocks += [
                    f"### {facts_of(name).title}, test split",
                    _table(outcome, name, "test"),
                    _choice(outcome, name),
                ]
    blocks += _average(outcome)
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
    return markdown(head, rows)


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
        markdown(["", "paper All", "here All", "difference All"], rows),
    ]


def _shown(number: Number | None) -> str:
    if number is None:
        return "–"
    return f"{number.mean:.1f}" if number.deviation is None else f"{number.mean:.1f} ± {number.deviation:.1f}"


def _difference(printed: Number | None, here: Number | None) -> str:
    return "–" if printed is None or here is None else f"{here.mean - printed.mean:+.1f}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with aligned columns: the first flush left, the others flush right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in [head, *rows]
    ]
    rule = (
        "|" + "|".join("-" * (width + 2) if i == 0 else "-" * (width + 1) + ":" for i, width in enumerate(widths)) + "|"
    )
    return "\n".join([lines[0], rule, *lines[1:]])
