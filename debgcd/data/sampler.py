"""Random numbers and batches as functions of (seed, stream, counters): nothing about randomness needs saving."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Draws:
    """Part of a batch: `image[i]` is the image of draw `draw[i]`.

    Random choices, such as crops, depend on the draw and not on the image: a labelled image is drawn about twice per epoch,
    and the two draws must differ.
    """

    draw: NDArray[np.int64]
    image: NDArray[np.int64]


class Sampler:
    """Draws images with replacement in proportion to `weights`."""

    def __init__(self, weights: NDArray[np.float64], batch: int, seed: int):
        self._cumulative = np.cumsum(weights) / np.sum(weights)
        self.batch = batch
        self._seed = seed

    def draws(self, step: int, rank: int = 0, ranks: int = 1) -> Draws:
        """The slice of the global batch at `step` that belongs to `rank`."""
        draw = step * self.batch + np.arange(self.batch, dtype=np.int64)
        draw = np.array_split(draw, ranks)[rank]
        image = np.searchsorted(self._cumulative, uniform(self._seed, "sample", draw), side="right")
        return Draws(draw, np.minimum(image, len(self._cumulative) - 1))


def half_labelled(label: NDArray[np.int64]) -> NDArray[np.float64]:
    """SimGCD's weights: labelled 1, unlabelled |D_l|/|D_u|, so that about half of a batch is labelled."""
    labelled = label >= 0
    return np.where(labelled, 1.0, labelled.sum() / max(1, (~labelled).sum()))
