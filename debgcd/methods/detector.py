"""L_sdl (Eq. 4–6): the one-vs-all detector of novelty, as a part of DebGCD and alone (the paper's Table 12, first row)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.config.schema import option
from debgcd.methods.base import About, Batch, Context, Loss, Method, Sizes
from debgcd.methods.kmeans import KMeansOptions, settle_centres
from debgcd.model.backbone import Cut
from debgcd.model.heads import Centres, Detector
from debgcd.model.network import Network, Output


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


@dataclass(frozen=True)
class DetectorAloneOptions(KMeansOptions):
    heads: DetectorShape = DetectorShape()
    detector: DetectorOptions = DetectorOptions()

    def contradiction(self) -> str | None:
        return None if self.detector.weight else "detector.weight is 0, so there is nothing to train; set it above 0"


class DetectorAlone(Method):
    """λ_sdl · L_sdl and nothing else. No classifier is trained; the categories are clusters of the tuned features."""

    about = About("L_sdl", 2025, "ICLR", "DebGCD's novelty detector alone, the first row of its Table 12")
    Options = DetectorAloneOptions
    cut = Cut(tuned=2)
    clusters = True
    options: DetectorAloneOptions

    def heads(self) -> nn.ModuleDict:
        classifier = Centres(self.sizes.width, self.sizes.k)
        detector = make_detector(self.sizes, self.options.heads, self.options.detector)
        return nn.ModuleDict({"classifier": classifier, "detector": detector})

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        total, terms = detector_loss(network(batch.tokens)["detector"], batch, self.options.detector)
        return Loss(self.options.detector.weight * total, terms)

    def settle(self, context: Context) -> None:
        settle_centres(self, context, normalize(context.features(), dim=1))

    def novelty(self, output: Output) -> Tensor | None:
        return losses.novelty(output["detector"]) if "detector" in output else None


def make_detector(sizes: Sizes, shape: DetectorShape, options: DetectorOptions, tunes_tail: bool = True) -> Detector:
    """ρ_s and its one-vs-all heads."""
    return Detector(
        sizes.width,
        shape.hidden,
        shape.detector_width,
        shape.detector_depth,
        sizes.known,
        options.temperature,
        tunes_tail,
    )


def detector_loss(said: Tensor, batch: Batch, options: DetectorOptions) -> tuple[Tensor, dict[str, Tensor | float]]:
    """Eq. 6, L_sdl, with the weights and the extra terms that the presets `released` and `small` have; and its terms.

    said: (2B, M, 2) of the detector.
    """
    free = said[batch.free]
    supervised = losses.one_vs_all_labelled(said[batch.labelled], batch.y.repeat(2))
    entropy = losses.one_vs_all_entropy(free)
    if options.entropy_over == "mean":
        entropy = entropy / said.shape[1]
    total = supervised + options.entropy_weight * entropy
    terms: dict[str, Tensor | float] = {"detector_labelled": supervised, "detector_entropy": entropy}
    if options.unlabelled_weight:
        unlabelled = losses.one_vs_all_unlabelled(free)
        total = total + options.unlabelled_weight * unlabelled
        terms["detector_unlabelled"] = unlabelled
    if options.consistency_weight:
        consistency = losses.one_vs_all_consistency(free)
        total = total + options.consistency_weight * consistency
        terms["detector_consistency"] = consistency
    return total, terms
