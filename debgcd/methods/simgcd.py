"""SimGCD (Wen et al. 2023): a parametric classifier trained by self-distillation, plus contrastive learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.config.schema import Options
from debgcd.methods.base import About, Batch, Loss
from debgcd.methods.shared import BaselineOptions, ProjectionOptions, PrototypeMethod, WarmStart, representation
from debgcd.model.network import Network, Output


@dataclass(frozen=True)
class SimGCDHeads(WarmStart, ProjectionOptions):
    """The projection for L_rep; the classifier is plain prototypes."""


@dataclass(frozen=True)
class SimGCDOptions(Options):
    heads: SimGCDHeads = SimGCDHeads()
    baseline: BaselineOptions = BaselineOptions()


class SimGCD(PrototypeMethod):
    """L_gcd = L_cls + L_rep (Eq. 3)."""

    about = About("SimGCD", 2023, "ICCV", "a classifier by self-distillation, balanced by its mean entropy")
    Options: ClassVar[type[Options]] = SimGCDOptions
    options: SimGCDOptions

    def heads(self) -> nn.ModuleDict:
        heads = super().heads()
        heads["projection"] = self.options.heads.projection(self.sizes.width)
        return heads

    @property
    def temperature(self) -> float:
        return self.options.baseline.student_temperature

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        return self.baseline_loss(network(batch.tokens), batch, progress)

    def baseline_loss(self, output: Output, batch: Batch, progress: Progress) -> Loss:
        """Eq. 3, L_gcd."""
        options, logits = self.options.baseline, output["classifier"]
        teacher_temperature = options.teacher_temperature(progress)
        distillation = losses.self_distillation(logits, teacher_temperature, options.student_temperature)
        entropy = losses.mean_entropy(logits, options.student_temperature)
        supervised = losses.supervised(logits[batch.labelled], batch.y.repeat(2), options.student_temperature)
        share = options.supervised_weight
        classification = (1 - share) * (distillation - options.entropy_weight * entropy) + share * supervised
        contrast, contrast_terms = representation(output["projection"], batch, options)
        terms: dict[str, Tensor | float] = {
            "distillation": distillation,
            "mean_entropy": entropy,
            "supervised": supervised,
            **contrast_terms,
            "teacher_temperature": teacher_temperature,
        }
        return Loss(classification + contrast, terms)
