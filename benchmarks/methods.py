"""The small table: every method on few images without a GPU, side by side; written into docs/methods.md.

.venv/bin/python benchmarks/methods.py --root DIR [--root DIR ...] [--sets A,B] [--methods A,B] [--seeds 3] [--jobs N]

DIR holds CIFAR-10, Oxford-IIIT Pet and CUB-200-2011 (`debgcd fetch` gets them); the digits come with scikit-learn. Every method
takes the preset small with two tuned blocks and the same number of categories; what its file in debgcd/config/overlays/methods
changes for small is on the page. Resumable: one process per run, and each result is in benchmarks/results/methods.json as soon as it is
there, in place of one with older settings; the first seed of all before the second. With the --work of
benchmarks/quality/run.py it takes over the runs that are finished there. Every run has one thread, so that neither its sums nor
the seconds of its processor depend on how many run side by side. PromptCAL needs a ViT and is not measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # for grid.py and measured.py

from grid import images_of, write_between  # noqa: E402
from measured import cost_file  # noqa: E402

from debgcd import config as configuration  # noqa: E402
from debgcd.config.schema import Config  # noqa: E402
from debgcd.methods import METHODS, require_method  # noqa: E402
from debgcd.reproduce.experiments import classes_of  # noqa: E402
from debgcd.reproduce.grid import Cell, ImageList, cell, finish, settings_digest  # noqa: E402
from debgcd.reproduce.table import result  # noqa: E402
from debgcd.system.files import read_json, write_json  # noqa: E402
from debgcd.system.machine import cache_folder, cores, facts  # noqa: E402
from debgcd.system.text_table import markdown_table  # noqa: E402
from debgcd.train.plan import first_stage  # noqa: E402

ROOT = HERE.parent
SETS = {"digits": "digits", "cifar10": "CIFAR-10", "pets": "Pets", "cub": "CUB-50"}
CLASSES, IMAGES = 50, 2000
REFERENCE = "DebGCD"
EAGC = {"eagc_align": 0.7, "eagc_project": 0.5}  # as published


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", default=[], metavar="DIR", help="folder of the sets")
    parser.add_argument("--sets", default=",".join(SETS), metavar="A,B")
    parser.add_argument(
        "--methods", metavar="A,B", help="names as for debgcd train (default: all that need no ViT and find categories)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument(
        "--jobs", type=int, default=cores(), metavar="N", help="parallel runs (default: one per core, %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="instead of each method's own: for a trial of the command"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "methods", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "methods.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "methods.md")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    wanted = options.methods.split(",") if options.methods else [m for m in METHODS if measured(m)]
    for name in wanted:
        require_method(name)
    done: list[dict[str, Any]] = read_json(options.results)["runs"] if options.results.exists() else []
    sets = {}
    for name in options.sets.split(","):
        found = images_of(name, options.root, options.work, cache_folder(options.cache), CLASSES, IMAGES)
        sets[name] = (ImageList.of(name, found, options.work), classes_of(found))
    cells = [
        cell(row, seed, images, config, options.work)
        for seed in range(options.seeds)
        for images, k in sets.values()
        for row, config in rows(wanted, k, options.cache, options.steps).items()
    ]
    os.environ["OMP_NUM_THREADS"] = "1"
    there = {run["run"] for run in done}
    missing = [each for each in cells if key(each) not in there]

    def keep(each: Cell) -> None:
        done[:] = [run for run in done if (run["row"], run["set"], run["seed"]) != (each.row, each.set, each.seed)]
        done.append({"run": key(each), **told(each)})
        write_json(options.results, {**facts(), "runs": done})
        write_page(options.page, done)

    for each in missing:
        if each.finished:
            keep(each)
    write_page(options.page, done)
    failed = finish(missing, [None] * options.jobs, [sys.executable, str(HERE / "measured.py")], on_end=keep)
    if failed:
        sys.exit("\n".join(f"{folder}: {reason}" for folder, reason in failed.items()))


def measured(name: str) -> bool:
    """Whether the table has a method: not one that needs a ViT, nor the detector, which finds no categories of its own."""
    return not METHODS[name].about.needs_vit and name != "detector"


def rows(wanted: list[str], k: int, cache: str | None, steps: int | None) -> dict[str, Config]:
    """The configuration of each row of the table, without its seed."""
    found = {}
    for name in wanted:
        config = configuration.compose("small", method=name)
        values: dict[str, Any] = {"backbone": {"tuned_blocks": 2}, "run": {"cache": cache}}
        values |= {} if METHODS[name].about.finds_k else {"k": k}
        values |= {"schedule": {"steps": steps}} if steps is not None and METHODS[name].trains else {}
        config = configuration.override(config, values, where=name)
        title = METHODS[name].about.title
        found[title] = config
        if name in ("debgcd", "simgcd"):
            found[f"{title} + EAGC"] = configuration.override(config, {"extras": EAGC}, where="EAGC")
    return found


def key(each: Cell) -> str:
    """The run by its values, its first stage's included, and not by where its images lie: any machine goes on with the same list."""
    first = METHODS[each.config.method].first
    stages = [] if first is None else [settings_digest(first_stage(each.config, first))]
    digest = settings_digest(each.config, each.images.count, *stages)
    return f"{each.set}/{each.config.method}-{digest}/seed-{each.seed}"


def told(each: Cell) -> dict[str, Any]:
    """Which run it was, its scores, and what it took from its reading to its evaluation: see measured.py."""
    found, cost = result(each), cost_file(each.folder)
    facts_of_run = {"row": found.row, "set": found.set, "seed": found.seed, "k": found.k, "views": found.views}
    took = read_json(cost) if cost.exists() else {"seconds": None, "memory": None, "machine": None}
    return {**facts_of_run, **found.unlabelled, **took}


def write_page(page: Path, done: list[dict[str, Any]]) -> None:
    """Replace the tables in the page: All, the best first; then Old, New and AUROC; then what a run costs.

    The order is that of the difference from DebGCD over the same sets and seeds, since rows may have other ones. Times are
    multiples of DebGCD's on the same processor: seconds of two processors cannot be compared.
    """
    sets = [name for name in SETS if any(run["set"] == name for run in done)]
    found = {row: [run for run in done if run["row"] == row] for row in dict.fromkeys(run["row"] for run in done)}
    best = {(run["set"], run["seed"]): run["all"] for run in done if run["row"] == REFERENCE}
    machines = sorted({run["machine"] for run in done if run["seconds"] is not None})

    def of(row: str, name: str, what: str) -> list[float]:
        return [run[what] for run in found[row] if run["set"] == name and run[what] is not None]

    def seconds(row: str, name: str, machine: str) -> float | None:
        """CPU seconds of a run on this processor; of the fastest seed, since other work on the machine only adds."""
        runs = [run for run in found.get(row, []) if run["set"] == name and run["machine"] == machine]
        return min((run["seconds"] for run in runs if run["seconds"] is not None), default=None)

    def times(row: str, name: str) -> float | None:
        """How many times as long as DebGCD it takes, the mean over the processors that timed both."""
        both = [(seconds(row, name, machine), seconds(REFERENCE, name, machine)) for machine in machines]
        ratios = [own / base for own, base in both if own is not None and base is not None]
        return statistics.mean(ratios) if ratios else None

    def over_sets(values: list[list[float]]) -> float | None:
        """The mean over the sets of the means over the seeds; None where a set is missing."""
        return statistics.mean(map(statistics.mean, values)) if values and all(values) else None

    def ahead(row: str) -> float | None:
        """How far the row is ahead of DebGCD, over the sets and seeds that both have."""
        runs = [run for run in found[row] if (run["set"], run["seed"]) in best]
        return over_sets(
            [[run["all"] - best[name, run["seed"]] for run in runs if run["set"] == name] for name in sets]
        )

    bases = [[machine, *(number(seconds(REFERENCE, name, machine), 0) for name in sets)] for machine in machines]
    place = {row: (ahead(row), over_sets([of(row, name, "all") for name in sets])) for row in found}
    accuracy, kinds, costs = [], [], []
    for row in sorted(found, key=lambda row: [-float("-inf" if each is None else each) for each in place[row]]):
        difference, mean = place[row]
        seeds = "–".join(dict.fromkeys(str(count) for count in sorted(len(of(row, name, "all")) for name in sets)))
        accuracy.append([row, *(shown(of(row, name, "all")) for name in sets), number(mean), signed(difference), seeds])
        both = [shown(of(row, name, what)) for name in sets for what in ("old", "new")]
        kinds.append([row, *both, number(over_sets([of(row, name, "auroc") for name in sets]))])
        memory = [run["memory"] for run in found[row] if run["memory"] is not None]
        costs.append([row, *(number(times(row, name), 2) for name in sets), number(max(memory, default=None))])
    for method in METHODS.values():
        if method.about.needs_vit:
            accuracy.append([f"{method.about.title}: unmeasured, needs a ViT", *["–"] * (len(sets) + 3)])
    titles = [SETS[name] for name in sets]
    parts = [
        markdown_table(["All", *titles, "mean", f"minus {REFERENCE}", "seeds"], accuracy),
        "Per cent of the unlabelled images in the right category, mean ± standard deviation over the seeds; backbone lite0, preset "
        f"small, two tuned blocks. minus {REFERENCE}: over the same seeds of each set. Last run {facts()['date']}.",
        markdown_table(
            ["Old, New", *(f"{title} {what}" for title in titles for what in ("Old", "New")), "AUROC"], kinds
        ),
        "AUROC: of the novelty score, where a method has one; the mean over the sets.",
        markdown_table([f"Time / {REFERENCE}'s", *titles, "GB"], costs),
        f"CPU time of a whole run on one core without making its view bank, as a multiple of {REFERENCE}'s on the same processor. GB: "
        f"the largest memory of any run. Seconds of {REFERENCE}:",
        markdown_table(["processor", *titles], bases),
    ]
    write_between(page, "benchmarks/methods.py", "\n\n".join(parts) if done else "Not measured yet.")


def number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")


def shown(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
