"""XCon (Fei et al. 2022): GCD, and the same contrast a second time within clusters of similar images (parts).

From the public code: k-means on the frozen features makes eight parts, once; each has its own projection, an expert. In the
public code a step draws a second batch, with the same number of images from each part; in this file both terms use the same
batch, and the mean over the parts gives each the same weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.cluster.kmeans import kmeans
from debgcd.config.schedules import Progress
from debgcd.config.schema import option
from debgcd.methods.base import About, Batch, Context, Loss
from debgcd.methods.shared import ContrastiveMethod, GCDOptions, memory_of, representation
from debgcd.model.heads import Projection, PrototypeProjection
from debgcd.model.network import Network


@dataclass(frozen=True)
class ExpertOptions:
    """The parts of the data."""

    count: int = option(8, "parts, each with a projection of its own; as published", 1, 1000)
    weight: float = option(0.1, "of the loss within the parts, as in the public script", 0, 1e6)


@dataclass(frozen=True)
class XConOptions(GCDOptions):
    experts: ExpertOptions = ExpertOptions()


class Experts(nn.Module):
    """A projection for each part of the data: (N, width) -> (N, parts, d), unit rows."""

    def __init__(self, projections: Sequence[Projection | PrototypeProjection]):
        super().__init__()
        self.projections = nn.ModuleList(projections)

    def forward(self, feature: Tensor) -> Tensor:
        return torch.stack([projection(feature) for projection in self.projections], 1)


class XCon(ContrastiveMethod):
    """L_rep over all images + weight · L_rep within each part; the categories come from clustering, as for GCD."""

    about = About("XCon", 2022, "BMVC", "GCD's contrast once more, within eight parts of the data that look alike")
    Options = XConOptions
    options: XConOptions

    def heads(self) -> nn.ModuleDict:
        heads = super().heads()
        heads["experts"] = Experts([self.projection() for _ in range(self.options.experts.count)])
        return heads

    def memory(self, network: Network) -> nn.Module:
        """The part of each image."""
        return memory_of(part=torch.zeros(self.sizes.images, dtype=torch.int64))

    def before_training(self, context: Context) -> None:
        parts = min(self.options.experts.count, len(context.label))
        unit = normalize(context.features(), dim=1)
        # scikit-learn's defaults, which the public code takes
        part = kmeans(
            unit, torch.full_like(context.label, -1), parts, seed=self.config.seed, restarts=10, iterations=300
        ).assignment
        context.network.get_buffer("memory.part").copy_(part)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        output, options, parts = network(batch.tokens), self.options.baseline, self.options.experts.count
        part = network.get_buffer("memory.part")[batch.image]
        experts = output["experts"]
        z = experts[torch.arange(len(experts), device=experts.device), part.repeat(2)]
        labelled = part[batch.labelled[: len(batch.y)]]  # row numbers of the first view are image numbers
        fine = losses.info_nce_within(z @ z.T, part, parts, options.unlabelled_temperature)
        known = z[batch.labelled]
        fine_labelled = losses.supervised_contrastive_within(
            known @ known.T, batch.y, labelled, parts, options.labelled_temperature
        )
        share = options.supervised_weight
        within = (1 - share) * fine + share * fine_labelled
        coarse, terms = representation(output["projection"], batch, options)
        terms |= {"info_nce_within": fine, "supervised_contrastive_within": fine_labelled}
        return Loss(coarse + self.options.experts.weight * within, terms)
