"""Where a step's tokens come from: fresh views sent through the trunk, a view bank computed before, or a mix of both."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.data.loader import Images, centre_items, load_batches, random_items
from debgcd.data.sampler import Draws, uniform
from debgcd.data.views import TWO_PLAIN, Kinds
from debgcd.model.backbone import Backbone
from debgcd.system import distributed

CENTRE_BATCH = 128  # centre crops that pass through the network together


class Tokens(Protocol):
    """The trunk's output for the images of a run."""

    def random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        """For each batch of B draws the tokens of V random views each, V·B rows: first views, then second views, ..."""
        ...

    def centre(self, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
        """The tokens of the centre crops of these images, in order, in batches."""
        ...

    def kept_views(self, numbers: NDArray[np.int64]) -> Iterator[Iterable[Tensor]] | None:
        """For each batch of these images, in order, the tokens of each plain view that a bank keeps; None if none is kept."""
        ...


def centre_batches(numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Split image numbers into batches of CENTRE_BATCH."""
    return (numbers[start : start + CENTRE_BATCH] for start in range(0, len(numbers), CENTRE_BATCH))


def own_numbers(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """This rank's slice of image numbers, cut between batches: the last bits of a result may depend on the batch's size."""
    return numbers[distributed.my_slice(len(numbers), CENTRE_BATCH)]


class FreshTokens:
    """Tokens of views that are cropped and sent through the trunk when needed; a draw has one view of each of `kinds`."""

    def __init__(self, backbone: Backbone, images: Images, seed: int, workers: int, kinds: Kinds = TWO_PLAIN):
        self._backbone, self._images, self._seed, self._workers = backbone, images, seed, workers
        self._kinds = kinds

    def random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        for views in load_batches(self._images, random_items(self._seed, draws, self._kinds), self._workers):
            yield self._backbone.trunk(views.transpose(0, 1).flatten(0, 1))

    def centre(self, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
        workers = self._workers if len(numbers) > CENTRE_BATCH else 0
        for views in load_batches(self._images, centre_items(numbers, CENTRE_BATCH), workers):
            yield self._backbone.trunk(views[:, 0])

    def kept_views(self, numbers: NDArray[np.int64]) -> None:
        return None


class MixedTokens:
    """Fresh views for a share of the draws and a bank's for the others; the choice is a function of (seed, draw)."""

    def __init__(self, bank: Tokens, fresh: Tokens, share: float, seed: int):
        self._bank, self._fresh, self._share, self._seed = bank, fresh, share, seed

    def random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        # the workers that decode run some batches ahead
        draws, ahead = itertools.tee(draws)
        parts = (_select(batch, self._is_fresh(batch)) for batch in ahead)
        fresh = self._fresh.random(part for part in parts if len(part.draw))
        for batch in draws:
            takes_fresh = self._is_fresh(batch)
            (stored,) = self._bank.random([_select(batch, ~takes_fresh)])
            if not takes_fresh.any():
                yield stored
                continue
            computed = next(fresh)
            tokens = computed.new_empty(len(computed) + len(stored), *computed.shape[1:])
            # rows are first views, then second views, ...
            rows = np.tile(takes_fresh, len(tokens) // len(takes_fresh))
            is_fresh = torch.from_numpy(rows).to(computed.device)
            tokens[is_fresh], tokens[~is_fresh] = computed, stored
            yield tokens

    def centre(self, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
        return self._bank.centre(numbers)

    def kept_views(self, numbers: NDArray[np.int64]) -> Iterator[Iterable[Tensor]] | None:
        return self._bank.kept_views(numbers)

    def _is_fresh(self, batch: Draws) -> NDArray[np.bool_]:
        """Which draws take fresh views: (B,)."""
        return uniform(self._seed, "fresh", batch.draw) < self._share


def _select(batch: Draws, chosen: NDArray[np.bool_]) -> Draws:
    return Draws(batch.draw[chosen], batch.image[chosen])
