"""Where a step's tokens come from: fresh views through the trunk, a bank of views that went through it before, or both."""

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


def centre_batches(numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Image numbers in batches of centre crops."""
    return (numbers[start : start + CENTRE_BATCH] for start in range(0, len(numbers), CENTRE_BATCH))


def own_centre_batches(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """This rank's part of these images: whole batches, because the last bits of an answer may depend on its batch."""
    return numbers[distributed.my_slice(len(numbers), CENTRE_BATCH)]


class FreshTokens:
    """Every view cut and sent through the trunk when it is needed; a draw has one view of each of `kinds`."""

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


class MixedTokens:
    """A share of the draws takes fresh views, the others those of a bank; which is a function of (seed, draw)."""

    def __init__(self, bank: Tokens, fresh: Tokens, share: float, seed: int):
        self._bank, self._fresh, self._share, self._seed = bank, fresh, share, seed

    def random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        draws, ahead = itertools.tee(draws)  # those who decode are some batches ahead
        parts = (_some(batch, self._is_fresh(batch)) for batch in ahead)
        fresh = self._fresh.random(part for part in parts if len(part.draw))
        for batch in draws:
            which = self._is_fresh(batch)
            (kept,) = self._bank.random([_some(batch, ~which)])
            if not which.any():
                yield kept
                continue
            cut = next(fresh)
            tokens = cut.new_empty(len(cut) + len(kept), *cut.shape[1:])
            rows = np.tile(which, len(tokens) // len(which))  # first views, then second views, ...
            is_fresh = torch.from_numpy(rows).to(cut.device)
            tokens[is_fresh], tokens[~is_fresh] = cut, kept
            yield tokens

    def centre(self, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
        return self._bank.centre(numbers)

    def _is_fresh(self, batch: Draws) -> NDArray[np.bool_]:
        return uniform(self._seed, "fresh", batch.draw) < self._share


def _some(batch: Draws, which: NDArray[np.bool_]) -> Draws:
    return Draws(batch.draw[which], batch.image[which])
