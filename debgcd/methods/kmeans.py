"""k-means on the frozen features: the baselines without training, and the clustering that GCD ends with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd.cluster.kmeans import Clustering, kmeans
from debgcd.config.schema import Config, Options, option
from debgcd.methods.base import About, Context, Method
from debgcd.model.backbone import TrunkSplit
from debgcd.model.heads import Centres, classifiers
from debgcd.novelty.base import detector_of
from debgcd.novelty.distance import DistanceDetector
from debgcd.system.progress import progress


@dataclass(frozen=True)
class ClusteringOptions:
    """How k-means searches."""

    restarts: int = option(10, "random restarts; the lowest inertia wins", 1, 10**5)
    iterations: int = option(300, "at most, per restart", 1, 10**6)


@dataclass(frozen=True)
class KMeansOptions(Options):
    clustering: ClusteringOptions = ClusteringOptions()


class KMeans(Method):
    """Plain k-means over all training images, labelled or not, as in the paper's tables.

    It does not know the labels, so a category gets the number of a known class only by name: after clustering, each known
    class takes the cluster that holds most of its labelled images under the best one-to-one matching.
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
        found = clustered(unit, torch.full_like(label, -1), self.sizes.k, self.config)
        order = known_first(found.assignment, label, self.sizes.k, self.sizes.known)
        fill_centres(context, found.centres[order])


class SemiSupervisedKMeans(KMeans):
    """k-means in which a labelled image stays in its class, so that centre i < M is class i; novelty by distance.

    What GCD (Vaze et al. 2022) does after its training, here without any: the first answer to look at.
    """

    about = About("Semi-supervised k-means", 2022, "CVPR", "k-means in which labelled images stay in their class")

    def heads(self) -> nn.ModuleDict:
        heads = super().heads()
        heads["detector"] = DistanceDetector(self.sizes.width, self.sizes.known)
        return heads

    def finalise(self, context: Context) -> None:
        feature = context.features()
        settle_centres(self, context, normalize(feature, dim=1))
        fit_detector(context, feature)


def settle_centres(method: Method, context: Context, unit: Tensor) -> None:
    """Categories by semi-supervised k-means over all training images' features: unit (N, width), unit rows."""
    fill_centres(context, clustered(unit, context.label, method.sizes.k, method.config).centres)


def fill_centres(context: Context, centres: Tensor) -> None:
    """Make these the categories: centres (K, width)."""
    classifiers(context.network.heads)["classifier"].weight.copy_(centres)


def fit_detector(context: Context, feature: Tensor) -> None:
    """Fill the detector from the part of all training images' features that it is on: feature (N, width)."""
    detector = detector_of(context.network)
    assert detector is not None
    detector.fit(feature, context.label, context.group)


def clustered(points: Tensor, label: Tensor, k: int, config: Config) -> Clustering:
    """k-means with the configuration's restarts, iterations and seed, and a progress bar."""
    how: ClusteringOptions = config.options.clustering
    with progress("clustering") as report:
        return kmeans(
            points,
            label,
            k,
            seed=config.seed,
            restarts=how.restarts,
            iterations=how.iterations,
            on_progress=report,
        )


def known_first(assignment: Tensor, label: Tensor, k: int, known: int) -> Tensor:
    """An order of the clusters in which cluster i holds known class i, matched on the labelled images: (K,)."""
    from scipy.optimize import linear_sum_assignment

    labelled = label >= 0
    pairs = assignment[labelled] * known + label[labelled]
    together = torch.bincount(pairs, minlength=k * known).reshape(k, known)
    clusters, classes = linear_sum_assignment(together.cpu().numpy(), maximize=True)
    first = dict(zip(classes.tolist(), clusters.tolist(), strict=True))
    rest = [cluster for cluster in range(k) if cluster not in set(first.values())]
    return torch.tensor([first[i] for i in range(known)] + rest)
