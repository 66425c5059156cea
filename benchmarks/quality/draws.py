"""Does training harm small sets? 60 draws of 100–400 images from four data sets, each trained once from its own start.

.venv/bin/python benchmarks/quality/draws.py --root DIR [--root DIR ...] [--jobs 2]

DIR as for run.py. A draw has 2–10 known classes with 5–30 labels each, and 2–10 new ones; all of it is a function of the draw's
number. The start is what the run's classifier says before its first step. Resumable; results/draws.json holds the runs, and
docs/results.md their table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for grid.py

from grid import images_of  # noqa: E402
from page import write_page  # noqa: E402

from debgcd import config as configuration  # noqa: E402
from debgcd.data.manifest import Manifest  # noqa: E402
from debgcd.reproduce.bench.networks import trunk_type  # noqa: E402
from debgcd.reproduce.grid import ImageList, cell, devices, finish  # noqa: E402
from debgcd.run.directory import Run, open_run  # noqa: E402
from debgcd.run.model_folder import read_novel  # noqa: E402
from debgcd.run.predictions import read_predictions  # noqa: E402
from debgcd.system.machine import cache_folder, cores, facts  # noqa: E402

ROOT = HERE.parent.parent
SETS = ("digits", "cifar10", "pets", "cub")
DRAWS = 15  # of each set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "draws", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--draws", type=int, default=DRAWS, metavar="N", help=f"of each set (default {DRAWS})")
    parser.add_argument("--frozen", action="store_true", help="stop at the frozen answer; results/draws_frozen.json")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="parallel runs; they share the cores")
    options = parser.parse_args()
    if options.jobs > 1:
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores() // options.jobs))
    cells = []
    for name in SETS:
        whole = images_of(name, options.root, options.work, cache_folder(options.cache), 10**6, 10**9)
        for number in range(options.draws):
            images, k = draw(whole, number)
            fixed: dict[str, Any] = {"k": k, "run": {"cache": options.cache}}
            if options.frozen:
                fixed["schedule"] = {"epochs": 0, "steps": None}
            config = configuration.override(configuration.compose("small"), fixed, where=name)
            listed = ImageList.of(f"{name}-{number}", images, options.work)
            cells.append(cell(f"draw {number}", 0, listed, config, options.work))
    failed = finish(cells, devices() * options.jobs)
    if failed:
        sys.exit("\n".join(f"{folder}: {reason}" for folder, reason in failed.items()))
    written = {
        **facts(),
        "trunk": trunk_type(),
        "command": f"benchmarks/quality/draws.py{' --frozen' * options.frozen}",
        "runs": [told(each.images.name, each.folder) for each in cells],
    }
    (HERE / "results" / f"draws{'_frozen' * options.frozen}.json").write_text(
        json.dumps(written, indent=1) + "\n", "utf-8"
    )
    write_page(HERE / "results", ROOT / "docs" / "results.md")


def draw(whole: Manifest, number: int) -> tuple[Manifest, int]:
    """A small set as a person has it, and its number of classes."""
    random = np.random.RandomState(number)
    names = [truth or label for truth, label in zip(whole.truths, whole.labels, strict=True)]
    classes = sorted({name for name in names if name is not None})
    known = random.randint(2, min(10, len(classes) // 2) + 1)
    new = random.randint(2, min(10, len(classes) - known) + 1)
    size = max(8, random.randint(100, 401) // (known + new))
    labels = min(random.randint(5, 31), (2 * size) // 3)
    rows, given = [], []
    training = set(whole.training_rows.tolist())
    for position, name in enumerate(random.permutation(classes)[: known + new]):
        here = [row for row in training if names[row] == name]
        for i, row in enumerate(random.permutation(sorted(here))[:size]):
            rows.append(int(row))
            given.append(str(name) if position < known and i < labels else None)
    truths = tuple(names[row] for row in rows)
    return replace(whole.select(rows), labels=tuple(given), truths=truths), known + new


def told(name: str, folder: Path) -> dict[str, Any]:
    """Accuracy before the first step and at the end, what the watch saw, and the errors of `looks_new`."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    start = next(
        (line["evaluation"]["unlabelled"] for line in lines if line["step"] == 0 and "evaluation" in line), None
    )
    end = json.loads((folder / "evaluation.json").read_text("utf-8"))
    accuracy, health = end["unlabelled"]["gcd"]["accuracy"], end["health"] or {"healthy": True, "kept_step": None}
    return {
        "set": name.rpartition("-")[0],
        "draw": int(name.rpartition("-")[2]),
        "k": end["k"],
        "images": end["unlabelled"]["gcd"]["images"],
        "start": accuracy if start is None else start["gcd"]["accuracy"],
        "end": accuracy,
        "auroc": end["unlabelled"]["auroc"],
        "healthy": health["healthy"],
        "kept_step": health["kept_step"],
        "errors": errors(open_run(folder)),
    }


def errors(run: Run) -> dict[str, list[float] | None]:
    """How many images of known classes look new, and how many new ones do not: what the run states, and what is true."""
    said, novel = read_predictions(run.predictions, ("path", "looks_new")), read_novel(run.model)
    truth = dict(zip(map(str, run.manifest.paths), run.manifest.truths, strict=True))
    known = np.array([truth[path] in run.manifest.classes for path in said["path"]])
    looks_new = np.array(said["looks_new"], dtype=bool)
    assert novel is not None
    stated = None if novel.error_known is None or novel.error_new is None else [novel.error_known, novel.error_new]
    return {"stated": stated, "real": [float(looks_new[known].mean()), float(1 - looks_new[~known].mean())]}


if __name__ == "__main__":
    main()
