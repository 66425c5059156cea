"""DCCL (Pu et al. 2023): contrast with the centres of clusters in the neighbour graph, recomputed before every epoch.

From the paper and the public code: Infomap on the nearest neighbours, clusters of five images or more, a memory of their
centres with momentum, weights and temperatures. For links between labelled images the public code compares the wrong pair
of labels; this file compares the intended pair. As in the public code, each loss has its own images: one half of a batch is
drawn as for GCD, the other half holds P clusters × 16 images. The learning rate has no warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.cluster.graphs import communities
from debgcd.config import schedules
from debgcd.config.schedules import Progress
from debgcd.config.schema import option
from debgcd.data.sampler import Draws, Sampler, half_labelled, uniform
from debgcd.methods.base import About, Batch, Context, Loss
from debgcd.methods.shared import ContrastiveMethod, GCDOptions, memory_of
from debgcd.model.network import Network
from debgcd.system.progress import say


@dataclass(frozen=True)
class DCCLObjective:
    """L = L_rep + w(t) L_cluster."""

    neighbours: int = option(14, "links of an image, as in the public code: 15 with itself", 1, 1000)
    least_similarity: float = option(0.6, "cosine of a link, as in the public code", -1, 1)
    smallest: int = option(5, "images of a cluster, as in the public code", 1, 10**6)
    weight: float = option(0.4, "w at the end of its ramp, from a tenth of it; as published", 0, 1e6)
    ramp: float = option(0.5, "share of the run in which w grows: the public 100 of 200 epochs", 0, 1)
    temperature: float = option(0.05, "of the cosines to the centres, as published", 1e-4, 100)
    momentum: float = option(0.1, "what a centre keeps per image, as published", 0, 1)
    each: int = option(16, "images drawn per cluster, as published", 1, 1000)


@dataclass(frozen=True)
class DCCLOptions(GCDOptions):
    dccl: DCCLObjective = DCCLObjective()


class ClusterSampler(Sampler):
    """Draws the first half of a batch by weights, the second half as groups of images from one cluster each."""

    def __init__(self, weights: NDArray[np.float64], batch: int, seed: int, cluster: NDArray[np.int64], each: int):
        super().__init__(weights, batch, seed)
        self._each = each
        self._members = [np.flatnonzero(cluster == i) for i in range(int(cluster.max()) + 1)]

    def draws(self, step: int, rank: int = 0, ranks: int = 1) -> Draws:
        whole, half = super().draws(step), self.batch // 2
        image = whole.image.copy()
        if self._members:
            group = np.arange(self.batch - half) // self._each
            which = uniform(self._seed, "sample/cluster", step, group) * len(self._members)
            position = uniform(self._seed, "sample/member", whole.draw[half:])
            chosen = [self._members[i] for i in which.astype(np.int64)]
            image[half:] = [members[int(at * len(members))] for members, at in zip(chosen, position, strict=True)]
        return Draws(np.array_split(whole.draw, ranks)[rank], np.array_split(image, ranks)[rank])


class DCCL(ContrastiveMethod):
    """L_rep, and a contrast of each image with the centres of all clusters; categories by k-means, as in GCD."""

    about = About(
        "DCCL",
        2023,
        "CVPR",
        "Infomap clusters before every epoch; their centres are a memory to contrast with",
        package="infomap",
    )
    Options = DCCLOptions
    options: DCCLOptions

    def memory(self, network: Network) -> nn.Module:
        """The cluster of each image, and the centres; `moved`: the centres after the step."""
        most = max(1, self.sizes.images // self.options.dccl.smallest)
        cluster, count = torch.full((self.sizes.images,), -1), torch.zeros((), dtype=torch.int64)
        centres, moved = (torch.zeros(most, self.sizes.width) for _ in range(2))
        return memory_of(cluster=cluster, count=count, centres=centres, moved=moved)

    def sampler(self, label: NDArray[np.int64], batch: int, network: Network) -> Sampler:
        cluster = network.get_buffer("memory.cluster").cpu().numpy()
        return ClusterSampler(half_labelled(label), batch, self.config.seed, cluster, self.options.dccl.each)

    def before_epoch(self, context: Context, progress: Progress) -> None:
        options, network = self.options.dccl, context.network
        unit = normalize(context.features(), dim=1)
        cluster = torch.from_numpy(
            communities(
                unit,
                context.label,
                neighbours=options.neighbours,
                least=options.least_similarity,
                smallest=options.smallest,
            )
        ).to(unit.device)
        network.get_buffer("memory.cluster").copy_(cluster)
        network.get_buffer("memory.count").copy_(cluster.amax() + 1)
        sums = torch.zeros_like(network.get_buffer("memory.centres"))
        sums.index_add_(0, cluster[cluster >= 0], unit[cluster >= 0])
        network.get_buffer("memory.centres").copy_(normalize(sums, dim=1))

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        options, base, output = self.options.dccl, self.options.baseline, network(batch.tokens)
        half = len(batch.image) // 2
        z, _ = _halves(output["projection"], half)
        y = batch.labels[:half]
        info_nce = losses.info_nce(z, base.unlabelled_temperature)
        supervised = losses.contrastive_among(z @ z.T, y, y >= 0, base.labelled_temperature)
        _, unit = _halves(normalize(output.feature, dim=1), half)  # the images drawn by cluster
        own = network.get_buffer("memory.cluster")[batch.image][half:].repeat(2)
        centres, used = network.get_buffer("memory.centres").clone(), network.get_buffer("memory.count")
        clusters = losses.centre_contrast(unit @ centres.T, used, own, options.temperature)
        moved = losses.follow(centres, unit.detach(), own.clamp_min(0), own >= 0, options.momentum)
        network.get_buffer("memory.moved").copy_(moved)
        share = base.supervised_weight
        weight = schedules.linear(options.weight / 10, options.weight, progress.of_warmup(options.ramp))
        terms: dict[str, Tensor | float] = {
            "info_nce": info_nce,
            "supervised_contrastive": supervised,
            "clusters": clusters,
            "cluster_weight": weight,
        }
        return Loss((1 - share) * info_nce + share * supervised + weight * clusters, terms)

    def after_step(self, network: Network, progress: Progress) -> None:
        network.get_buffer("memory.centres").copy_(network.get_buffer("memory.moved"))

    def finalise(self, context: Context) -> None:
        say(f"dccl: Infomap found {int(context.network.get_buffer('memory.count'))} clusters before the last epoch")
        super().finalise(context)


def _halves(rows: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Both views of the first `half` images, and of the rest: (2B, d) -> (2 · half, d), (2 (B − half), d)."""
    views = rows.unflatten(0, (2, -1))
    return views[:, :half].flatten(0, 1), views[:, half:].flatten(0, 1)
