"""k-means on the frozen features: two baselines without training."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import normalize

from debgcd.methods.base import About, Context, Method
from debgcd.methods.shared import ClusteredMethod, KMeansOptions, clustered, fill_centres, known_first
from debgcd.model.backbone import TrunkSplit
from debgcd.model.heads import Centres


class KMeans(Method):
    """Plain k-means over all training images, labelled or not, as in the paper's tables.

    The clustering ignores the labels. They only number the clusters afterwards: each known class is assigned one cluster,
    by the one-to-one matching that agrees with most labels.
    """

    about = About("k-means", 2007, "SODA", "k-means with k-means++ on the frozen features")
    Options = KMeansOptions
    cut = TrunkSplit(tuned=0)
    trains = False
    clusters = True

    def heads(self) -> nn.ModuleDict:
        return nn.ModuleDict({"classifier": Centres(self.sizes.width, self.sizes.k)})

    def finalise(self, context: Context) -> None:
        label = context.label
        unit = normalize(context.features(), dim=1)
        clustering = clustered(unit, torch.full_like(label, -1), self.sizes.k, self.config)
        order = known_first(clustering.assignment, label, self.sizes.k, self.sizes.known)
        fill_centres(context, clustering.centres[order])


class SemiSupervisedKMeans(ClusteredMethod):
    """k-means in which a labelled image stays in its class, so that centre i < M is class i; novelty by distance.

    GCD's final clustering (Vaze et al. 2022) without its training: a quick first result.
    """

    about = About("Semi-supervised k-means", 2022, "CVPR", "k-means in which labelled images stay in their class")
    cut = TrunkSplit(tuned=0)
    trains = False
