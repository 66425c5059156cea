"""How good the methods are with few images and a short schedule: the runs of grid.yaml, then docs/results.md and a table of README.md from them.

.venv/bin/python benchmarks/quality/run.py --root DIR [--root DIR ...] [--jobs 2] [PART ...]

DIR holds CIFAR-10, Oxford-IIIT Pet and CUB-200-2011 in their original layouts (`debgcd fetch` gets them); the digits come with
scikit-learn. PART is a name in grid.yaml; without one, all. Resumable. Results are kept as
benchmarks/quality/results/PART.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for grid.py

from grid import images_of, write_between  # noqa: E402
from page import answers, measured, write_page  # noqa: E402

from debgcd import config as configuration  # noqa: E402
from debgcd.reproduce.bench.networks import trunk_type  # noqa: E402
from debgcd.reproduce.experiments import classes_of  # noqa: E402
from debgcd.reproduce.grid import Cell, ImageList, cell, devices, finish  # noqa: E402
from debgcd.reproduce.table import result  # noqa: E402
from debgcd.system.files import read_json  # noqa: E402
from debgcd.system.machine import cache_folder, cores, facts  # noqa: E402

ROOT = HERE.parent.parent
CLASSES, IMAGES = 50, 2000
ANSWERS = {"frozen": "start", "trained": "trained"}  # column -> classifier in evaluation.json


def main() -> None:
    grid = yaml.safe_load((HERE / "grid.yaml").read_text("utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(grid))
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "quality", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="parallel runs; they share the cores")
    options = parser.parse_args()
    for name in set(options.parts) - set(grid):
        parser.error(f"there is no part {name!r}; there are {', '.join(grid)}")
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    if options.jobs > 1:
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores() // options.jobs))
    sets: dict[str, ImageList] = {}
    known: dict[str, int] = {}
    for name in options.parts or grid:
        cells = []
        for set_name in grid[name]["sets"]:
            if set_name not in sets:
                found = images_of(set_name, options.root, options.work, cache_folder(options.cache), CLASSES, IMAGES)
                known[set_name], sets[set_name] = classes_of(found), ImageList.of(set_name, found, options.work)
            cells += cells_of(grid[name], sets[set_name], known[set_name], options.work, options.cache)
        failed = finish(cells, devices() * options.jobs)
        if failed:
            sys.exit("\n".join(f"{folder}: {reason}" for folder, reason in failed.items()))
        written = {
            **facts(),
            "trunk": trunk_type(),
            "command": f"benchmarks/quality/run.py {name}",
            "jobs": options.jobs,
            "runs": [told(each) for each in cells],
        }
        place = HERE / "results" / f"{name}.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    write_page(HERE / "results", ROOT / "docs" / "results.md")
    kept = HERE / "results" / "answers.json"
    if kept.exists():
        found = json.loads(kept.read_text("utf-8"))
        line = f"Measured {measured([found])} by `benchmarks/quality/run.py answers`, one seed."
        write_between(ROOT / "README.md", "benchmarks/quality/run.py", f"{answers(found['runs'])}\n\n{line}")


def cells_of(grid: dict[str, Any], images: ImageList, k: int, work: Path, cache: str | None) -> list[Cell]:
    fixed = {"k": k, "backbone": {"tuned_blocks": 2}, "run": {"cache": cache}}
    cells = []
    for row, values in grid["rows"].items():
        changes = dict(values)
        method = str(changes.pop("method", "debgcd"))
        config = configuration.override(configuration.compose("small", method=method), fixed, where=images.name)
        config = configuration.override(config, changes, where=row)
        seeds = grid["seeds"] if isinstance(grid["seeds"], int) else grid["seeds"][row]
        cells += [cell(row, seed, images, config, work) for seed in range(seeds)]
    return cells


def told(each: Cell) -> dict[str, Any]:
    """The run's scores, and from metrics.jsonl how the curriculum opened and how long the steps took."""
    found = result(each)
    lines = [json.loads(line) for line in (each.folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if "loss" in line]
    seconds = sum(each.config.schedule.batch / line["images_per_second"] for line in steps)
    used = [
        [line["step"], line["used_old"], line["used_new"]]
        for line in steps[:: max(1, len(steps) // 20)]
        if "used_old" in line
    ]
    right = [[line["step"], line["hard_labels"]] for line in lines if "hard_labels" in line]
    scores = {
        "row": found.row,
        "set": found.set,
        "seed": found.seed,
        "views": found.views,
        "images": found.images,
        "k_trained": found.k_trained,
        "k": found.k,
    }
    start = next(
        (line["evaluation"]["unlabelled"]["gcd"]["accuracy"]["all"] for line in lines if line["step"] == 0), None
    )
    scores["start"] = None if start is None else 100 * start
    ended = read_json(each.folder / "evaluation.json")["unlabelled"]
    # what stands beside a settled answer: the frozen answer, and the classifier that was trained
    scores |= {name: 100 * ended[key]["accuracy"]["all"] for name, key in ANSWERS.items() if key in ended}
    return {**scores, **found.unlabelled, "seconds": round(seconds, 1), "used": used, "right": right}


if __name__ == "__main__":
    main()
