"""The interface of a novelty detector: a head on the feature that separates images of known classes from new ones.

`OneVsAll` is trained by a loss; `Neighbours` and `DistanceDetector` are fitted to the features of all training images. Because
training changes the features, the novelty by a fitted detector is stored before the first step (`remember`, `remembered`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debgcd import losses
from debgcd.model.heads import whole_heads
from debgcd.model.network import Network

DETECTOR = "detector"  # the name of the head
EXCEED = 0.05  # share of labelled images above the threshold, for a detector without a calibration of its own
FEW_LABELS = 20  # labelled images below which its error is not stated: 20 % would be known only within 9 points


@dataclass(frozen=True)
class NoveltyThreshold:
    """The novelty above which an image looks new, chosen without new labels, and its estimated error rates."""

    above: float
    error_known: float | None  # share of images of known classes that look new; None: it cannot be estimated
    error_new: float | None = None  # share of new images that do not look new; None: it cannot be estimated
    share: float | None = None  # of new images among the unlabelled training images; a lower bound
    share_low: float | None = None  # ends of its 90 % interval
    share_high: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not (isinstance(value, (int, float)) and 0 <= value <= 1):
                raise ValueError(f"novel.{name} must be a number from 0 to 1, not {value!r:.50}")


class Detector(nn.Module):
    """A novelty detector, the head "detector" of a network.

    `forward` maps features (N, width) to scores: either the novelty itself, (N,) in 0..1, or (N, M, 2) scores for "in" and
    "out" of each known class. `novelty` turns both into the novelty.
    """

    @property
    def learned(self) -> bool:
        """Whether a loss trains it; otherwise `fit` and `refit` fill it."""
        return any(True for _ in self.parameters())

    def fit(self, feature: Tensor, label: Tensor, group: Tensor | None = None) -> None:
        """Fit to all training images before the first step; does nothing in a detector that a loss trains.

        feature: (N, width) rows of any norm; label, group: (N,), -1 for none.
        """

    def refit(self, feature: Tensor, label: Tensor, before: Tensor, group: Tensor | None = None) -> None:
        """Fit to the tuned features after the last step. before: (N,) novelty of the same images before the first step."""
        self.fit(feature, label, group)

    def threshold(self) -> NoveltyThreshold | None:
        """The threshold of a calibrated detector; None for another, whose threshold is `exceeded_by_few`."""
        return None


def detector_of(network: Network) -> Detector | None:
    """The detector of a network, also one on a part of the feature; None if it has none."""
    head = whole_heads(network.heads).get(DETECTOR)
    return head if isinstance(head, Detector) else None


def novelty(scores: Tensor) -> Tensor:
    """(N,) novelty from a detector's scores: scores (N,) are the novelty, scores (N, M, 2) give it by Eq. 7."""
    return scores if scores.ndim == 1 else losses.novelty(scores)


def remember(memory: nn.Module, images: int) -> None:
    """Add a buffer to a method's memory for the novelty of all training images before the first step."""
    memory.register_buffer("novelty", torch.zeros(images))


def remembered(network: Network) -> Tensor | None:
    """The novelty of each training image before the first step: (N,); None unless a fitted detector guides training."""
    return getattr(network.memory, "novelty", None)


def exceeded_by_few(labelled: NDArray[np.float32]) -> NoveltyThreshold | None:
    """A threshold that a share EXCEED of the labelled images exceeds; None without labelled images.

    labelled: (L,) their novelty. If they trained the detector, other images of known classes exceed the threshold more often.
    """
    if not len(labelled):
        return None
    above = float(np.quantile(labelled, 1 - EXCEED))
    return NoveltyThreshold(above, float((labelled > above).mean()) if len(labelled) >= FEW_LABELS else None)
