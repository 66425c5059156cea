"""UNO+ (Fini et al. 2021, as ported by Vaze et al. 2022): each view learns the balanced assignment of the other one.

A re-implementation, since the port was never released: UNO's public losses, heads and crops, but pseudo-labels over all K
categories (an unlabelled image may be of a known class), MLPs without batch normalisation, and small crops resized to the
size of large ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.config.schema import Options, option
from debgcd.data.views import PLAIN, SMALL, Kinds
from debgcd.errors import UsageError
from debgcd.methods.base import About, Batch, Context, Loss, Method
from debgcd.methods.shared import memory_of
from debgcd.model.heads import Classifier, Projection, Prototypes, reset
from debgcd.model.network import Network, Output


@dataclass(frozen=True)
class UNOHeadOptions:
    hidden: int = option(2048, "width of the MLPs' hidden layer, as published", 1, 65536)
    projection_width: int = option(256, "their output, as published", 1, 65536)
    count: int = option(4, "heads, and over-clustering heads; the public commands have 4", 1, 64)
    over: int = option(3, "new categories of an over-clustering head per new category, as published", 1, 100)


@dataclass(frozen=True)
class UNOObjective:
    temperature: float = option(0.1, "as published", 1e-4, 100)
    iterations: int = option(3, "of Sinkhorn-Knopp, as published", 1, 1000)
    epsilon: float = option(0.05, "of Sinkhorn-Knopp, as published", 1e-4, 100)


@dataclass(frozen=True)
class UNOOptions(Options):
    heads: UNOHeadOptions = UNOHeadOptions()
    uno: UNOObjective = UNOObjective()


class UNOHeads(nn.Module):
    """H heads and H over-clustering heads; all share the prototypes of the known classes.

    (N, width) -> (N, H, K + over · (K − M)) cosines: known classes, new categories, then those of the over-clustering head.
    """

    def __init__(self, width: int, k: int, known: int, options: UNOHeadOptions):
        super().__init__()
        self.known, self.over = Prototypes(width, known), options.over
        sizes = [k - known, options.over * (k - known)]
        shape = (width, options.hidden, options.projection_width, 2)
        self.projections = nn.ModuleList(Projection(*shape) for _ in range(2 * options.count))
        self.new = nn.ModuleList(Prototypes(options.projection_width, sizes[i % 2]) for i in range(2 * options.count))

    def reset(self, generator: torch.Generator) -> None:
        for part in self.children():
            reset(part, generator)
        self.unit_prototypes()

    @torch.no_grad()
    def unit_prototypes(self) -> None:
        """Give every prototype length 1, as in the public code before every step; else they grow, and learn ever slower."""
        for head in (self.known, *self.new):
            head.weight.copy_(normalize(head.weight, dim=1))

    def forward(self, feature: Tensor) -> Tensor:
        cosines = [new(project(feature)) for project, new in zip(self.projections, self.new, strict=True)]
        known = self.known(feature)
        return torch.stack([torch.cat([known, *cosines[i : i + 2]], 1) for i in range(0, len(cosines), 2)], 1)


class BestHead(Classifier):
    """The classifier of the final result: the head with the lowest loss."""

    def __init__(self, heads: UNOHeads):
        super().__init__()
        self._heads = (heads,)  # in a tuple, so that its parameters are not registered twice
        self.register_buffer("best", torch.zeros((), dtype=torch.int64))

    def forward(self, feature: Tensor) -> Tensor:
        heads = self._heads[0]
        cosines = [new(project(feature)) for project, new in zip(heads.projections[::2], heads.new[::2], strict=True)]
        best = self.get_buffer("best").view(1) % len(cosines)  # a file may hold any number
        # compute all heads, then select: the index is on the device, and a constant in ONNX
        return torch.cat([heads.known(feature), torch.stack(cosines, 1).index_select(1, best).squeeze(1)], 1)

    def prototypes(self) -> Tensor:
        """Unit prototypes: known classes in the feature's space, new categories in that of the best head's projection."""
        heads = self._heads[0]
        new = heads.new[2 * int(self.get_buffer("best"))]
        assert isinstance(new, Prototypes)
        return torch.block_diag(*(normalize(head.weight, dim=1) for head in (heads.known, new)))

    def grow(self, feature: Tensor, category: Tensor, more: int, seen: Tensor, where: Tensor) -> None:
        raise UsageError(
            "the heads of uno have no place for more categories; train again with them: debgcd train --from RUN PATH"
        )

    def keep(self, categories: list[int]) -> None:
        heads = self._heads[0]
        known = len(heads.known.weight)
        new = [i - known for i in categories[known:]]
        for i, head in enumerate(heads.new):
            assert isinstance(head, Prototypes)
            # over-clustering heads are unused after training; keep the number of rows that their shape requires
            head.keep(list(range(heads.over * len(new))) if i % 2 else new)


class UNO(Method):
    """Swapped prediction with several heads and over-clustering; the head with an epoch's lowest loss is the classifier."""

    about = About("UNO+", 2022, "CVPR", "each view learns the balanced assignment of the other; several heads")
    Options: ClassVar[type[Options]] = UNOOptions
    views: ClassVar[Kinds] = (PLAIN, PLAIN, SMALL, SMALL)
    options: UNOOptions

    def heads(self) -> nn.ModuleDict:
        heads = UNOHeads(self.sizes.width, self.sizes.k, self.sizes.known, self.options.heads)
        return nn.ModuleDict({"heads": heads, "classifier": BestHead(heads)})

    def memory(self, network: Network) -> nn.Module:
        """The summed loss of each head in this epoch."""
        return memory_of(sums=torch.zeros(self.options.heads.count))

    def before_epoch(self, context: Context, progress: Progress) -> None:
        context.network.get_buffer("memory.sums").zero_()

    def after_step(self, network: Network, progress: Progress) -> None:
        """Update the best head at the end of each epoch, and at every step of the first epoch."""
        heads = network.heads["heads"]
        assert isinstance(heads, UNOHeads)
        heads.unit_prototypes()
        done = progress.step + 1
        if done <= progress.steps_per_epoch or done % progress.steps_per_epoch == 0:
            network.get_buffer("heads.classifier.best").copy_(network.get_buffer("memory.sums").argmin())

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        logits = network(batch.tokens)["heads"].transpose(0, 1)  # (H, 4B, columns)
        k, known = self.sizes.k, self.sizes.known
        cluster, over = logits[..., :k], torch.cat([logits[..., :known], logits[..., k:]], -1)
        parts = {"cluster": self._swapped(cluster, batch), "over_cluster": self._swapped(over, batch)}
        network.get_buffer("memory.sums").add_(parts["cluster"].detach())
        terms = {name: value.mean() for name, value in parts.items()}
        return Loss((terms["cluster"] + terms["over_cluster"]) / 2, terms)

    def _swapped(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean over six pairs of crops; the first of a pair is large, its assignment the target: (H, 4B, C) -> (H,)."""
        options = self.options.uno
        large, small = logits.split(2 * len(batch.image), 1)
        labelled, free = batch.labelled[: 2 * len(batch.y)], batch.unlabelled[: len(batch.unlabelled) // 2]
        targets = losses.swapped_targets(large, labelled, free, batch.y, options.iterations, options.epsilon)
        both = targets.unflatten(1, (2, -1)).mean(1).repeat(1, 2, 1)  # a small crop learns from both large ones
        swapped = losses.swapped(large, targets, options.temperature)
        return (swapped + 2 * losses.swapped(small, both, options.temperature)) / 3

    def scores(self, output: Output) -> dict[str, Tensor]:
        return {"gcd": (output["classifier"] / self.options.uno.temperature).softmax(1)}
