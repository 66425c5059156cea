"""CiPR (Hao et al. 2024): images of one cluster are positives of each other, labelled or not.

From the paper and the public code (MIT): the two contrasts, their temperatures and weights, and selective neighbour
clustering (SNC, `cluster/graphs.py`) before every epoch, whose second level gives the clusters. The public code reports the
clusters themselves; this file assigns an image to the nearest cluster mean, so that it can predict new images too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.cluster.graphs import levels, merged_to
from debgcd.cluster.prototypes import group_means
from debgcd.config.schedules import Progress
from debgcd.config.schema import Options, option
from debgcd.methods.base import About, Batch, Context, Loss
from debgcd.methods.shared import ContrastiveMethod, GCDHeads, fill_centres, fit_detector, known_first, memory_of
from debgcd.model.network import Network


@dataclass(frozen=True)
class CiPRObjective:
    """L = supervised contrast of labelled images + weight · that of all images with their clusters as labels."""

    labelled_temperature: float = option(0.07, "as published", 1e-4, 100)
    cluster_temperature: float = option(0.12, "as in the public code", 1e-4, 100)
    cluster_weight: float = option(0.12 / 0.07, "as in the public code: its temperature over the other one", 0, 1e6)
    level: int = option(1, "of the hierarchy of clusters, from 0; the public code takes 1", 0, 100)


@dataclass(frozen=True)
class CiPROptions(Options):
    heads: GCDHeads = GCDHeads()
    cipr: CiPRObjective = CiPRObjective()


class CiPR(ContrastiveMethod):
    """Supervised contrast with labels, and with clusters as labels of all images; SNC merged to K gives the categories."""

    about = About("CiPR", 2024, "TMLR", "images of one semi-supervised FINCH cluster are positives of each other")
    Options = CiPROptions  # type: ignore[assignment]  # it has clusters where GCD has InfoNCE
    options: CiPROptions

    def memory(self, network: Network) -> nn.Module:
        """The cluster of each image."""
        return memory_of(cluster=torch.zeros(self.sizes.images, dtype=torch.int64))

    def before_epoch(self, context: Context, progress: Progress) -> None:
        hierarchy = levels(context.features(), context.label)
        chosen = hierarchy[min(self.options.cipr.level, len(hierarchy) - 1)]
        context.network.get_buffer("memory.cluster").copy_(torch.from_numpy(chosen))

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        options, z = self.options.cipr, network(batch.tokens)["projection"]
        cluster = network.get_buffer("memory.cluster")[batch.image]
        labelled = losses.supervised_contrastive(z[batch.labelled], batch.y, options.labelled_temperature)
        across = losses.supervised_contrastive(z, cluster, options.cluster_temperature)
        total = labelled + options.cluster_weight * across
        return Loss(total, {"supervised_contrastive": labelled, "cluster_contrastive": across})

    def finalise(self, context: Context) -> None:
        feature = context.features()
        unit = normalize(feature, dim=1)
        # clustered as they are, as in the public code; an image then belongs to the nearest mean of unit-length features
        cluster = torch.from_numpy(merged_to(feature, context.label, self.sizes.k)).to(unit.device)
        order = known_first(cluster, context.label, self.sizes.k, self.sizes.known)
        fill_centres(context, group_means(unit, cluster, self.sizes.k)[order])
        fit_detector(context, feature)
