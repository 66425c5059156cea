"""What `--quality` buys: accuracy and time of fast, balanced and best on 2 000 photographs of Oxford-IIIT Pet.

.venv/bin/python benchmarks/quality_levels.py --root DIR      about an hour on two cores that do nothing else

DIR holds Oxford-IIIT Pet (`debgcd fetch pets` gets it). Each level has a cache of its own, so that the time includes its view
bank, from the folder to the end; seed 0, K given. Writes
benchmarks/results/quality_levels.json and the table in docs/configuration.md. A level that is
finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from grid import images_of, scores, write_between

from debgcd import config as configuration
from debgcd.reproduce.bench.networks import trunk_type
from debgcd.reproduce.experiments import classes_of
from debgcd.system.machine import cache_folder, facts
from debgcd.system.progress import duration
from debgcd.train.train import train

ROOT = Path(__file__).resolve().parent.parent
LEVELS = ("fast", "balanced", "best")
CLASSES, IMAGES = 37, 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the set")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "quality-levels", help="folder for the runs")
    options = parser.parse_args()
    manifest = images_of("pets", options.root, options.work, cache_folder(None), CLASSES, IMAGES)
    results = []
    for level in LEVELS:
        place = options.work / f"{level}.json"
        if not place.exists():  # a run that was interrupted has no time: it begins again in a new --work
            config = configuration.compose("small", quality=level)
            fixed = {"k": classes_of(manifest), "run": {"cache": str(options.work / level / "cache")}}
            begun = time.monotonic()
            run = train(manifest, configuration.override(config, fixed, "levels"), options.work / level / "run")
            seconds, views = time.monotonic() - begun, run.config.views
            told = {"level": level, "size": views.size, "backbone": run.config.backbone.name}
            told |= {"steps": run.config.schedule.steps, "seconds": round(seconds), **scores(run)}
            place.write_text(json.dumps(told), "utf-8")
        results.append(json.loads(place.read_text("utf-8")))
    written = {**facts(), "trunk": trunk_type(), "command": "benchmarks/quality_levels.py", "levels": results}
    (ROOT / "benchmarks" / "results" / "quality_levels.json").write_text(json.dumps(written, indent=2) + "\n", "utf-8")
    told_by = f"Measured {written['date']}, {written['processor']}, {written['cores']} cores, by `{written['command']}`"
    told_by += (
        f"; {len(manifest.training_rows)} photographs of Oxford-IIIT Pet, seed 0, K given; the view bank included."
    )
    write_between(ROOT / "docs" / "configuration.md", "benchmarks/quality_levels.py", f"{table(results)}\n\n{told_by}")
    print(table(results))


def table(results: list[dict[str, Any]]) -> str:
    """One row per level."""
    lines = [
        "| `--quality` | pixels, backbone, steps | time | All | Old | New | AUROC |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in results:
        numbers = " | ".join(f"{100 * each[name]:.1f}" for name in ("all", "old", "new", "auroc"))
        what = f"{each['size']} px, {each['backbone']}, {each['steps']}"
        lines.append(f"| `{each['level']}` | {what} | {duration(each['seconds'])} | {numbers} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
