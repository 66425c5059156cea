"""Novelty without training: the distance to the nearest known class, relative to that of labelled images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.model.heads import squared_distance
from debgcd.novelty.base import Detector

INSIDE = 0.95  # share of the labelled images that lie within the radius
BLOCK = 4096  # labelled images whose distances to all classes are in memory together
LEAST_SPREAD = 0.01  # of the distances, on a sphere of radius 1: copies of one image have none


class DistanceDetector(Detector):
    """M one-vs-all detectors without training: is the image as near to this known class as labelled images are to one?

    "In" less "out" is (radius − distance) / spread, so that Eq. 7 says ½ at the radius. The distance is that of the
    unit-length feature to the mean of the class's labelled images: a cluster's centre would not do, because the new images
    that the clustering put there by mistake pull it towards them. One radius for all classes, because few images say
    little of the radius of theirs alone.
    """

    centres: Tensor
    radius: Tensor
    spread: Tensor

    def __init__(self, width: int, known: int):
        super().__init__()
        self.register_buffer("centres", torch.zeros(known, width))
        self.register_buffer("radius", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))

    def fit(self, feature: Tensor, label: Tensor, group: Tensor | None = None) -> None:
        """Fill it from the labelled images; see `Detector.fit`.

        The radius is a quantile of the labelled images' distances to the nearest class, as Eq. 7 takes the nearest; of its
        own class each is measured against the mean of the others, because a new image is in no mean either.
        """
        points, y = normalize(feature[label >= 0], dim=1), label[label >= 0]
        count = torch.bincount(y, minlength=len(self.centres))
        self.centres.copy_(torch.zeros_like(self.centres).index_add_(0, y, points) / count[:, None])
        points, y = points[count[y] > 1], y[count[y] > 1]
        if not len(points):  # one image a class says nothing of its size: half way to an unrelated direction
            self.radius.fill_(2**0.5 / 2)
            self.spread.fill_(2**0.5 / 4)
            return
        stretch = (count / (count - 1))[:, None]  # from the mean with an image to the mean without it
        nearest = []
        for part, own in zip(points.split(BLOCK), y[:, None].split(BLOCK), strict=True):
            distance = squared_distance(part, self.centres).sqrt()  # (BLOCK, M)
            nearest.append(distance.scatter(1, own, distance.gather(1, own) * stretch[own[:, 0]]).amin(1))
        distances = torch.cat(nearest)
        self.radius.copy_(distances.quantile(INSIDE))
        self.spread.copy_(distances.std(correction=0).clamp_min(LEAST_SPREAD))

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, M, 2); channel 0 is "in", 1 is "out"."""
        distance = squared_distance(normalize(feature, dim=1), self.centres).sqrt()
        inside = (self.radius - distance) / self.spread
        return torch.stack([inside, torch.zeros_like(inside)], -1)
