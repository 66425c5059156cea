"""A browser for the tests of pages."""

from __future__ import annotations

import shutil

ADVICE = "the browser tests were left out: no Chromium or Chrome was found (Debian: apt-get install chromium)"


def chromium() -> str | None:
    """Debian's Chromium or any Chrome on the path."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next((place for name in names if (place := shutil.which(name))), None)
