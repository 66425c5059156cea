"""DebGCD (Liu & Han, ICLR 2025): SimGCD, a one-vs-all detector of novelty, and a debiased classifier (Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses, schedules
from debgcd.methods.kmeans import settle_centres
from debgcd.methods.protocol import Batch, Features, Loss
from debgcd.methods.simgcd import SimGCD
from debgcd.model.heads import Centres, Detector, Prototypes
from debgcd.model.network import Output
from debgcd.schedules import Progress


class DebGCD(SimGCD):
    """L_all = L_gcd + λ_sdl · L_sdl + λ_adl · L_adl (Eq. 14). Only the GCD classifier remains at inference.

    Without L_gcd (Table 12: "L_sdl") no classifier is trained; the categories are then clusters of the tuned features.
    """

    tuned_blocks = 2

    @property
    def clusters(self) -> bool:  # type: ignore[override]
        return not self.config.ablation.gcd

    @property
    def novel_first(self) -> bool:
        return self.config.ablation.detector and self.config.detector.guides_start

    def heads(self, width: int) -> nn.ModuleDict:
        shape, switches = self.config.heads, self.config.ablation
        heads = super().heads(width) if switches.gcd else nn.ModuleDict({"classifier": Centres(width, self.k)})
        if switches.debiased and switches.auxiliary:
            heads["debiased"] = Prototypes(width, self.k)
        if switches.detector:
            heads["detector"] = Detector(
                width,
                shape.hidden,
                shape.detector_width,
                shape.detector_depth,
                self.known,
                self.config.detector.temperature,
                self.config.detector.tunes_tail,
            )
        return heads

    def begin(self, heads: nn.ModuleDict, features: Features, label: Tensor) -> None:
        if self.config.ablation.gcd:
            super().begin(heads, features, label)

    def settle(self, heads: nn.ModuleDict, features: Features, label: Tensor) -> None:
        if not self.config.ablation.gcd:
            settle_centres(heads, normalize(features(), dim=1), label, self.config)

    def loss(self, output: Output, batch: Batch, progress: Progress) -> Loss:
        none = Loss(output.feature.new_zeros(()), {})
        gcd = super().loss(output, batch, progress) if self.config.ablation.gcd else none
        total, terms, hard_label = gcd.total, dict(gcd.terms), None
        if self.config.ablation.detector:
            detection, detector_terms = self._detector_loss(output, batch)
            total = total + self.config.detector.weight * detection
            terms |= detector_terms
        if self.config.ablation.debiased:
            debiased, debiased_terms, hard_label = self._debiased_loss(output, batch, progress)
            total = total + self.config.debiased.weight * debiased
            terms |= debiased_terms
        return Loss(total, terms, hard_label)

    def _detector_loss(self, output: Output, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """Eq. 6, L_sdl; with the weights and the extra terms that the presets `released` and `small` have."""
        assert output.detector is not None
        detector = self.config.detector
        free = output.detector[batch.free]
        supervised = losses.one_vs_all_labelled(output.detector[batch.labelled], batch.y.repeat(2))
        entropy = losses.one_vs_all_entropy(free)
        if detector.entropy_over == "mean":
            entropy = entropy / self.known
        total = supervised + detector.entropy_weight * entropy
        terms: dict[str, Tensor | float] = {"detector_labelled": supervised, "detector_entropy": entropy}
        if detector.unlabelled_weight:
            unlabelled = losses.one_vs_all_unlabelled(free)
            total = total + detector.unlabelled_weight * unlabelled
            terms["detector_unlabelled"] = unlabelled
        if detector.consistency_weight:
            consistency = losses.one_vs_all_consistency(free)
            total = total + detector.consistency_weight * consistency
            terms["detector_consistency"] = consistency
        return total, terms

    def _debiased_loss(
        self, output: Output, batch: Batch, progress: Progress
    ) -> tuple[Tensor, dict[str, Tensor | float], Tensor]:
        """Eq. 13, L_adl, and the hard labels (2B,): those of unlabelled rows that pass the threshold and, with guidance, F."""
        assert output.logits is not None
        switches, debiased = self.config.ablation, self.config.debiased
        temperature = self.config.gcd.student_temperature
        student = (
            output.debiased if output.debiased is not None else output.logits
        )  # ablation row (2): no own classifier
        total = student.sum() * 0.0
        terms: dict[str, Tensor | float] = {}
        hard_label = torch.full((len(student),), -1, device=student.device)
        if switches.labelled:
            supervised = losses.supervised(student[batch.labelled], batch.y.repeat(2), temperature)
            total = total + supervised
            terms["debiased_labelled"] = supervised
        if switches.unlabelled:
            logits = output.logits.detach()[batch.free]
            s = losses.novelty(output.detector.detach()[batch.free]) if output.detector is not None else None
            if s is not None and switches.guidance and debiased.on_side:
                logits = losses.on_side(logits, s, self.known)
            use_certainty = switches.guidance and debiased.certainty
            use_consistency = switches.guidance and debiased.consistency
            threshold = self._threshold(logits, progress)
            unlabelled = losses.debiased_unlabelled(
                student[batch.free],
                logits,
                s,
                self.known,
                threshold,
                temperature,
                use_certainty=use_certainty,
                use_consistency=use_consistency,
            )
            total = total + unlabelled
            rows = losses.accepted(logits, s, self.known, threshold, temperature, use_consistency=use_consistency)
            hard_label[batch.free] = torch.where(rows, logits.argmax(1), -1)
            if s is not None:
                terms["certainty"] = losses.certainty(s).mean() if len(s) else float("nan")
            terms["debiased_unlabelled"] = unlabelled
        return total, terms, hard_label

    def _threshold(self, logits: Tensor, progress: Progress) -> float | Tensor:
        """τ, or the confidence that the utilisation curve's share of these rows exceeds."""
        debiased = self.config.debiased
        if debiased.utilisation is None or not len(logits):
            return debiased.threshold
        confidence, choice = self.assign(logits).max(1)
        share = schedules.piecewise(debiased.utilisation, progress.share)
        return quantile_by_category(confidence, choice, share) if debiased.balanced else confidence.quantile(1 - share)


def quantile_by_category(confidence: Tensor, choice: Tensor, share: float) -> Tensor:
    """For each row the confidence that a share of the rows with its choice exceeds: (N,), (N,) -> (N,).

    Of n such rows, share · n to the nearest whole number, so it is meant for batches with several rows a category. Rows
    that are equally sure pass together: nearly all of a category that is the only one on its side (`losses.on_side`).
    """
    same = choice[:, None] == choice
    place = (same & (confidence > confidence[:, None])).sum(1) + 1  # 1 for the surest of its category
    beyond = place - 0.5 > share * same.sum(1)
    return (same & beyond).to(confidence.dtype).mul(confidence).amax(1)
