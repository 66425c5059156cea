"""DebGCD (Liu & Han, ICLR 2025): SimGCD, a one-vs-all novelty detector, and a debiased classifier (Algorithm 1).

`DetectorAlone` trains only the detector, the first row of the paper's Table 12.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.config import schedules
from debgcd.config.schedules import Progress
from debgcd.config.schema import option
from debgcd.methods.base import About, Batch, Context, Loss, Method
from debgcd.methods.shared import KMeansOptions, frozen_prototypes, settle_centres, start_prototypes, warm_prototypes
from debgcd.methods.simgcd import SimGCD, SimGCDHeads, SimGCDOptions
from debgcd.model.backbone import TrunkSplit
from debgcd.model.heads import Centres, Prototypes
from debgcd.model.network import Network, Output
from debgcd.novelty.base import Detector, detector_of, novelty, remember, remembered
from debgcd.novelty.one_vs_all import DetectorOptions, DetectorShape, DistanceDetector, OneVsAll, detector_loss
from debgcd.novelty.vote import Neighbours


@dataclass(frozen=True)
class DebGCDHeads(DetectorShape, SimGCDHeads):
    """Shapes of the two projections and of the detector; both classifiers are plain prototypes."""


@dataclass(frozen=True)
class GuidingDetectorOptions(DetectorOptions):
    """The novelty detector, and the weight of L_sdl (Eq. 4–6), which trains the one-vs-all kind."""

    kind: Literal["one-vs-all", "vote", "distance"] = option(
        "one-vs-all", "the paper's; vote: of the nearest images; distance: to the means of the known classes"
    )
    labelled_fraction: float | None = option(
        None, "vote: the share of all images of known classes that are labelled, if known", 1e-6, 1
    )
    tunes_tail: bool = option(
        True, "off: its gradient ends at the feature, so a large λ_sdl cannot harm the classifiers"
    )
    guides_start: bool = option(
        False, "with heads.warm_start: start from the frozen answer, whose new categories are images that look new"
    )


@dataclass(frozen=True)
class DebiasedOptions:
    """L_adl (Eq. 8–13): the debiased classifier."""

    weight: float = option(1.0, "λ_adl", 0, 1e6)
    threshold: float = option(0.85, "τ", 0, 1)
    # After a warm start nearly every image passes a fixed τ from step 1; a share keeps the curriculum at any confidence.
    utilisation: tuple[tuple[float, float], ...] | None = option(
        None, "instead of τ: the share of unlabelled rows to let through, as (progress, share) points"
    )
    balanced: bool = option(
        False, "with utilisation: that share of each category, so that the surest do not take it all"
    )
    certainty: bool = option(True, "weigh by d (Eq. 10)")
    consistency: bool = option(True, "require F (Eq. 9); off in the public code")
    on_side: bool = option(False, "with guidance: hard labels among known or new categories, as the detector says")


@dataclass(frozen=True)
class AblationOptions:
    """Switches named after the columns of the paper's ablation table and of its loss table.

    Each row is one line of YAML, e.g. row (3): `ablation: {detector: false, guidance: false}`.
    """

    debiased: bool = option(True, "'Debiased Learning'")
    auxiliary: bool = option(True, "'Auxiliary Classifier'; off: the hard labels train the GCD classifier itself")
    detector: bool = option(True, "'Semantic Dist. Learning'")
    guidance: bool = option(True, "'Dist. Guidance': certainty and consistency in Eq. 11, and debiased.on_side")
    labelled: bool = option(True, "L_adl^s, Eq. 12")
    unlabelled: bool = option(True, "L_adl^u, Eq. 11")


@dataclass(frozen=True)
class DebGCDOptions(SimGCDOptions):
    heads: DebGCDHeads = DebGCDHeads()
    detector: GuidingDetectorOptions = GuidingDetectorOptions()
    debiased: DebiasedOptions = DebiasedOptions()
    ablation: AblationOptions = AblationOptions()

    def contradiction(self) -> str | None:
        switches, utilisation = self.ablation, self.debiased.utilisation
        if utilisation == ():
            return "debiased.utilisation has no points; give [[0, 0], [1, 0.5]] or the like, or null"
        for x, y in utilisation or ():
            if not (0 <= x <= 1 and 0 <= y <= 1):
                return f"debiased.utilisation has the point [{x:g}, {y:g}]; both must lie between 0 and 1"
        if switches.guidance and not (switches.debiased and switches.detector):
            return "ablation.guidance needs ablation.debiased and ablation.detector; set guidance: false"
        if switches.debiased and not (switches.labelled or switches.unlabelled):
            return (
                "without ablation.labelled and ablation.unlabelled there is no debiased learning; set debiased: false"
            )
        if switches.auxiliary and not switches.debiased:
            return "ablation.auxiliary needs ablation.debiased; set auxiliary: false"
        if self.detector.labelled_fraction is not None and self.detector.kind != "vote":
            return f"detector.labelled_fraction is for the vote, not for {self.detector.kind}; omit it"
        return None

    def idle(self) -> dict[str, str]:
        switches, found = self.ablation, dict[str, str]()
        shape = ("heads.detector_depth", "heads.detector_width")
        if not switches.detector:
            found |= dict.fromkeys(("detector", *shape), "ablation.detector is off")
        elif self.detector.kind != "one-vs-all":
            of_loss = (f"detector.{field.name}" for field in fields(DetectorOptions))
            why = f"detector.kind is {self.detector.kind}, which no loss trains"
            found |= dict.fromkeys((*of_loss, "detector.tunes_tail", *shape), why)
        if not switches.debiased:
            found["debiased"] = "ablation.debiased is off"
        elif self.debiased.utilisation is not None:
            found["debiased.threshold"] = "debiased.utilisation takes a share instead"
        return found


class DebGCD(SimGCD):
    """L_all = L_gcd + λ_sdl · L_sdl + λ_adl · L_adl (Eq. 14). Only the GCD classifier remains at inference."""

    about = About("DebGCD", 2025, "ICLR", "SimGCD, a novelty detector, and a debiased classifier that it guides")
    Options = DebGCDOptions
    cut = TrunkSplit(tuned=2)
    options: DebGCDOptions

    def heads(self) -> nn.ModuleDict:
        heads, switches = super().heads(), self.options.ablation
        if switches.debiased and switches.auxiliary:
            heads["debiased"] = Prototypes(self.sizes.width, self.sizes.k)
        if switches.detector:
            heads["detector"] = self._make_detector()
        return heads

    def _make_detector(self) -> Detector:
        """The detector of the kind that `detector.kind` names."""
        sizes, options = self.sizes, self.options.detector
        if options.kind == "vote":
            return Neighbours(sizes.width, sizes.images, options.labelled_fraction)
        if options.kind == "distance":
            return DistanceDetector(sizes.width, sizes.known)
        return OneVsAll(sizes.width, sizes.known, self.options.heads, options.temperature, options.tunes_tail)

    def memory(self, network: Network) -> nn.Module:
        memory, detector = super().memory(network), detector_of(network)
        if detector is not None and not detector.learned:
            remember(memory, self.sizes.images)
        return memory

    def before_training(self, context: Context) -> None:
        """Fit a detector that no loss trains and store the novelty of all images; then initialise the prototypes."""
        detector, before = detector_of(context.network), remembered(context.network)
        if detector is not None and before is not None:
            features = context.features()
            detector.fit(features, context.voters, context.group)
            before.copy_(novelty(detector(features)))
        guided = detector is not None and self.options.detector.guides_start
        start = frozen_prototypes if guided else warm_prototypes
        start_prototypes(context, partial(start, self, context) if self.options.heads.warm_start else None)

    def finalise(self, context: Context) -> None:
        """Refit a detector that no loss trains to the tuned features."""
        detector, before = detector_of(context.network), remembered(context.network)
        if detector is not None and before is not None:
            detector.refit(context.features(), context.voters, before, context.group)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        """Eq. 14: the baseline, the detector and the debiased classifier, weighted."""
        output, options = network(batch.tokens), self.options
        baseline = self.baseline_loss(output, batch, progress)
        total, terms, hard_label = baseline.total, dict(baseline.terms), None
        if "detector" in output:
            scores, y = output["detector"], batch.y.repeat(2)
            detection, detector_terms = detector_loss(
                scores[batch.labelled], y, scores[batch.unlabelled], options.detector
            )
            total = total + options.detector.weight * detection
            terms |= detector_terms
        if options.ablation.debiased:
            s = self._novelty_of_unlabelled(network, output, batch)
            debiased, debiased_terms, hard_label = self.debiased_loss(output, s, batch, progress)
            total = total + options.debiased.weight * debiased
            terms |= debiased_terms
        return Loss(total, terms, hard_label)

    def _novelty_of_unlabelled(self, network: Network, output: Output, batch: Batch) -> Tensor | None:
        """(V·F,) novelty: Eq. 7 if a loss trains the detector, else that stored before the first step; None without one."""
        if not self.options.ablation.detector:
            return None
        if "detector" in output:
            return novelty(output["detector"].detach()[batch.unlabelled])
        before = remembered(network)
        assert before is not None
        return before[batch.image].repeat(batch.views)[batch.unlabelled]

    def debiased_loss(
        self, output: Output, s: Tensor | None, batch: Batch, progress: Progress
    ) -> tuple[Tensor, dict[str, Tensor | float], Tensor]:
        """Eq. 13: L_adl, its terms, and the hard labels (2B,), -1 for rows that fail the threshold or, with guidance, F.

        s: (2F,) the novelty of the unlabelled rows, or None.
        """
        switches, debiased = self.options.ablation, self.options.debiased
        temperature = self.options.baseline.student_temperature
        # ablation row (2) has no debiased classifier
        student = output["debiased" if "debiased" in output else "classifier"]
        total = student.sum() * 0.0
        terms: dict[str, Tensor | float] = {}
        hard_label = torch.full((len(student),), -1, device=student.device)
        if switches.labelled:
            supervised = losses.supervised(student[batch.labelled], batch.y.repeat(2), temperature)
            total = total + supervised
            terms["debiased_labelled"] = supervised
        if switches.unlabelled:
            logits = output["classifier"].detach()[batch.unlabelled]
            if s is not None and switches.guidance and debiased.on_side:
                logits = losses.on_side(logits, s, self.sizes.known)
            pseudo_label = losses.hard_labels(
                logits,
                s,
                self.sizes.known,
                self._threshold(logits, progress),
                temperature,
                use_consistency=switches.guidance and debiased.consistency,
            )
            hard_label[batch.unlabelled] = pseudo_label
            weight = None
            if s is not None:
                certainty = losses.certainty(s)
                terms["certainty"] = certainty.mean() if len(s) else float("nan")
                weight = certainty if switches.guidance and debiased.certainty else None
            unlabelled = losses.learn_hard_labels(student[batch.unlabelled], pseudo_label, weight, temperature)
            total = total + unlabelled
            terms["debiased_unlabelled"] = unlabelled
        return total, terms, hard_label

    def _threshold(self, logits: Tensor, progress: Progress) -> float | Tensor:
        """τ; with `debiased.utilisation`, the quantile of confidence that its current share of these rows exceeds."""
        debiased = self.options.debiased
        if debiased.utilisation is None or not len(logits):
            return debiased.threshold
        confidence, choice = self.probabilities(logits).max(1)
        share = schedules.piecewise(debiased.utilisation, progress.share)
        return quantile_by_category(confidence, choice, share) if debiased.balanced else confidence.quantile(1 - share)

    def scores(self, output: Output) -> dict[str, Tensor]:
        debiased = {"debiased": self.probabilities(output["debiased"])} if "debiased" in output else {}
        return super().scores(output) | debiased


def quantile_by_category(confidence: Tensor, choice: Tensor, share: float) -> Tensor:
    """Per row, the confidence that a share of the rows with the same choice exceeds: (N,), (N,) -> (N,).

    Of n rows with one choice, round(share · n) exceed it, so a batch should have several rows per category. Ties pass
    together: nearly all rows of a category that is the only one on its side (`losses.on_side`).
    """
    same = choice[:, None] == choice
    # 1 for the most confident row of its category
    rank = (same & (confidence > confidence[:, None])).sum(1) + 1
    beyond = rank - 0.5 > share * same.sum(1)
    return (same & beyond).to(confidence.dtype).mul(confidence).amax(1)


@dataclass(frozen=True)
class DetectorAloneOptions(KMeansOptions):
    heads: DetectorShape = DetectorShape()
    detector: DetectorOptions = DetectorOptions()

    def contradiction(self) -> str | None:
        return None if self.detector.weight else "detector.weight is 0, so there is nothing to train; set it above 0"


class DetectorAlone(Method):
    """λ_sdl · L_sdl alone. No classifier is trained; the categories are clusters of the tuned features."""

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
