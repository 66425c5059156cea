"""L_sdl alone: the paper's novelty detector without a classifier (Table 12, first row)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.functional import normalize

from debgcd.config.schedules import Progress
from debgcd.methods.base import About, Batch, Context, Loss, Method
from debgcd.methods.kmeans import KMeansOptions, settle_centres
from debgcd.model.backbone import TrunkSplit
from debgcd.model.heads import Centres
from debgcd.model.network import Network
from debgcd.novelty.one_vs_all import DetectorOptions, DetectorShape, OneVsAll, detector_loss


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
    cut = TrunkSplit(tuned=2)
    clusters = True
    options: DetectorAloneOptions

    def heads(self) -> nn.ModuleDict:
        classifier = Centres(self.sizes.width, self.sizes.k)
        detector = OneVsAll(self.sizes.width, self.sizes.known, self.options.heads, self.options.detector.temperature)
        return nn.ModuleDict({"classifier": classifier, "detector": detector})

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        scores, options = network(batch.tokens)["detector"], self.options.detector
        total, terms = detector_loss(scores[batch.labelled], batch.y.repeat(2), scores[batch.unlabelled], options)
        return Loss(options.weight * total, terms)

    def finalise(self, context: Context) -> None:
        settle_centres(self, context, normalize(context.features(), dim=1))
