"""The cost of an unknown K: DebGCD on the demo's digits with known K, estimated K, and twice the estimate; three paired seeds.

.venv/bin/python benchmarks/auto_k.py      about a quarter of an hour on two cores

Writes docs/auto_k.json and the table in docs/unknown_k.md. Resumable.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from grid import finished_run, mean_and_error, scores, settings, write_between

from debgcd import config as configuration
from debgcd.bench.networks import trunk_type
from debgcd.demo import CLASSES, digits
from debgcd.machine import facts

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2)
SETTINGS: dict[str, dict[str, Any]] = {
    f"--k {CLASSES}, the truth": {"k": CLASSES},
    "--k auto": {"k": None},
    "--k 2x": {"k": None, "k_times": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "auto-k", help="folder for the runs")
    work = parser.parse_args().work
    base, manifest = configuration.compose("small"), digits(work)
    results = []
    for (setting, values), seed in itertools.product(SETTINGS.items(), SEEDS):
        folder = work / setting.split(",")[0].replace("--", "").replace(" ", "-") / f"seed-{seed}"
        run = finished_run(manifest, settings(base, seed, values), folder)
        results.append({"setting": setting, "seed": seed, "k_trained": run.config.k, **scores(run)})
    written = {**facts(), "trunk": trunk_type(), "command": "benchmarks/auto_k.py", "runs": results}
    (ROOT / "docs" / "auto_k.json").write_text(json.dumps(written, indent=2) + "\n", "utf-8")
    told = f"Measured {written['date']}, {written['processor']}, {written['cores']} cores; DebGCD, backbone lite0, seeds 0, 1, 2."
    write_between(ROOT / "docs" / "unknown_k.md", "benchmarks/auto_k.py", f"{table(results)}\n\n{told}")
    print(table(results))


def table(results: list[dict[str, Any]]) -> str:
    """K, All, and the difference from known K for the same seed, in points: mean ± standard error."""
    lines = ["| | K in training | K at the end | All | difference from known K |", "|---|---|---|---|---|"]
    known = [entry for entry in results if entry["setting"] == next(iter(SETTINGS))]
    for setting in SETTINGS:
        mine = [entry for entry in results if entry["setting"] == setting]
        trained, end = (", ".join(str(entry[name]) for entry in mine) for name in ("k_trained", "k"))
        difference, error = mean_and_error(100 * (a["all"] - b["all"]) for a, b in zip(mine, known, strict=True))
        beside = f"{difference:+.1f} ± {error:.1f}" if mine != known else ""
        every = 100 * sum(entry["all"] for entry in mine) / len(mine)
        lines.append(
            f"| `{setting}` | {trained} | {end} | {every:.1f} | {beside} |".replace(", the truth`", "` (the truth)")
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
