"""The review of 50 000 images in a browser: first paint, frames while scrolling, memory, how long an act takes to be saved.

.venv/bin/python benchmarks/review_page.py [--images 50000] [--folder DIR]

Makes a run without training: a small one whose lists of images are replaced, with random answers and features. Needs Chromium or
Chrome on the path. Writes medians of five loads, each in a fresh browser, into docs/review.md; measure on an idle machine.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from browsers import ADVICE, chromium
from grid import write_between
from quick import train_arguments

from debgcd.cli import main as debgcd
from debgcd.report.untuned import untuned
from debgcd.review.page.similar import feature_file
from debgcd.run.directory import IMAGES, finished_run, open_run
from debgcd.run.predictions import COLUMNS
from debgcd.system.files import csv_text, write_sealed, write_text
from debgcd.system.machine import facts

ROOT = Path(__file__).resolve().parent.parent
LOADS, ROWS, PER_FRAME, ACTS = 5, 5000, 5, 10
KNOWN, NEW, LABELS = 50, 50, 2  # classes, categories, labels per class
DIFFERENT = 400  # picture files that differ; the others are links to them
LIMITS = {"first paint, ms": 2000, "frames under 100 ms, %": 99, "memory, MB": 500, "act, ms": 50}
SCROLL = """([rows, perFrame]) => new Promise((done) => {
  const view = document.getElementById("grid"), step = (grid.tile + grid.gap) * perFrame, took = [];
  let left = Math.ceil(rows / perFrame), last = performance.now();
  const frame = (now) => {
    took.push(now - last);
    last = now;
    view.scrollTop += step;
    if (left-- > 0) requestAnimationFrame(frame);
    else done(took.slice(1));
  };
  requestAnimationFrame(frame);
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument(
        "--folder", type=Path, help="where the run is made, or was made before (default: a temporary one)"
    )
    options = parser.parse_args()
    if chromium() is None:
        sys.exit(ADVICE)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "run" / "predictions.csv").is_file():
            make_run(folder, options.images)
        (folder / "run" / "decisions.jsonl").unlink(missing_ok=True)
        loads = [load(folder) for _ in range(LOADS)]
    medians = {name: round(statistics.median(one[name] for one in loads), 1) for name in loads[0]}
    lines = ["| median of five loads | | limit |", "|---|---|---|"]
    lines += [f"| {name} | {value:g} | {LIMITS.get(name, '')} |" for name, value in medians.items()]
    machine = facts()
    told = f"{options.images:,} images; {machine['date']}, {machine['processor']}, {machine['cores']} cores, by `benchmarks/review_page.py`."
    write_between(ROOT / "docs" / "review.md", "benchmarks/review_page.py", "\n".join([*lines, "", told]))
    print("\n".join(lines))


def make_run(folder: Path, count: int) -> None:
    """The files of a finished run over so many images."""
    random = np.random.default_rng(0)
    pictures = [_picture(random) for _ in range(DIFFERENT)]
    digests = [hashlib.sha256(content).hexdigest() for content in pictures]
    small = [["path", "label"]]
    for i, content in enumerate(pictures):
        place = folder / "originals" / f"{i}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        small.append([str(place), f"class-{i // LABELS:02d}" if i < KNOWN * LABELS else ""])
    write_text(folder / "small.csv", csv_text(small[0], small[1:]))
    words = train_arguments(
        folder / "small.csv", folder / "run", "--k", KNOWN + NEW, "--epochs", 0, schedule__steps="null"
    )
    assert debgcd(words) == 0
    categories = json.loads((folder / "run" / "model" / "categories.json").read_text())
    rows: list[list[str]] = [["path", "label", "truth", "split", "group"]]
    rows += [[path, label, "", "train", ""] for path, label in small[1 : 1 + KNOWN * LABELS]]
    sha256 = [f"{digests[i]}  {path[0]}" for i, path in enumerate(rows[1:])]
    answers = []
    (folder / "images").mkdir(exist_ok=True)
    for i in range(count):
        place = folder / "images" / f"{i:06d}.jpg"
        os.link(folder / "originals" / f"{i % DIFFERENT}.jpg", place)
        rows.append([str(place), "", "", "train", ""])
        sha256.append(f"{digests[i % DIFFERENT]}  {place}")
        p = np.sort(random.dirichlet((0.3, 0.3, 0.3)))[::-1]
        best = [categories[c] for c in random.choice(len(categories), 3, replace=False)]
        said: dict[str, Any] = {"path": place, "category": best[0]["category"], "known": str(best[0]["known"]).lower()}
        said |= {"id": best[0]["id"], "name": best[0]["name"], "confidence": p[0], "novelty": random.random()}
        said |= {f"top{r + 1}_{what}": v for r in range(3) for what, v in (("id", best[r]["id"]), ("p", p[r]))}
        said |= {"none_p": ""}
        answers.append([said.get(name, "false") for name in COLUMNS])
    write_text(folder / "run" / "manifest.csv", csv_text(rows[0], rows[1:]))
    write_text(folder / "run" / IMAGES, "\n".join(sha256) + "\n")
    write_text(folder / "run" / "predictions.csv", csv_text(list(COLUMNS), answers))
    feature = random.normal(size=(len(rows) - 1, 128)).astype(np.float32)
    content = io.BytesIO()
    np.save(content, feature / np.linalg.norm(feature, axis=1, keepdims=True), allow_pickle=False)
    place = feature_file(open_run(folder / "run"), folder / "cache")
    place.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(place, content.getvalue())
    untuned(finished_run(folder / "run"), folder / "cache")  # what suggestions are made from


def _picture(random: np.random.Generator) -> bytes:
    """A soft random image of the size of a small photograph."""
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    content = io.BytesIO()
    coarse.resize((400, 300), Image.Resampling.BICUBIC).save(content, "JPEG", quality=85)
    return content.getvalue()


def load(folder: Path) -> dict[str, float]:
    """One server, one browser, one page: everything that is measured. The first load also makes the thumbnails."""
    words = [
        sys.executable,
        "-m",
        "debgcd",
        "review",
        str(folder / "run"),
        "--no-browser",
        "--cache",
        str(folder / "cache"),
    ]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(300_000)
            page.goto(url)
            page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
            paint = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
            page.wait_for_selector("html[data-ready]")
            page.wait_for_function("() => document.querySelector('.cell img')?.complete")
            ready = page.evaluate("() => performance.now()")
            page.wait_for_function("() => state.features && state.similarity && state.certain")
            frames = page.evaluate(SCROLL, [ROWS, PER_FRAME])
            processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
            memory = max(_resident(one["id"]) for one in processes if one["type"] == "renderer")
            acts = []
            for i in range(ACTS):
                page.evaluate("(i) => send('/api/act', { act: 'accept', categories: [state.categories[i].id] })", i)
                acts.append(float(page.evaluate("() => document.documentElement.dataset.took")))
            browser.close()
    finally:
        server.terminate()
        server.wait()
    quick = 100 * float(np.mean(np.array(frames) < 100))
    slowest = float(np.quantile(frames, 0.99))
    return {
        "first paint, ms": paint,
        "first picture, ms": ready,
        "frames under 100 ms, %": quick,
        "99 of 100 frames within, ms": slowest,
        "memory, MB": memory / 1e6,
        "act, ms": statistics.median(acts),
    }


def _resident(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
