"""PIM (Chiaroni et al. 2023): an answer from frozen features in seconds, by information maximisation.

By default it is the frozen answer: what `debgcd train --epochs 0` gives, and where DebGCD starts with the preset `small`. The
presets `paper` and `released` have the published form: categories begin at semi-supervised k-means, without mean shift.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from debgcd.cluster.settle import SettleOptions
from debgcd.config.schema import Options
from debgcd.methods.base import About, Context, Method
from debgcd.methods.shared import answer
from debgcd.model.backbone import TrunkSplit
from debgcd.model.heads import Settled
from debgcd.novelty.base import DETECTOR, Detector
from debgcd.novelty.vote import Neighbours


@dataclass(frozen=True)
class PIMOptions(Options):
    pim: SettleOptions = SettleOptions()


class PIM(Method):
    """A linear head on the frozen features, and novelty by the vote of the nearest images."""

    about = About("PIM", 2023, "ICCV", "a linear head on frozen features that maximises mutual information")
    Options = PIMOptions
    cut = TrunkSplit(tuned=0)
    trains = False
    options: PIMOptions

    def heads(self) -> nn.ModuleDict:
        classifier = Settled(self.sizes.width, self.sizes.k, self.sizes.images)
        return nn.ModuleDict({"classifier": classifier, DETECTOR: Neighbours(self.sizes.width, self.sizes.images)})

    def finalise(self, context: Context) -> None:
        feature, detector = context.features(), context.network.heads[DETECTOR]
        assert isinstance(detector, Detector)
        detector.fit(feature, context.voters, context.group)
        answer(self, context, self.options.pim)
