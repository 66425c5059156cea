"""Five batches of images into one run, at small scale; writes benchmarks/results/stream.json and docs/later.md.

.venv/bin/python benchmarks/stream.py --root DIR [--root DIR ...] [--seeds 3] [SET ...]

DIR holds CIFAR-10, Oxford-IIIT Pet and CUB-200-2011 in their original layouts. The protocol and the ways are those of `debgcd reproduce
stream --scale small` (debgcd/reproduce/stream.py). Resumable: what was measured before stays, a set or a seed at a time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from grid import write_between

from debgcd.reproduce.stream import NAME, SMALL, STEPS, Wish, footnote, reproduce, table
from debgcd.system.files import write_json
from debgcd.system.machine import cache_folder

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "stream.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(SMALL), metavar="SET", help=", ".join(SMALL))
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "stream", help="folder for the runs")
    parser.add_argument("--cache", help="for view banks (default as debgcd train)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--ways", nargs="+", default=list(STEPS), choices=STEPS, metavar="WAY", help="only these")
    options = parser.parse_args()
    before = options.work / f"{NAME}.json"
    if RESULTS.exists() and not before.exists():
        write_json(before, json.loads(RESULTS.read_text("utf-8")))
    wish = Wish(
        roots=tuple(options.root),
        out=options.work,
        cache=cache_folder(options.cache),
        command="benchmarks/stream.py",
        scale="small",
        sets=tuple(options.sets),
        seeds=options.seeds,
        ways=tuple(options.ways),
    )
    written = reproduce(wish)
    RESULTS.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    per_stage = f"Per stage: [{RESULTS.name}](../benchmarks/results/{RESULTS.name})."
    text = f"{table(written['runs'])}\n\n{footnote(written)} {per_stage}"
    write_between(ROOT / "docs" / "later.md", "benchmarks/stream.py", text)


if __name__ == "__main__":
    main()
