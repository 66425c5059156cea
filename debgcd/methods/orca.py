"""ORCA (Cao et al. 2022): an adaptive margin slows down known classes; an image and its neighbour share a category.

The losses are those of the paper and the public code (ResNet-18 from SimCLR); backbone, views and the labelled half of each
batch are the same as for all methods in this package, as in the GCD authors' comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.config.schema import Options, option
from debgcd.methods.base import About, Batch, Context, Loss
from debgcd.methods.shared import PrototypeMethod, WarmStart, memory_of
from debgcd.model.network import Network


@dataclass(frozen=True)
class ORCAObjective:
    """L = L_S + η₁ L_P − η₂ H(p̄)."""

    pair_weight: float = option(1.0, "η₁, as published", 0, 1e6)
    entropy_weight: float = option(1.0, "η₂, as published", 0, 1e6)
    margin_weight: float = option(1.0, "λ: margin per unit of uncertainty, in units of the cosine", 0, 100)
    margin_most: float = option(0.5, "at most so large; only in the public code", 0, 2)
    temperature: float = option(0.1, "1 / s; the public code has s = 10", 1e-4, 100)


@dataclass(frozen=True)
class ORCAOptions(Options):
    heads: WarmStart = WarmStart()
    orca: ORCAObjective = ORCAObjective()


class ORCA(PrototypeMethod):
    """Cross-entropy with a margin that follows the uncertainty, pairs that agree, and a maximal mean entropy."""

    about = About("ORCA", 2022, "ICLR", "a margin holds known classes back while unlabelled images are uncertain")
    Options: ClassVar[type[Options]] = ORCAOptions
    options: ORCAOptions

    def memory(self, network: Network) -> nn.Module:
        """The margin, constant within an epoch."""
        return memory_of(margin=torch.zeros(()))

    def before_epoch(self, context: Context, progress: Progress) -> None:
        """Set the margin from ū, the network's mean uncertainty over all unlabelled images."""
        options, network = self.options.orca, context.network
        free = context.features()[context.label < 0]
        p = self.scores(network.from_feature(free, ("classifier",)))["gcd"]
        margin = (options.margin_weight * losses.uncertainty(p)).clamp_max(options.margin_most)
        network.get_buffer("memory.margin").copy_(margin)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        """As in the public code: cross-entropy, entropy and neighbours use first views; pairs join them with second views."""
        options, output, images = self.options.orca, network(batch.tokens), len(batch.image)
        logits, margin = output["classifier"], network.get_buffer("memory.margin")
        labelled = batch.labelled[: len(batch.y)]
        draw = batch.uniform("orca/partner")[labelled]
        partner = losses.partners(output.feature[:images], labelled, batch.y, draw)
        supervised = losses.margin_supervised(logits[labelled], batch.y, margin, options.temperature)
        pairs = losses.pairwise(logits, partner, options.temperature)
        entropy = losses.mean_entropy(logits[:images], options.temperature)
        total = supervised + options.pair_weight * pairs - options.entropy_weight * entropy
        terms: dict[str, Tensor | float] = {
            "supervised": supervised,
            "pairs": pairs,
            "mean_entropy": entropy,
            "margin": margin,
        }
        return Loss(total, terms)

    @property
    def temperature(self) -> float:
        return self.options.orca.temperature
