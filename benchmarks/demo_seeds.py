"""The demo with three seeds: writes benchmarks/results/demo.json, docs/demo.png (seed 0) and the table in README.md.

.venv/bin/python benchmarks/demo_seeds.py [--work DIR]      about ten minutes on two cores
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shutil
import statistics
from pathlib import Path

from grid import write_between

from debgcd.demo import demo
from debgcd.system.machine import cores, processor

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "demo-seeds", help="folder for the runs")
    work = parser.parse_args().work
    results = {str(seed): demo(work / f"seed-{seed}", seed) for seed in SEEDS}
    facts = {
        "command": "benchmarks/demo_seeds.py",
        "date": datetime.date.today().isoformat(),
        "machine": f"{processor()}, {cores()} cores, no GPU",
        "python": platform.python_version(),
        "seeds": results,
    }
    (ROOT / "benchmarks" / "results" / "demo.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    shutil.copy(work / "seed-0" / "categories.png", ROOT / "docs" / "demo.png")
    write_between(ROOT / "README.md", "benchmarks/demo_seeds.py", _table(facts))
    print(_table(facts))


def _table(facts: dict) -> str:
    """Seed 0 in full, and mean ± standard deviation of All over the seeds."""
    names = {"kmeans": "k-means", "simgcd": "SimGCD", "debgcd": "DebGCD"}
    lines = ["| | All | Old | New | AUROC of novelty | seconds | All, three seeds |", "|---|---|---|---|---|---|---|"]
    for i, entry in enumerate(facts["seeds"]["0"]):
        every = [100 * facts["seeds"][str(seed)][i]["all"] for seed in SEEDS]
        auroc = "–" if entry["auroc"] is None else f"{100 * entry['auroc']:.1f}"
        accuracy = " | ".join(f"{100 * entry[part]:.1f}" for part in ("all", "old", "new"))
        spread = f"{statistics.mean(every):.1f} ± {statistics.stdev(every):.1f}"
        lines.append(f"| {names[entry['method']]} | {accuracy} | {auroc} | {entry['seconds']:.0f} | {spread} |")
    return "\n".join(lines) + (
        f"\n\nPer cent of the unlabelled digits in the right category, seed 0, and over seeds 0, 1, 2; backbone lite0, "
        f"views: bank 8, decode fast.\nMeasured {facts['date']} on {facts['machine']} by `{facts['command']}`; the numbers are in "
        "[benchmarks/results/demo.json](benchmarks/results/demo.json)."
    )


if __name__ == "__main__":
    main()
