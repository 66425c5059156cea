"""Stateless random numbers: a pure function of (seed, stream, counters).

A stateful generator would have to be checkpointed, passed to loader workers and split over ranks. These numbers are the same
on every machine, in any order and in any process, so there is no state to save.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_STEP = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed: int, stream: str, *counters: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one per element of the broadcast counters.

    `stream` names the purpose ("crop", "sample"), so that two purposes with equal counters get different numbers.
    """
    state = np.asarray(stream_seed(seed, stream), dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
        for counter in counters:
            state = _mix(state ^ _mix(np.asarray(counter, dtype=np.int64).astype(np.uint64) + _STEP))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def stream_seed(seed: int, stream: str) -> int:
    """A 64-bit seed derived from the run's seed for one purpose, e.g. for a torch generator."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{stream}".encode()).digest()[:8], "little")


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele et al. 2014): every input bit affects every output bit."""
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
