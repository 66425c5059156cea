"""The paper's novelty detector: M one-vs-all detectors in a feature space of their own, trained by L_sdl (Eq. 4–6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from debgcd import losses
from debgcd.config.schema import option
from debgcd.model.heads import Projection, Prototypes
from debgcd.novelty.base import Detector


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
