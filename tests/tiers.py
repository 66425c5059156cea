"""Two tiers: `make test` runs one case of each kind, `make soak` (DEBGCD_SOAK=1) all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

SOAK = bool(os.environ.get("DEBGCD_SOAK"))
soak = pytest.mark.skipif(not SOAK, reason="make soak")

T = TypeVar("T")


def tiered(some: Sequence[T], every: Iterable[T]) -> list[T]:
    """The cases of this tier: `some` in `make test`, one of each kind; `every` in `make soak`."""
    everything = list(every)
    assert all(case in everything for case in some), "make soak must have all that make test has"
    return everything if SOAK else list(some)
