"""The interface of a novelty detector: a head on the feature that separates images of known classes from new ones.

`OneVsAll` is trained by a loss; `Neighbours` and `DistanceDetector` are fitted to the features of all training images. What a
fitted detector says before the first step is remembered for training (`remember`, `remembered`), because the features change.
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
EXCEED = 0.05  # share of the labelled images above the threshold of a detector without a calibration


@dataclass(frozen=True)
class NoveltyThreshold:
    """The novelty above which an image looks new, chosen without new labels, and its estimated error rates."""

    above: float
    error_known: float  # share of known images that look new
    error_new: float | None = None  # share of new images that do not; None: the detector cannot tell
    share: float | None = None  # of new images among the unlabelled ones of training, at least
    share_low: float | None = None  # 90 % interval
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
        """Fill it from all training images before the first step; nothing to do for a trained detector.

        feature: (N, width), of any length; label, group: (N,), -1 where there is none.
        """

    def refit(self, feature: Tensor, label: Tensor, before: Tensor, group: Tensor | None = None) -> None:
        """Fill it from the tuned features after the last step; before: (N,) novelty of the same images after `fit`."""
        self.fit(feature, label, group)

    def threshold(self) -> NoveltyThreshold | None:
        """Its own calibration; None: the threshold comes from labelled images (`exceeded_by_few`)."""
        return None


def detector_of(network: Network) -> Detector | None:
    """The detector of a network, also one on a part of the feature; None if it has none."""
    head = whole_heads(network.heads).get(DETECTOR)
    return head if isinstance(head, Detector) else None


def novelty(scores: Tensor) -> Tensor:
    """The novelty that a detector's scores mean: (N,) as it is, (N, M, 2) by Eq. 7."""
    return scores if scores.ndim == 1 else losses.novelty(scores)


def remember(memory: nn.Module, images: int) -> None:
    """Make room in a method's memory for the novelty of all training images before the first step."""
    memory.register_buffer("novelty", torch.zeros(images))


def remembered(network: Network) -> Tensor | None:
    """The novelty of each training image before the first step: (N,); None unless a fitted detector guides training."""
    return getattr(network.memory, "novelty", None)


def exceeded_by_few(labelled: NDArray[np.float32]) -> NoveltyThreshold | None:
    """The novelty that one in twenty labelled images exceeds; labelled: (L,) their novelty; None if there are none.

    If these images trained the detector, known images that it never saw exceed the threshold more often.
    """
    if not len(labelled):
        return None
    above = float(np.quantile(labelled, 1 - EXCEED))
    return NoveltyThreshold(above, float((labelled > above).mean()))
