"""OpenCon (Sun & Li 2023): three contrastive losses, the third among images that look new, with prototypes as teachers.

Losses, heads and weights follow the public code (ResNet from SimCLR); the backbone and the labelled half of each batch are
the same as for all methods in this package. Prototypes are moving averages of projected features, without gradient; the
nearest one is the category.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from debgcd import losses
from debgcd.config import schedules
from debgcd.config.schedules import Progress
from debgcd.config.schema import Options, option
from debgcd.data.sampler import stream_seed
from debgcd.methods.base import About, Batch, Context, Loss, Method
from debgcd.methods.shared import WarmStart, memory_of, warm_prototypes
from debgcd.model.heads import Classifier, Projection
from debgcd.model.network import Network


@dataclass(frozen=True)
class OpenConHeads(WarmStart):
    hidden: int = option(
        2048, "width of the projection's hidden layer; the public code: as wide as the feature", 1, 65536
    )
    projection_width: int = option(128, "its output, as published", 1, 65536)


@dataclass(frozen=True)
class OpenConObjective:
    """L = L_u + λ_l L_l + λ_n L_n + λ_e KL(p̄ ‖ prior)."""

    unlabelled_temperature: float = option(0.4, "as published for CIFAR; 0.6 for ImageNet-100", 1e-4, 100)
    labelled_weight: float = option(0.2, "λ_l, as published", 0, 1e6)
    labelled_temperature: float = option(0.1, "as published", 1e-4, 100)
    new_weight: float = option(0.1, "λ_n at the end of its ramp, as published", 0, 1e6)
    new_temperature: float = option(0.7, "as published", 1e-4, 100)
    ramp: float = option(0.5, "share of the run in which λ_n grows from 0: the public 100 of 200 epochs", 0, 1)
    divergence_weight: float = option(0.05, "λ_e, only in the public code", 0, 1e6)
    labelled_share: float = option(0.5, "of each known class; the prior of known classes is that much smaller", 0, 1)
    known_share: float = option(0.7, "of the labelled images that count as known; sets the threshold of novelty", 0, 1)
    momentum: float = option(0.9, "γ: what a prototype keeps per image, as published", 0, 1)


@dataclass(frozen=True)
class OpenConOptions(Options):
    heads: OpenConHeads = OpenConHeads()
    opencon: OpenConObjective = OpenConObjective()


class NearestPrototype(Classifier):
    """Cosines of the projected feature to prototypes that no gradient trains."""

    def __init__(self, projection: Projection, categories: int):
        super().__init__()
        self._projection = (projection,)  # in a tuple, so that its parameters are not registered twice
        self.register_buffer("weight", torch.zeros(categories, projection.out))

    def place(self, feature: Tensor) -> Tensor:
        return self._projection[0](feature)

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, K)."""
        return linear(self.place(feature), normalize(self.weight, dim=1))


class OpenCon(Method):
    """Contrast of unlabelled images, of labelled ones, and of those that look new; prototypes are moving averages."""

    about = About("OpenCon", 2023, "TMLR", "contrast among images that look new, taught by moving prototypes")
    Options: ClassVar[type[Options]] = OpenConOptions
    options: OpenConOptions

    def heads(self) -> nn.ModuleDict:
        shape = self.options.heads
        projection = Projection(self.sizes.width, shape.hidden, shape.projection_width, 2)
        return nn.ModuleDict({"projection": projection, "classifier": NearestPrototype(projection, self.sizes.k)})

    def memory(self, network: Network) -> nn.Module:
        """The prototypes after the step."""
        return memory_of(moved=torch.zeros_like(network.get_buffer("heads.classifier.weight")))

    def before_training(self, context: Context) -> None:
        weight = context.network.get_buffer("heads.classifier.weight")
        if "classifier" in context.given:
            return
        generator = torch.Generator().manual_seed(stream_seed(self.config.seed, "opencon") % 2**63)
        start = torch.randn(weight.shape, generator=generator).to(weight)
        if self.options.heads.warm_start:
            features = context.features()
            nearest = linear(normalize(features, dim=1), warm_prototypes(self, context)).argmax(1)
            z = context.network.from_feature(features, ("projection",))["projection"]
            sums = torch.zeros_like(weight).index_add_(0, nearest, z)
            # a category that is nearest to no image stays random
            start = torch.where(sums.any(1, keepdim=True), sums, start)
        weight.copy_(normalize(start, dim=1))

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        options, known, images = self.options.opencon, self.sizes.known, len(batch.image)
        z, weight = network(batch.tokens)["projection"], network.get_buffer("heads.classifier.weight").clone()
        cosines = linear(z[:images], weight)  # of the first views, as in the public code
        labelled, free = batch.labelled[: len(batch.y)], batch.unlabelled[: len(batch.unlabelled) // 2]
        new = losses.looks_new(cosines, labelled, free, known, options.known_share)
        y = cosines.argmax(1).index_copy(0, labelled, batch.y)
        unlabelled = losses.info_nce(z[batch.unlabelled], options.unlabelled_temperature)
        supervised = losses.supervised_contrastive(z[batch.labelled], batch.y, options.labelled_temperature)
        among_new = losses.contrastive_among(z @ z.T, y, new, options.new_temperature)
        prior = torch.ones(self.sizes.k, device=z.device, dtype=z.dtype)
        prior[:known] = 1 - min(options.labelled_share, 0.999)
        divergence = losses.divergence(cosines[free], prior / prior.sum())
        new_weight = schedules.linear(0.0, options.new_weight, progress.of_ramp(options.ramp))
        total = unlabelled + options.labelled_weight * supervised + new_weight * among_new
        moves = (y >= known).index_fill(0, labelled, True)
        network.get_buffer("memory.moved").copy_(losses.follow(weight, z[:images].detach(), y, moves, options.momentum))
        terms: dict[str, Tensor | float] = {
            "info_nce": unlabelled,
            "supervised_contrastive": supervised,
            "among_new": among_new,
            "divergence": divergence,
            "looks_new": new.float().mean(),
        }
        return Loss(total + options.divergence_weight * divergence, terms)

    def after_step(self, network: Network, progress: Progress) -> None:
        network.get_buffer("heads.classifier.weight").copy_(network.get_buffer("memory.moved"))
