"""From an experiment's name to its table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from debgcd import config as configuration
from debgcd.bench.facts import facts
from debgcd.config import Config
from debgcd.data import paper
from debgcd.data.benchmarks import Benchmark, facts_of, read_benchmark, resolve
from debgcd.data.manifest import Manifest
from debgcd.errors import DataError
from debgcd.files import write_json, write_text
from debgcd.progress import say
from debgcd.reproduce.experiments import Experiment
from debgcd.reproduce.grid import Cell, cell, devices, finish, keep_manifest
from debgcd.reproduce.results import Outcome, result
from debgcd.reproduce.scale import Small, classes_of, part
from debgcd.reproduce.table import page

Scale = Literal["full", "small"]


@dataclass(frozen=True)
class Wish:
    """What was asked for."""

    experiment: Experiment
    roots: tuple[Path, ...]
    out: Path
    cache: Path
    scale: Scale = "full"
    sets: tuple[str, ...] = ()  # none: those of the experiment
    seeds: int = 3
    preset: str = "paper"
    settings: tuple[dict[str, Any], ...] = ()  # laid over the configuration of every run

    @property
    def chosen_sets(self) -> tuple[str, ...]:
        """By name, each once."""
        if self.sets:
            return tuple(dict.fromkeys(resolve(name) for name in self.sets))
        if self.scale == "full":
            return self.experiment.sets
        return tuple(name for name in self.experiment.sets if name in Small.sets) or Small.sets


def plan(wish: Wish) -> tuple[list[Cell], list[str]]:
    """Every run of the grid, and a sentence for each set that is not there."""
    rows = {name: _rows(wish, name) for name in wish.chosen_sets}  # a wrong setting is said before a large set is read
    cells, missing = [], []
    for name in wish.chosen_sets:
        try:
            found = _read(name, wish.roots, wish.cache)
        except DataError as error:
            missing.append(f"{facts_of(name).title}: {error}")
            continue
        manifest = found.manifest if wish.scale == "full" else part(found.manifest, Small.classes, Small.images)
        file = keep_manifest(manifest, wish.out / name / f"{found.split}.csv")
        k = _k(wish, name, manifest)
        for row, config in rows[name].items():
            chosen = config if "k" in wish.experiment.rows[row] else replace(config, k=k)
            cells += [cell(row, name, seed, file, chosen, wish.out) for seed in range(wish.seeds)]
    return cells, missing


def reproduce(wish: Wish, cells: Sequence[Cell], missing: Iterable[str]) -> Outcome:
    """Bring the runs of the grid to their end, and compare; written to OUT/NAME.json and OUT/NAME.md."""
    failed = finish(cells, devices())
    done = [each for each in cells if each.finished]
    outcome = Outcome(
        experiment=wish.experiment,
        scale=wish.scale,
        sets=wish.chosen_sets,
        seeds=wish.seeds,
        results=tuple(result(each) for each in done),
        not_run=(*missing, *(f"{each.name}: {failed[each.folder]}" for each in cells if each.folder in failed)),
        facts=facts(),
    )
    write_json(wish.out / f"{wish.experiment.name}.json", outcome.to_json())
    write_text(wish.out / f"{wish.experiment.name}.md", page(outcome))
    return outcome


def _read(name: str, roots: Sequence[Path], cache: Path) -> Benchmark:
    """The set from the first root that has it; where none has, the error of the last."""
    for root in roots[:-1]:
        try:
            return read_benchmark(name, root, cache)
        except DataError:
            continue
    return read_benchmark(name, roots[-1], cache)


def _rows(wish: Wish, name: str) -> dict[str, Config]:
    """The configuration of each row on a set; K comes later."""
    if wish.scale == "full":
        base = configuration.compose(wish.preset, benchmark=name, backbone=wish.experiment.backbone)
        if base.preset != wish.preset:
            say(f"{name}: preset {base.preset}, because nothing was {wish.preset} for it")
    else:
        base = configuration.compose("small")
    base = replace(base, run=replace(base.run, cache=str(wish.cache.absolute())))
    for values in wish.settings:
        base = configuration.override(base, values, where="--set")
    return {
        row: configuration.override(base, values, where=f"{wish.experiment.name}, row {row}")
        for row, values in wish.experiment.rows.items()
    }


def _k(wish: Wish, name: str, manifest: Manifest) -> int | None:
    """The number of classes, or what the paper estimated it to be; None: to be estimated."""
    if not wish.experiment.estimated_k:
        return classes_of(manifest)
    printed = paper.table(10).rows["estimated"].get(name) if wish.scale == "full" else None
    return None if printed is None else int(printed["k"].mean)
