"""Small blocks, so that every rank has several; processes that die on purpose, and methods on a little backbone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for room in ("train", "methods", "losses"):
    sys.path.append(str(Path(__file__).parents[1] / room))

BLOCK = 5  # images: of 24, one rank of two has three blocks and the other two, the last of which is not full


@pytest.fixture(autouse=True, scope="module")
def _several_blocks_per_rank() -> Iterator[None]:
    """What is computed in blocks of images: forks of this process inherit the size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("debgcd.tokens.sources.CENTRE_BATCH", BLOCK)
        patch.setattr("debgcd.tokens.bank.BUILD_BATCH", BLOCK)
        patch.setattr("debgcd.tokens.image_cache.IMAGES_PER_BATCH", BLOCK)
        yield
