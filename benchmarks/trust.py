"""Does the trust score rank categories by their real purity? Measured on finished runs; writes docs/trust.json and docs/report.md.

.venv/bin/python benchmarks/trust.py --root DIR [--root DIR ...] [--seeds 3] [SET ...]

DIR holds CIFAR-10, Oxford-IIIT Pet and CUB-200-2011 in their original layouts; the digits come with scikit-learn. Each SET (default:
all four) is trained with the preset `small` and its true K on at most 2,000 images of at most 50 classes. Resumable; runs that
were measured before stay in the table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from grid import finished_run, images_of, settings, write_between
from scipy.stats import spearmanr

from debgcd import config as configuration
from debgcd.machine import cache_folder, facts
from debgcd.report.look import Look, look
from debgcd.report.trust import PARTS
from debgcd.reproduce.scale import classes_of

ROOT = Path(__file__).resolve().parent.parent
CLASSES, IMAGES = 50, 2000
SETS = ("digits", "cifar10", "pets", "cub")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("--root", type=Path, action="append", default=[], metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "trust", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    options = parser.parse_args()
    cache = cache_folder(options.cache)
    rows = []
    for name in options.sets:
        manifest = images_of(name, options.root, options.work, cache, CLASSES, IMAGES)
        for seed in range(options.seeds):
            fixed = {"k": classes_of(manifest), "backbone": {"tuned_blocks": 2}, "run": {"cache": options.cache}}
            config = settings(configuration.compose("small"), seed, fixed)
            seen = look(finished_run(manifest, config, options.work / name / f"seed-{seed}"), cache)
            rows.append({"set": name, "seed": seed, **measured(seen)})
    place = ROOT / "docs" / "trust.json"
    before = json.loads(place.read_text("utf-8"))["runs"] if place.exists() else []
    done = {(row["set"], row["seed"]) for row in rows}
    rows += [row for row in before if (row["set"], row["seed"]) not in done]
    rows.sort(key=lambda row: (SETS.index(row["set"]), row["seed"]))
    written = {**facts(), "command": "benchmarks/trust.py", "runs": rows}
    place.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
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
    lines += [
        "",
        f"Spearman's rank correlation with purity; preset `small`, true K. Measured {written['date']} on {written['processor']}, "
        f"{written['cores']} cores by `{written['command']}`; per category in [trust.json](trust.json).",
    ]
    return "\n".join(lines)


def correlation(row: dict[str, Any], score: str, only_new: bool = False) -> float:
    """Of one run, over its categories."""
    kept = [i for i, known in enumerate(row["known"]) if not (known and only_new)]
    return float(spearmanr([row[score][i] for i in kept], [row["purity"][i] for i in kept]).statistic)


if __name__ == "__main__":
    main()
