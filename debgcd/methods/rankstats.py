"""RankStats+ (Han et al. 2020, as ported by Vaze et al. 2022): images whose features share the top dimensions are pairs.

A re-implementation, since the port was never released. The losses follow the public code of RankStats. As in the description
of the port, one head has a row for each of the K categories: its first M rows learn the labels, all rows learn the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.config.schema import Options, option
from debgcd.methods.base import About, Batch, Loss
from debgcd.methods.shared import PrototypeMethod, WarmStart
from debgcd.model.network import Network


@dataclass(frozen=True)
class RankStatsObjective:
    """L = L_CE + L_BCE + ω(t) L_MSE."""

    top: int = option(5, "dimensions that must be the same, as published", 1, 4096)
    consistency_weight: float = option(50.0, "λ, the largest ω; the public script for CIFAR-100", 0, 1e6)
    ramp: float = option(0.75, "share of the run in which ω grows: 150 of 200 epochs, as in that script", 0, 1)
    temperature: float = option(0.1, "of the head, as for all classifiers of cosines here", 1e-4, 100)


@dataclass(frozen=True)
class RankStatsOptions(Options):
    heads: WarmStart = WarmStart()
    rankstats: RankStatsObjective = RankStatsObjective()


class RankStats(PrototypeMethod):
    """Labels for the first M rows, pairs by rank statistics for all K, and two views that agree."""

    about = About("RankStats+", 2022, "CVPR", "images whose features have the same largest dimensions form pairs")
    Options: ClassVar[type[Options]] = RankStatsOptions
    options: RankStatsOptions

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        """As in the public code: labels and ranks from the first views, pairs of a first and a second view."""
        options, output = self.options.rankstats, network(batch.tokens)
        logits, temperature = output["classifier"], options.temperature
        known = logits[:, : self.sizes.known]
        supervised = losses.supervised(known[batch.labelled[: len(batch.y)]], batch.y, temperature)
        first_views = batch.unlabelled[: len(batch.unlabelled) // 2]
        same = losses.same_ranks(output.feature[first_views], options.top)
        pairs = losses.pairwise_agreement(logits[batch.unlabelled], same, temperature)
        consistency = losses.view_consistency(known, temperature) + losses.view_consistency(logits, temperature)
        weight = options.consistency_weight * losses.ramp(progress.of_ramp(options.ramp))
        terms: dict[str, Tensor | float] = {
            "supervised": supervised,
            "pairs": pairs,
            "consistency": consistency,
            "same": same.float().mean() if len(same) else float("nan"),
            "consistency_weight": weight,
        }
        return Loss(supervised + pairs + weight * consistency, terms)

    @property
    def temperature(self) -> float:
        return self.options.rankstats.temperature
