"""Processes that die on purpose, and methods on a little backbone, which stand beside other tests."""

from __future__ import annotations

import sys
from pathlib import Path

for room in ("train", "methods", "losses"):
    sys.path.append(str(Path(__file__).parents[1] / room))
