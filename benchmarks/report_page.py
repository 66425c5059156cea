"""Reports of finished runs: size, time to write, time to the first paint; written into docs/report.md. And a picture for the README.

.venv/bin/python benchmarks/report_page.py RUN [RUN ...] [--cache DIR] [--picture docs/report.jpg]

Each report is written anew, without the thumbnails that the cache may hold, then loaded five times. The picture is of the first.
Needs Chromium or Chrome on the path, and an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from grid import write_between
from playwright.sync_api import Browser, sync_playwright

from debgcd.report import thumbnails
from debgcd.report.page import write_report
from debgcd.run.directory import Run
from debgcd.system.machine import cache_folder, facts
from debgcd.train.train import finished_run

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browsers import ADVICE, chromium  # noqa: E402

LOADS = 5
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
READY = "() => performance.now()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--cache", help="of the runs' view banks (default: that of each run)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also the top of the first page, .jpg or .png")
    options = parser.parse_args()
    program = chromium()
    if program is None:
        sys.exit(ADVICE)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        lines = []
        for number, place in enumerate(options.runs):
            run, report = finished_run(place), Path(folder) / f"{number}.html"
            lines.append(row(run, report, cache_folder(options.cache or run.config.run.cache), browser))
        if options.picture is not None:
            picture(browser, Path(folder) / "0.html", options.picture)
        browser.close()
    machine = facts()
    head = [
        "| run | images | size | first paint | all there | written in | the run took | share |",
        "|---|---|---|---|---|---|---|---|",
    ]
    foot = (
        f"Medians of {LOADS} loads. *The run*: from the images to predictions.csv, view bank included; it must not have been "
        f"interrupted. Measured {machine['date']} on {machine['processor']}, {machine['cores']} cores by `benchmarks/report_page.py`."
    )
    write_between(ROOT / "docs" / "report.md", "benchmarks/report_page.py", "\n".join([*head, *lines, "", foot]))


def row(run: Run, report: Path, cache: Path, browser: Browser) -> str:
    """Write the report of a run and load it: a line of the table."""
    thumbnails.FILE = str(report.with_suffix(".sqlite"))  # an absolute path: not in the cache
    start = time.perf_counter()
    write_report(run, report, cache)
    seconds = time.perf_counter() - start
    paint, ready = (
        statistics.median(times) for times in zip(*(load(browser, report) for _ in range(LOADS)), strict=True)
    )
    whole = run_seconds(run)
    cells = [
        run.folder.name,
        f"{len(run.manifest.training_rows):,}",
        f"{report.stat().st_size / 1e6:.1f} MB",
        f"{paint:.0f} ms",
        f"{ready:.0f} ms",
        f"{seconds:.0f} s",
        f"{whole:.0f} s",
        f"{seconds / whole:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def run_seconds(run: Run) -> float:
    """How long a run took that was not interrupted: from its first file to its predictions, view bank included."""
    return run.predictions.stat().st_mtime - (run.folder / "environment.json").stat().st_mtime


def load(browser: Browser, report: Path) -> tuple[float, float]:
    """Milliseconds to the first paint, and until everything is there."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-ready]")
    ready = page.evaluate(READY)
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
    paint = page.evaluate(PAINT)
    page.close()
    return paint, ready


def picture(browser: Browser, report: Path, out: Path) -> None:
    """What was found, the first categories, and the map."""
    page = browser.new_page(viewport={"width": 1280, "height": 1330})
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-ready]")
    page.evaluate("() => { for (const card of [...document.querySelectorAll('.card')].slice(2)) card.hidden = true; }")
    page.wait_for_timeout(500)  # pictures are decoded
    page.screenshot(path=out)
    page.close()


if __name__ == "__main__":
    main()
