"""The little network, which stands beside the methods' own tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "methods"))
