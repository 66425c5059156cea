"""k-means on the frozen features: the baselines without training, and the clustering that GCD ends with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd.cluster.kmeans import Clustering, kmeans
from debgcd.config import Config
from debgcd.methods.protocol import Batch, Features, Loss
from debgcd.model.heads import Centres, DistanceDetector
from debgcd.model.network import Output
from debgcd.progress import progress
from debgcd.schedules import Progress


class KMeans:
    """Plain k-means over all training images, labelled or not, as in the paper's tables.

    It does not know the labels, so a category gets the number of a known class only by name: after clustering, each known
    class takes the cluster that holds most of its labelled images under the best one-to-one matching.
    """

    tuned_blocks = 0
    trains = False
    clusters = True

    def __init__(self, config: Config, known: int):
        assert config.k is not None
        self.config, self.k, self.known = config, config.k, known

    def heads(self, width: int) -> nn.ModuleDict:
        return nn.ModuleDict({"classifier": Centres(width, self.k)})

    def begin(self, heads: nn.ModuleDict, features: Features, label: Tensor) -> None:
        """Nothing here starts from the features."""

    def settle(self, heads: nn.ModuleDict, features: Features, label: Tensor) -> None:
        found = clustered(normalize(features(), dim=1), torch.full_like(label, -1), self.k, self.config)
        order = known_first(found.assignment, label, self.k, self.known)
        _centres(heads).weight.copy_(found.centres[order])

    def loss(self, output: Output, batch: Batch, progress: Progress) -> Loss:
        raise TypeError("k-means has nothing to train")

    def assign(self, logits: Tensor) -> Tensor:
        return (logits / self.config.gcd.student_temperature).softmax(1)


class SemiSupervisedKMeans(KMeans):
    """k-means in which a labelled image stays in its class, so that centre i < M is class i; novelty by distance.

    What GCD (Vaze et al. 2022) does after its training, here without any: the first answer to look at.
    """

    def heads(self, width: int) -> nn.ModuleDict:
        heads = super().heads(width)
        heads["detector"] = DistanceDetector(width, self.known)
        return heads

    def settle(self, heads: nn.ModuleDict, features: Features, label: Tensor) -> None:
        unit = normalize(features(), dim=1)
        settle_centres(heads, unit, label, self.config)
        detector = heads["detector"]
        assert isinstance(detector, DistanceDetector)
        detector.fit(unit, label)


def settle_centres(heads: nn.ModuleDict, unit: Tensor, label: Tensor, config: Config) -> None:
    """Categories by semi-supervised k-means over all training images' features: unit (N, width), unit rows."""
    centres = _centres(heads).weight
    centres.copy_(clustered(unit, label, len(centres), config).centres)


def clustered(points: Tensor, label: Tensor, k: int, config: Config) -> Clustering:
    """k-means with the configuration's restarts, iterations and seed, and a progress bar."""
    how = config.clustering
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


def _centres(heads: nn.ModuleDict) -> Centres:
    classifier = heads["classifier"]
    assert isinstance(classifier, Centres)
    return classifier


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
