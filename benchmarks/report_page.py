"""A report in a browser: its size, the time to its first paint, and a picture of it for the README.

.venv/bin/python benchmarks/report_page.py RUN/report.html [-o docs/report.jpg]

Needs Chromium or Chrome on the path. Prints the median of five loads; measure on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from browsers import ADVICE, chromium

LOADS = 5
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
READY = "() => performance.now()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument(
        "-o", dest="out", type=Path, metavar="FILE", help="write a picture of the top of the page, .jpg or .png"
    )
    options = parser.parse_args()
    program = chromium()
    if program is None:
        sys.exit(ADVICE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        paint, ready = zip(*(load(browser, options.report) for _ in range(LOADS)), strict=True)
        if options.out is not None:
            picture(browser, options.report, options.out)
        browser.close()
    size = options.report.stat().st_size / 1e6
    print(
        f"{size:.1f} MB; first paint {statistics.median(paint):.0f} ms, ready {statistics.median(ready):.0f} ms (median of {LOADS})"
    )


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
