"""The slow forms of the losses, which stand beside the losses' own tests."""

from __future__ import annotations

import sys
from pathlib import Path

for room in ("losses", "train"):
    sys.path.append(str(Path(__file__).parents[1] / room))
