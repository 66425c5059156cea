"""DebGCD (Liu & Han, ICLR 2025): SimGCD, a one-vs-all detector of novelty, and a debiased classifier (Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debgcd import losses, schedules
from debgcd.methods.base import Batch, Loss
from debgcd.methods.detector import DetectorOptions, DetectorShape, detector_loss, make_detector
from debgcd.methods.simgcd import SimGCD, SimGCDHeads, SimGCDOptions
from debgcd.model.backbone import Cut
from debgcd.model.heads import Prototypes
from debgcd.model.network import Network, Output
from debgcd.options import option
from debgcd.schedules import Progress


@dataclass(frozen=True)
class DebGCDHeads(DetectorShape, SimGCDHeads):
    """Shapes of the projections; the classifiers are plain prototypes."""


@dataclass(frozen=True)
class GuidingDetectorOptions(DetectorOptions):
    """L_sdl (Eq. 4–6): the one-vs-all detector."""

    tunes_tail: bool = option(
        True, "off: its gradient ends at the feature, so a large λ_sdl cannot harm the classifiers"
    )
    guides_start: bool = option(False, "with heads.warm_start: new prototypes from the images that look new")


@dataclass(frozen=True)
class DebiasedOptions:
    """L_adl (Eq. 8–13): the debiased classifier."""

    weight: float = option(1.0, "λ_adl", 0, 1e6)
    threshold: float = option(0.85, "τ", 0, 1)
    # After a warm start nearly every image passes a fixed τ at once; a share keeps the curriculum whatever the confidences.
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
        return None


class DebGCD(SimGCD):
    """L_all = L_gcd + λ_sdl · L_sdl + λ_adl · L_adl (Eq. 14). Only the GCD classifier remains at inference."""

    Options = DebGCDOptions
    cut = Cut(tuned=2)
    per_category = ("classifier", "debiased")
    options: DebGCDOptions

    @property
    def novel_first(self) -> bool:
        return self.options.ablation.detector and self.options.detector.guides_start

    def heads(self) -> nn.ModuleDict:
        heads, options = super().heads(), self.options
        if options.ablation.debiased and options.ablation.auxiliary:
            heads["debiased"] = Prototypes(self.sizes.width, self.sizes.k)
        if options.ablation.detector:
            heads["detector"] = make_detector(self.sizes, options.heads, options.detector, options.detector.tunes_tail)
        return heads

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        output, options = network(batch.tokens), self.options
        baseline = self.baseline_loss(output, batch, progress)
        total, terms, hard_label = baseline.total, dict(baseline.terms), None
        if options.ablation.detector:
            detection, detector_terms = detector_loss(output["detector"], batch, options.detector)
            total = total + options.detector.weight * detection
            terms |= detector_terms
        if options.ablation.debiased:
            debiased, debiased_terms, hard_label = self.debiased_loss(output, batch, progress)
            total = total + options.debiased.weight * debiased
            terms |= debiased_terms
        return Loss(total, terms, hard_label)

    def debiased_loss(
        self, output: Output, batch: Batch, progress: Progress
    ) -> tuple[Tensor, dict[str, Tensor | float], Tensor]:
        """Eq. 13, L_adl, and the hard labels (2B,): those of unlabelled rows that pass the threshold and, with guidance, F."""
        switches, debiased = self.options.ablation, self.options.debiased
        temperature = self.options.baseline.student_temperature
        student = output["debiased" if "debiased" in output else "classifier"]  # ablation row (2): no own classifier
        total = student.sum() * 0.0
        terms: dict[str, Tensor | float] = {}
        hard_label = torch.full((len(student),), -1, device=student.device)
        if switches.labelled:
            supervised = losses.supervised(student[batch.labelled], batch.y.repeat(2), temperature)
            total = total + supervised
            terms["debiased_labelled"] = supervised
        if switches.unlabelled:
            logits = output["classifier"].detach()[batch.free]
            s = losses.novelty(output["detector"].detach()[batch.free]) if "detector" in output else None
            if s is not None and switches.guidance and debiased.on_side:
                logits = losses.on_side(logits, s, self.sizes.known)
            use_certainty = switches.guidance and debiased.certainty
            use_consistency = switches.guidance and debiased.consistency
            threshold = self._threshold(logits, progress)
            unlabelled = losses.debiased_unlabelled(
                student[batch.free],
                logits,
                s,
                self.sizes.known,
                threshold,
                temperature,
                use_certainty=use_certainty,
                use_consistency=use_consistency,
            )
            total = total + unlabelled
            known = self.sizes.known
            rows = losses.accepted(logits, s, known, threshold, temperature, use_consistency=use_consistency)
            hard_label[batch.free] = torch.where(rows, logits.argmax(1), -1)
            if s is not None:
                terms["certainty"] = losses.certainty(s).mean() if len(s) else float("nan")
            terms["debiased_unlabelled"] = unlabelled
        return total, terms, hard_label

    def _threshold(self, logits: Tensor, progress: Progress) -> float | Tensor:
        """τ, or the confidence that the utilisation curve's share of these rows exceeds."""
        debiased = self.options.debiased
        if debiased.utilisation is None or not len(logits):
            return debiased.threshold
        confidence, choice = self.probabilities(logits).max(1)
        share = schedules.piecewise(debiased.utilisation, progress.share)
        return quantile_by_category(confidence, choice, share) if debiased.balanced else confidence.quantile(1 - share)

    def scores(self, output: Output) -> dict[str, Tensor]:
        debiased = {"debiased": self.probabilities(output["debiased"])} if "debiased" in output else {}
        return super().scores(output) | debiased

    def novelty(self, output: Output) -> Tensor | None:
        return losses.novelty(output["detector"]) if "detector" in output else None


def quantile_by_category(confidence: Tensor, choice: Tensor, share: float) -> Tensor:
    """For each row the confidence that a share of the rows with its choice exceeds: (N,), (N,) -> (N,).

    Of n such rows, share · n to the nearest whole number, so it is meant for batches with several rows per category. Rows
    that are equally sure pass together: nearly all of a category that is the only one on its side (`losses.on_side`).
    """
    same = choice[:, None] == choice
    place = (same & (confidence > confidence[:, None])).sum(1) + 1  # 1 for the surest of its category
    beyond = place - 0.5 > share * same.sum(1)
    return (same & beyond).to(confidence.dtype).mul(confidence).amax(1)
