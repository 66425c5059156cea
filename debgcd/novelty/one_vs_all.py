"""M one-vs-all detectors: the paper's, trained by L_sdl in a feature space of their own (Eq. 4–6), and one by distances.

`DistanceDetector` needs no training: the distance to the nearest known class, relative to that of labelled images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.config.schema import option
from debgcd.model.heads import Projection, Prototypes, squared_distance
from debgcd.novelty.base import Detector

INSIDE = 0.95  # share of the labelled images that lie within the radius
IMAGES_PER_BLOCK = 4096  # labelled images whose distances to all classes are in memory together
LEAST_SPREAD = 0.01  # lower bound of `spread`, which would be 0 if all images of a class were copies of one


@dataclass(frozen=True)
class DetectorOptions:
    """L_sdl."""

    weight: float = option(0.01, "λ_sdl", 0, 1e6)
    temperature: float = option(0.1, "of the detector's softmax: among the paper's 'other temperatures'", 1e-4, 100)
    entropy_weight: float = option(1.0, "Eq. 6 adds both parts with weight 1; the public code has 0.1", 0, 1e6)
    entropy_over: Literal["sum", "mean"] = option(
        "sum", "over the M detectors: Eq. 5 sums, the public code takes the mean"
    )
    consistency_weight: float = option(
        0.0, "between the two views of an unlabelled image: only in the public code (1.0)", 0, 1e6
    )
    # Only for small data. Labelled images are known, unlabelled ones may be either: learning to tell the two groups apart
    # teaches what is new (positive-unlabelled learning), while Eq. 4 never sees a new image.
    unlabelled_weight: float = option(0.0, "learn from labelled against unlabelled images; small data only", 0, 1e6)


@dataclass(frozen=True)
class DetectorShape:
    hidden: int = option(2048, "width of the hidden layers, as in SimGCD", 1, 65536)
    detector_depth: int = option(5, "layers of ρ_s; 0 puts the detector into the classifiers' feature space", 0, 32)
    detector_width: int = option(256, "output of ρ_s", 1, 65536)


class OneVsAll(Detector):
    """ρ_s and the M one-vs-all detectors on it: for each known class, is this image in or out?"""

    def __init__(self, width: int, known: int, shape: DetectorShape, temperature: float, tunes_tail: bool = True):
        super().__init__()
        self.projection = Projection(width, shape.hidden, shape.detector_width, shape.detector_depth)
        self.prototypes = Prototypes(self.projection.out, 2 * known)
        self.temperature, self.tunes_tail = temperature, tunes_tail

    def reset(self, generator: torch.Generator) -> None:
        self.projection.reset(generator)
        self.prototypes.reset(generator)

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, M, 2) scores after the temperature; channel 0 is "in", 1 is "out"."""
        feature = feature if self.tunes_tail else feature.detach()
        return self.prototypes(self.projection(feature)).unflatten(1, (-1, 2)) / self.temperature


def detector_loss(
    labelled: Tensor, y: Tensor, unlabelled: Tensor, options: DetectorOptions
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """Eq. 6, L_sdl, with the weights and the extra terms of the presets `released` and `small`; and its terms.

    labelled: (2L, M, 2) scores of the labelled rows; y: (2L,) their labels; unlabelled: (2U, M, 2), view by view.
    """
    supervised = losses.one_vs_all_labelled(labelled, y)
    entropy = losses.one_vs_all_entropy(unlabelled)
    if options.entropy_over == "mean":
        entropy = entropy / unlabelled.shape[1]
    total = supervised + options.entropy_weight * entropy
    terms: dict[str, Tensor | float] = {"detector_labelled": supervised, "detector_entropy": entropy}
    if options.unlabelled_weight:
        claimed = losses.one_vs_all_unlabelled(unlabelled)
        total = total + options.unlabelled_weight * claimed
        terms["detector_unlabelled"] = claimed
    if options.consistency_weight:
        consistency = losses.one_vs_all_consistency(unlabelled)
        total = total + options.consistency_weight * consistency
        terms["detector_consistency"] = consistency
    return total, terms


class DistanceDetector(Detector):
    """M one-vs-all detectors without training: is the image as near to this known class as labelled images are to one?

    "In" minus "out" is (radius − distance) / spread, so that Eq. 7 gives ½ at the radius. The distance is that of the
    unit-length feature to the mean of the class's labelled images. A cluster's centre would be worse, because new images that
    were put into the cluster by mistake pull it towards them. All classes share one radius, because a class with few images
    does not determine its own.
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
        """Fit to the labelled images; see `Detector.fit`.

        The radius is a quantile of the labelled images' distances to the nearest class, because Eq. 7 takes the nearest. The
        mean of an image's own class is taken without the image, because a new image is part of no mean either.
        """
        points, y = normalize(feature[label >= 0], dim=1), label[label >= 0]
        count = torch.bincount(y, minlength=len(self.centres))
        self.centres.copy_(torch.zeros_like(self.centres).index_add_(0, y, points) / count[:, None])
        points, y = points[count[y] > 1], y[count[y] > 1]
        if not len(points):
            # one image per class does not show the size of a class: half way to an unrelated direction
            self.radius.fill_(2**0.5 / 2)
            self.spread.fill_(2**0.5 / 4)
            return
        # ratio of an image's distances to the mean without it and to the mean with it
        stretch = (count / (count - 1))[:, None]
        nearest = []
        for part, own in zip(points.split(IMAGES_PER_BLOCK), y[:, None].split(IMAGES_PER_BLOCK), strict=True):
            distance = squared_distance(part, self.centres).sqrt()  # (n, M)
            nearest.append(distance.scatter(1, own, distance.gather(1, own) * stretch[own[:, 0]]).amin(1))
        distances = torch.cat(nearest)
        self.radius.copy_(distances.quantile(INSIDE))
        self.spread.copy_(distances.std(correction=0).clamp_min(LEAST_SPREAD))

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, M, 2); channel 0 is "in", 1 is "out"."""
        distance = squared_distance(normalize(feature, dim=1), self.centres).sqrt()
        inside = (self.radius - distance) / self.spread
        return torch.stack([inside, torch.zeros_like(inside)], -1)
