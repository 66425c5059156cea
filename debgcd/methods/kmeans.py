"""k-means on the frozen features: the baseline without training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd.cluster.kmeans import kmeans
from debgcd.config import Config
from debgcd.methods.protocol import Loss
from debgcd.model.heads import Centres
from debgcd.model.network import Output


class KMeans:
    """Plain k-means over all training images, labelled or not, as in the paper's tables.

    It does not know the labels, so a category gets the number of a known class only by name: after clustering, each known
    class takes the cluster that holds most of its labelled images under the best one-to-one matching.
    """

    tuned_blocks = 0
    trains = False

    def __init__(self, config: Config, known: int):
        assert config.k is not None
        self._k, self._known, self._seed = config.k, known, config.seed
        self._temperature = config.gcd.student_temperature

    def heads(self, width: int) -> nn.ModuleDict:
        return nn.ModuleDict({"classifier": Centres(width, self._k)})

    def at_epoch(self, epoch: int, heads: nn.ModuleDict, features: Callable[[], Tensor], label: Tensor) -> None:
        points = normalize(features(), dim=1)
        found = kmeans(points, torch.full_like(label, -1), self._k, seed=self._seed)
        order = known_first(found.assignment, label, self._k, self._known)
        classifier = heads["classifier"]
        assert isinstance(classifier, Centres)
        classifier.weight.copy_(found.centres[order])

    def loss(self, output: Output, label: Tensor, progress: float) -> Loss:
        raise TypeError("k-means has nothing to train")

    def assign(self, logits: Tensor) -> Tensor:
        return (logits / self._temperature).softmax(1)


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
