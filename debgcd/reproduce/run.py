"""Plan and run an experiment, and write its table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.manifest import Manifest
from debgcd.datasets import resolve
from debgcd.datasets.facts import table
from debgcd.demo import digits
from debgcd.errors import DataError, DebgcdError, UsageError
from debgcd.methods import METHODS
from debgcd.report.plots import draw, write_figure
from debgcd.reproduce.bench.networks import trunk_type
from debgcd.reproduce.counts import k_by_brent, read_first
from debgcd.reproduce.experiments import DIGITS, Experiment, Small, classes_of, part, title_of
from debgcd.reproduce.grid import Cell, ImageList, cell, devices, finish
from debgcd.reproduce.table import Outcome, page, result
from debgcd.run.directory import open_run
from debgcd.system import distributed
from debgcd.system.files import lock, write_json, write_text
from debgcd.system.machine import facts
from debgcd.system.progress import say

Scale = Literal["full", "small"]


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    experiment: Experiment
    roots: tuple[Path, ...]
    out: Path
    cache: Path
    command: str = ""  # as typed, for the page
    scale: Scale = "full"
    sets: tuple[str, ...] = ()  # empty: the experiment's own
    seeds: int = 3
    preset: str = "paper"
    settings: tuple[dict[str, Any], ...] = ()  # override the configuration of every run

    @property
    def chosen_sets(self) -> tuple[str, ...]:
        """The names of the data sets, without duplicates."""
        if self.sets:
            by_name = {DIGITS: DIGITS} if self.scale == "small" else {}
            return tuple(dict.fromkeys(by_name.get(name) or resolve(name) for name in self.sets))
        if self.scale == "full":
            return self.experiment.sets
        return tuple(name for name in self.experiment.sets if name in Small.sets) or Small.sets


@dataclass(frozen=True)
class Plan:
    """Every run of a grid, the true K of each data set, and one sentence per missing data set."""

    cells: tuple[Cell, ...]
    true_k: dict[str, int]
    missing: tuple[str, ...]


def plan(wish: Wish) -> Plan:
    """Read the data sets and list the runs; writes nothing."""
    # first, so that a wrong setting is reported before a large data set is read
    of_sets = {name: rows(wish, name) for name in wish.chosen_sets}
    cells, true_k, missing = [], {}, []
    for name in wish.chosen_sets:
        try:
            manifest = _manifest_of(name, wish)
        except DataError as error:
            missing.append(f"{title_of(name)}: {error}")
            continue
        images = ImageList.of(name, manifest, wish.out)
        true_k[name] = classes_of(manifest)
        k = _estimated(wish, name) if wish.experiment.estimated_k else classes_of(manifest)
        for row, config in of_sets[name].items():
            own = "k" in wish.experiment.rows[row] or METHODS[config.method].about.finds_k
            chosen = config if own else replace(config, k=k)
            cells += [cell(row, seed, images, chosen, wish.out) for seed in range(wish.seeds)]
    return Plan(tuple(cells), true_k, tuple(missing))


def reproduce(wish: Wish, plan: Plan) -> Outcome:
    """Run the grid to its end and write the comparison to OUT/NAME.json and OUT/NAME.md."""
    wish.out.mkdir(parents=True, exist_ok=True)
    with lock(wish.out, "reproducing a table") if distributed.rank() == 0 else nullcontext():
        failed = finish(plan.cells, devices())
        results, not_run = [], list(plan.missing)
        for each in plan.cells:
            try:
                if each.finished:
                    results.append(result(each))
                else:
                    not_run.append(f"{each.name}: {failed.get(each.folder, 'not finished')}")
            except DataError as error:
                not_run.append(f"{each.name}: {error}")
        outcome = Outcome(
            experiment=wish.experiment,
            command=wish.command,
            scale=wish.scale,
            sets=wish.chosen_sets,
            true_k=plan.true_k,
            seeds=wish.seeds,
            results=tuple(results),
            not_run=tuple(not_run),
            facts={**facts(), "trunk": trunk_type()},
            figures=_figures(wish, plan.cells),
            estimates=_estimates(wish, plan.cells),
        )
        if distributed.rank() == 0:
            write_json(wish.out / f"{wish.experiment.name}.json", outcome.to_json())
            write_text(wish.out / f"{wish.experiment.name}.md", page(outcome))
    return outcome


def _estimates(wish: Wish, cells: Sequence[Cell]) -> dict[str, int]:
    """Table 10 beside Table 11: the estimate of K for each data set that was found."""
    if not wish.experiment.estimated_k:
        return {}
    first = {each.set: each for each in reversed(cells)}
    return {name: k_by_brent(each.images, each.config) for name, each in first.items()}


def _figures(wish: Wish, cells: Sequence[Cell]) -> tuple[tuple[str, str], ...]:
    """Draw the experiment's figures from its finished runs of seed 0; one that is newer than its runs is kept."""
    found = []
    for name in wish.chosen_sets:
        for figure, rows in wish.experiment.figures.items():
            chosen = [each for row in rows for each in cells if (each.row, each.set, each.seed) == (row, name, 0)]
            runs = [open_run(each.folder) for each in chosen if each.finished]
            if not runs:
                continue
            title = f"{title_of(name)}: {figure} ({', '.join(rows)})"
            place = wish.out / f"{wish.experiment.name}-figures" / f"{name}-{figure}.png"
            try:
                if not place.exists() or place.stat().st_mtime < max(run.predictions.stat().st_mtime for run in runs):
                    write_figure(draw(figure, runs, wish.cache), place)
                found.append((title, f"{place.parent.name}/{place.name}"))
            except DebgcdError as error:
                found.append((title, f"not drawn: {error}"))
    return tuple(found)


def _manifest_of(name: str, wish: Wish) -> Manifest:
    """The images of a data set, or the part of them that small scale takes."""
    if name == DIGITS:
        return digits(wish.cache / DIGITS)
    found = read_first(name, wish.roots, wish.cache).manifest
    return found if wish.scale == "full" else part(found, Small.classes, Small.images)


def rows(wish: Wish, name: str) -> dict[str, Config]:
    """The configuration of each row on a data set, composed for the row's method; K is set later."""
    fell_back = []
    found = {}
    for row, values in wish.experiment.rows.items():
        method = values.get("method", "debgcd")
        if wish.scale == "small" and METHODS[method].about.needs_vit:
            say(f"{name}: no row {row} at small scale, because {method} needs a ViT")
            continue
        if "k" in values and _estimated(wish, name) is None:
            say(f"{name}: no row {row}, because K is estimated here for all rows")
            continue
        if wish.scale == "full":
            config = configuration.compose(wish.preset, name, wish.experiment.backbone, method=method)
            fell_back += [method] if config.preset != wish.preset else []
        else:
            config = configuration.compose("small", method=method)
        config = replace(config, run=replace(config.run, cache=str(wish.cache.absolute())))
        changes = []
        if wish.scale == "small" and wish.experiment.paper_detector:
            paper = configuration.to_dict(configuration.compose("paper"))
            values_of_paper = {"answer": paper["answer"], "detector": paper["detector"]}
            changes.append((configuration.fitted(config, values_of_paper, "preset paper"), "preset paper"))
        changes += [(configuration.fitted(config, settings, "--set"), "--set") for settings in wish.settings]
        changes.append((values, f"{wish.experiment.name}, row {row}"))
        if wish.scale == "small" and wish.experiment.estimated_k:  # one trunk for all rows: they share an estimate
            changes.append(({"backbone": {"tuned_blocks": 2}}, row))
        found[row] = configuration.override_all(config, changes)
    if fell_back:
        methods = ", ".join(dict.fromkeys(fell_back))
        say(f"{name}: preset paper for {methods}, because there are no {wish.preset} values for it")
    _require_difference(wish, found)
    return found


def _require_difference(wish: Wish, found: dict[str, Config]) -> None:
    """An error that names two rows of which one would train exactly as the other, and why."""
    seen: dict[str, str] = {}
    for row, config in found.items():
        idle = config.options.idle()
        values = configuration.without(configuration.to_dict(config), set(idle))
        if "k" in wish.experiment.rows[row]:
            values["k"] = "estimated here"
        other = seen.setdefault(repr(values), row)
        if other != row:
            changed = configuration.leaves({**wish.experiment.rows[row], **wish.experiment.rows[other]})
            why = [f"{reason}, so {key} changes nothing" for key, reason in idle.items() if _touches(key, changed)]
            raise UsageError(
                f"{wish.experiment.name}: rows {other} and {row} would be the same run"
                f"{': ' + '; '.join(why) if why else ''}; omit the --set that makes them so"
            )


def _touches(key: str, changed: Iterable[str]) -> bool:
    """Whether one of the changed keys is this key or lies in this section."""
    return any(each == key or each.startswith(f"{key}.") for each in changed)


def _estimated(wish: Wish, name: str) -> int | None:
    """The paper's estimate of K, at full scale; None if it is to be estimated here."""
    printed = table(10).rows["estimated"].get(name) if wish.scale == "full" else None
    return None if printed is None else int(printed["k"].mean)
