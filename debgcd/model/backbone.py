"""What every backbone is to the rest of the program: a frozen trunk and a tuned tail.

    images (uint8) -> trunk -> tokens -> tail -> feature

The trunk never changes during training, so its output for a given view is a constant: it runs without gradient and its
tokens may be kept (see `train/bank.py`). Only the tail, the last n blocks, is tuned.
"""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debgcd.model.precision import Precision, autocast

CHUNK = 16  # at most so many images go through the trunk together on a CPU core


@dataclass(frozen=True)
class Identity:
    """Which weights these are. A run stores this instead of the frozen weights."""

    name: str  # "lite0", a hub id, or a path
    revision: str | None  # the hub's commit, where there is one
    sha256: str  # of the weights' bytes


@dataclass(frozen=True)
class Cut:
    """Where a method wants the frozen trunk to end, and what learns after it, in blocks counted from the last one."""

    tuned: int  # blocks whose weights learn
    tail: int | None = None  # blocks that run at every step, at least `tuned`; None: only those that learn
    early: str = ""  # what learns before the tail (e.g. "pixels"): then the trunk's tokens change and cannot be kept


class Backbone(nn.Module):
    """A pretrained network, cut in two.

    Subclasses fill the attributes, freeze all parameters but those of `tuned`, and define `tokens` and `tail`.
    """

    identity: Identity
    width: int  # size of the feature
    tail_blocks: int  # the last blocks, after the trunk; of them the last ones are tuned
    standardise: bool  # features are positive and off-centre, so heads need them standardised (a CNN's pooled output)
    tuned: nn.ModuleList  # the last n blocks, and nothing else
    pixel_mean: Tensor  # (3, 1, 1), in grey levels 0..255
    pixel_std: Tensor  # (3, 1, 1)
    precision: Precision = "fp32"  # of the trunk

    def trunk(self, images: Tensor) -> Tensor:
        """Tokens of images, without gradient: (N, 3, H, W) uint8 -> (N, ...) float."""
        parts = [self._frozen(images)] if self.pixel_mean.device.type != "cpu" else self._on_cores(images)
        return torch.cat(parts)  # a copy made outside inference mode, which autograd may save

    def _on_cores(self, images: Tensor) -> list[Tensor]:
        """Tokens of images, in parts."""
        # A few images at a time stay in the cores' caches, and a core that works alone never waits for another one:
        # together much faster than one large batch whose every operation is spread over the cores.
        cores = torch.get_num_threads()
        rounds = -(-len(images) // (CHUNK * cores))
        chunks = images.tensor_split(max(1, min(rounds * cores, len(images))))  # every core gets as many
        if len(chunks) == 1:
            return [self._frozen(images)]
        try:
            with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return list(pool.map(self._frozen, chunks))
        finally:
            torch.set_num_threads(cores)  # threads started from now on would have the last one's setting

    def _frozen(self, images: Tensor) -> Tensor:
        device = self.pixel_mean.device
        with torch.inference_mode(), autocast(device, self.precision):
            return self.tokens((images.to(device).float() - self.pixel_mean) / self.pixel_std).float()

    @abstractmethod
    def tokens(self, pixels: Tensor) -> Tensor:
        """The frozen part: normalised pixels (N, 3, H, W) -> what the tail takes."""

    @abstractmethod
    def tail(self, tokens: Tensor) -> Tensor:
        """The tuned part: tokens -> raw features (N, width)."""

    def train(self, mode: bool = True) -> Backbone:
        """Stay in evaluation mode: batch statistics and dropout of a pretrained network are never trained here."""
        return super().train(False)
