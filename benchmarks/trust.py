"""Does the trust score rank categories by their real purity? Measured on finished runs; writes benchmarks/results/trust.json and docs/report.md.

.venv/bin/python benchmarks/trust.py --root DIR [--root DIR ...] [--seeds 3] [SET ...]

DIR holds CIFAR-10, Oxford-IIIT Pet and CUB-200-2011 in their original layouts; the digits come with scikit-learn. The runs are
those of DebGCD in the part `methods` of benchmarks/quality/run.py, with the same --work and --cache: what is finished there is
taken, what is missing is trained.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from grid import images_of, write_between
from scipy.stats import spearmanr

from debgcd import config as configuration
from debgcd.report.look import Look, look
from debgcd.report.trust import PARTS
from debgcd.reproduce.experiments import classes_of
from debgcd.reproduce.grid import Cell, ImageList, cell, devices, finish
from debgcd.system.machine import cache_folder, facts
from debgcd.train.train import finished_run

ROOT = Path(__file__).resolve().parent.parent
CLASSES, IMAGES = 50, 2000
SETS = ("digits", "cifar10", "pets", "cub")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("--root", type=Path, action="append", default=[], metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "quality", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    options = parser.parse_args()
    cache = cache_folder(options.cache)
    cells: list[Cell] = []
    for name in options.sets:
        found = images_of(name, options.root, options.work, cache, CLASSES, IMAGES)
        fixed = {"k": classes_of(found), "backbone": {"tuned_blocks": 2}, "run": {"cache": options.cache}}
        config = configuration.override(configuration.compose("small"), fixed, where=name)
        images = ImageList.of(name, found, options.work)
        cells += [cell("DebGCD", seed, images, config, options.work) for seed in range(options.seeds)]
    failed = finish(cells, devices())
    if failed:
        sys.exit("\n".join(f"{folder}: {reason}" for folder, reason in failed.items()))
    rows = [
        {"set": each.images.name, "seed": each.seed, **measured(look(finished_run(each.folder), cache))}
        for each in cells
    ]
    written = {**facts(), "command": "benchmarks/trust.py", "runs": rows}
    (ROOT / "benchmarks" / "results" / "trust.json").write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    write_between(ROOT / "docs" / "report.md", "benchmarks/trust.py", table(written))


def measured(seen: Look) -> dict[str, Any]:
    """Trust, its parts and the real purity of each category that has images."""
    free, known = seen.label < 0, len(seen.run.manifest.classes)
    truth = seen.run.manifest.truth_ids(seen.run.manifest.training_rows)
    used = np.flatnonzero(seen.size)
    purity = [float(np.bincount(truth[free & (seen.category == c)]).max() / seen.size[c]) for c in used]
    scores = {"trust": seen.trust, **seen.parts}
    return {
        "known": [bool(c < known) for c in used],
        "size": seen.size[used].tolist(),
        "purity": purity,
        **{name: score[used].round(4).tolist() for name, score in scores.items()},
    }


def table(written: dict[str, Any]) -> str:
    """Rank correlations with purity: of all categories and of the new ones, and of each part alone."""
    lines = [
        f"| | seed | categories | trust | trust, new ones only | {' | '.join(PARTS)} |",
        f"|---|---|---|---|---|{'---|' * len(PARTS)}",
    ]
    for row in written["runs"]:
        found = [correlation(row, "trust"), correlation(row, "trust", only_new=True)]
        found += [correlation(row, part) for part in PARTS]
        cells = " | ".join(f"{value:.2f}" for value in found)
        lines.append(f"| {row['set']} | {row['seed']} | {len(row['purity'])} | {cells} |")
    means = [
        f"{name} {np.mean([correlation(row, 'trust') for row in written['runs'] if row['set'] == name]):.2f}"
        for name in SETS
        if any(row["set"] == name for row in written["runs"])
    ]
    lines += [
        "",
        f"Mean of trust over the seeds: {', '.join(means)}. "
        f"Spearman's rank correlation with purity; preset `small`, true K. Measured {written['date']} on {written['processor']}, "
        f"{written['cores']} cores by `{written['command']}`; per category in [trust.json](../benchmarks/results/trust.json).",
    ]
    return "\n".join(lines)


def correlation(row: dict[str, Any], score: str, only_new: bool = False) -> float:
    """Of one run, over its categories."""
    kept = [i for i, known in enumerate(row["known"]) if not (known and only_new)]
    return float(spearmanr([row[score][i] for i in kept], [row["purity"][i] for i in kept]).statistic)


if __name__ == "__main__":
    main()
