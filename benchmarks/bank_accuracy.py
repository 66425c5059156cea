"""The cost of the view bank in accuracy: a bank of 8 views compared with fresh views, three paired seeds.

.venv/bin/python benchmarks/bank_accuracy.py pets=pets.csv cub=cub.csv      about half an hour on two cores

A CSV has the columns path, label, truth, as `debgcd check --benchmark pets --root DIR --manifest pets.csv` writes it. Of
each set, whole classes are used, up to 1500 images in total. The first set also runs with half of the draws fresh. Writes
benchmarks/results/bank_accuracy.json and a table in docs/performance.md. Resumable.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from grid import classes_in_turn, finished_run, mean_and_error, scores, settings, write_between

from debgcd import config as configuration
from debgcd.data.sources import read_manifest
from debgcd.reproduce.bench.networks import trunk_type
from debgcd.reproduce.experiments import classes_of
from debgcd.system.machine import facts

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2)
IMAGES, STEPS = 1500, 150
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "bank 8": {"views": {"bank": "on", "bank_views": 8}},
    "all fresh": {"views": {"bank": "off"}},
    "bank 8, half fresh": {"views": {"bank": "on", "bank_views": 8, "fresh": 0.5}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="NAME=CSV")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "bank-accuracy", help="folder for the runs")
    options = parser.parse_args()
    pairs = [text.split("=", 1) for text in options.sets]
    base = configuration.override(configuration.compose("small"), {"schedule": {"steps": STEPS}}, "bank_accuracy.py")
    sets = {name: classes_in_turn(read_manifest(Path(path)), IMAGES) for name, path in pairs}
    results = []
    for (setting, values), (name, manifest), seed in itertools.product(SETTINGS.items(), sets.items(), SEEDS):
        if "half" in setting and name != pairs[0][0]:
            continue  # one set is enough for the setting in between
        k = classes_of(manifest)
        folder = options.work / name / setting.replace(",", "").replace(" ", "-") / f"seed-{seed}"
        run = finished_run(manifest, settings(base, seed, {**values, "k": k}), folder)
        cell = {"set": name, "images": len(manifest), "k": k, "steps": STEPS, "views": setting, "seed": seed}
        results.append({**cell, **scores(run)})
    written = {**facts(), "trunk": trunk_type(), "command": "benchmarks/bank_accuracy.py", "runs": results}
    (ROOT / "benchmarks" / "results" / "bank_accuracy.json").write_text(json.dumps(written, indent=2) + "\n", "utf-8")
    machine = f"{written['processor']}, {written['cores']} cores, no GPU"
    said = f"DebGCD, preset small with {STEPS} steps, backbone lite0, seeds 0, 1, 2. Measured {written['date']} on {machine}."
    write_between(ROOT / "docs" / "performance.md", "benchmarks/bank_accuracy.py", f"{table(results)}\n\n{said}")
    print(table(results))


def table(results: list[dict]) -> str:
    """All, and the difference from all-fresh views with the same seed, in points: mean ± standard error."""
    lines = ["| set | views | All | difference from all fresh |", "|---|---|---|---|"]
    for name in dict.fromkeys(entry["set"] for entry in results):
        for setting in SETTINGS:
            mine, fresh = (
                [100 * entry["all"] for entry in results if entry["set"] == name and entry["views"] == views]
                for views in (setting, "all fresh")
            )
            if not mine:
                continue
            difference, error = mean_and_error(a - b for a, b in zip(mine, fresh, strict=True))
            beside = f"{difference:+.1f} ± {error:.1f}" if setting != "all fresh" else ""
            lines.append(f"| {name} | {setting} | {sum(mine) / len(mine):.1f} | {beside} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
