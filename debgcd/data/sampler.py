"""The images of each step: the global batch as a function of (seed, step)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debgcd.data.draws import uniform


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
