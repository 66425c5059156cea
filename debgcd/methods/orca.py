"""ORCA (Cao et al. 2022): known classes wait for the new ones, and images with their neighbours fall into one category.

From the paper and the public code (ResNet-18 from SimCLR) the losses are taken; backbone, views and the half of a batch that is
labelled are those of all methods here, as in the GCD authors' comparison.
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
    """Cross-entropy with a margin that follows the uncertainty, pairs that agree, and categories used alike."""

    about = About("ORCA", 2022, "ICLR", "a margin holds known classes back while unlabelled images are uncertain")
    Options: ClassVar[type[Options]] = ORCAOptions
    options: ORCAOptions

    def memory(self, network: Network) -> nn.Module:
        """The margin, fixed for an epoch."""
        return memory_of(margin=torch.zeros(()))

    def before_epoch(self, context: Context, progress: Progress) -> None:
        """ū over all unlabelled images, as the network stands."""
        options, network = self.options.orca, context.network
        free = context.features()[context.label < 0]
        p = self.scores(network.from_feature(free, ("classifier",)))["gcd"]
        margin = (options.margin_weight * losses.uncertainty(p)).clamp_max(options.margin_most)
        network.get_buffer("memory.margin").copy_(margin)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        """The public code takes cross-entropy, entropy and neighbours from the first views, and pairs them with the second."""
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
