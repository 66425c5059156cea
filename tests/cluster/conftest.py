"""The slow forms of the losses, which stand beside the losses' own tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "losses"))
