"""Where a step's tokens come from: fresh views through the trunk, or a bank of views that went through it before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from debgcd.config import ViewsConfig
from debgcd.data.loader import Images, centre_items, load_batches, random_items
from debgcd.data.sampler import Draws
from debgcd.model.backbone import Backbone

CENTRE_BATCH = 128


class Tokens(Protocol):
    """The trunk's output for the images of a run."""

    def random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        """For each batch of B draws the tokens of two random views, 2B rows: first views, then second views."""
        ...

    def centre(self, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
        """The tokens of the centre crops of these images, in order, in batches."""
        ...


class FreshTokens:
    """Every view decoded, cut and sent through the trunk when it is needed."""

    def __init__(self, backbone: Backbone, paths: Sequence[Path], views: ViewsConfig, seed: int, workers: int):
        self._backbone, self._images, self._seed, self._workers = backbone, Images(paths, views), seed, workers

    def random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        for views in load_batches(self._images, random_items(self._seed, draws), self._workers):
            yield self._backbone.trunk(views.transpose(0, 1).flatten(0, 1))

    def centre(self, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
        workers = self._workers if len(numbers) > CENTRE_BATCH else 0
        for views in load_batches(self._images, centre_items(numbers, CENTRE_BATCH), workers):
            yield self._backbone.trunk(views[:, 0])
