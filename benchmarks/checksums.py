"""What it costs to compare every stored view with its checksum: a share of the seconds of the steps that read them.

.venv/bin/python benchmarks/checksums.py SET [SET ...] --root DIR [--root DIR]

One whole run per set on its draw 0 (quality/draws.py), with a view bank; the checksums are timed where they are computed, in the
thread that reads ahead. Updates benchmarks/results/checksums.json and the sentence in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "quality"))

from draws import draw  # noqa: E402
from grid import images_of, write_between  # noqa: E402

from debgcd import config as configuration  # noqa: E402
from debgcd.system import store  # noqa: E402
from debgcd.system.machine import cache_folder, facts  # noqa: E402
from debgcd.train import train as story  # noqa: E402

ROOT = HERE.parent
FILE, PAGE = HERE / "results" / "checksums.json", ROOT / "docs" / "reliability.md"


class Timed:
    """`zlib` with a clock around its checksum."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def crc32(self, content: Any) -> int:
        begun = time.perf_counter()
        found = zlib.crc32(content)
        self.seconds += time.perf_counter() - begun
        self.calls += 1
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET")
    parser.add_argument("--root", type=Path, action="append", default=[], metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "checksums", help="a new folder for the runs")
    options = parser.parse_args()
    entries = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    for name in options.sets:
        entries[name] = measured(name, options.root, options.work)
        FILE.write_text(json.dumps(entries, indent=2) + "\n", "utf-8")
        write_between(PAGE, "benchmarks/checksums.py", sentence(entries))
    print(sentence(entries))


def measured(name: str, roots: list[Path], work: Path) -> dict[str, Any]:
    manifest, k = draw(images_of(name, roots, work, cache_folder(None), 10**6, 10**9), 0)
    fixed = {"k": k, "views": {"bank": "on"}, "run": {"log_every": 1}}
    config = configuration.override(configuration.compose("small"), fixed, where=name)
    timed, fit, spent = Timed(), story.fit, {}

    def clocked(*words: Any) -> Any:
        timed.seconds, timed.calls, begun = 0.0, 0, time.perf_counter()
        found = fit(*words)
        spent.update(steps=time.perf_counter() - begun, checksums=timed.seconds, views=timed.calls)
        return found

    store.zlib, story.fit = timed, clocked  # type: ignore[assignment]
    try:
        story.train(manifest, config, work / f"{name}-run")
    finally:
        store.zlib, story.fit = zlib, fit
    return {**facts(), "images": len(manifest), **spent}


def sentence(entries: dict[str, Any]) -> str:
    shares = [f"{100 * entry['checksums'] / entry['steps']:.2f} % ({name})" for name, entry in entries.items()]
    on = sorted({f"{entry['date']} on {entry['processor']}, {entry['cores']} cores" for entry in entries.values()})
    return f"Comparing every view at its first read takes {', '.join(shares)} of the seconds of training. Measured {'; '.join(on)}."


if __name__ == "__main__":
    main()
