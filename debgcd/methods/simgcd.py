"""SimGCD (Wen et al. 2023): a parametric classifier by self-distillation, with contrastive learning beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from debgcd import losses, schedules
from debgcd.cluster.prototypes import prototypes
from debgcd.config import Config
from debgcd.methods.protocol import Batch, Features, Loss
from debgcd.methods.representation import representation
from debgcd.model.heads import Projection, Prototypes
from debgcd.model.network import Output
from debgcd.progress import progress
from debgcd.schedules import Progress


class SimGCD:
    """L_gcd = L_cls + L_rep (Eq. 3)."""

    tuned_blocks = 1
    trains = True
    clusters = False

    def __init__(self, config: Config, known: int):
        assert config.k is not None
        self.config, self.k, self.known = config, config.k, known

    @property
    def novel_first(self) -> bool:
        """Whether a warm start asks which images look new before it clusters."""
        return False

    def heads(self, width: int) -> nn.ModuleDict:
        shape = self.config.heads
        return nn.ModuleDict(
            {
                "classifier": Prototypes(width, self.k),
                "projection": Projection(width, shape.hidden, shape.projection_width, shape.projection_depth),
            }
        )

    def begin(self, heads: nn.ModuleDict, features: Features, label: Tensor) -> None:
        """Prototypes from semi-supervised k-means, if the configuration asks for it."""
        if not self.config.heads.warm_start:
            return
        with progress("clustering") as report:
            start = prototypes(
                features(), label, self.k, novel_first=self.novel_first, seed=self.config.seed, on_progress=report
            )
        for head in heads.values():
            if isinstance(head, Prototypes):
                head.weight.copy_(start)

    def settle(self, heads: nn.ModuleDict, features: Features, label: Tensor) -> None:
        """Every head is trained by gradients."""

    def loss(self, output: Output, batch: Batch, progress: Progress) -> Loss:
        assert output.logits is not None and output.projection is not None
        gcd = self.config.gcd
        shape = {"cosine": schedules.cosine, "linear": schedules.linear}[gcd.teacher_shape]
        warmed_up = progress.of_warmup(gcd.teacher_warmup)
        teacher_temperature = shape(gcd.teacher_start, gcd.teacher_end, warmed_up)

        distillation = losses.self_distillation(output.logits, teacher_temperature, gcd.student_temperature)
        entropy = losses.mean_entropy(output.logits, gcd.student_temperature)
        supervised = losses.supervised(output.logits[batch.labelled], batch.y.repeat(2), gcd.student_temperature)
        share = gcd.supervised_weight
        classification = (1 - share) * (distillation - gcd.entropy_weight * entropy) + share * supervised
        contrast, contrast_terms = representation(output.projection, batch, gcd)
        terms: dict[str, Tensor | float] = {
            "distillation": distillation,
            "mean_entropy": entropy,
            "supervised": supervised,
            **contrast_terms,
            "teacher_temperature": teacher_temperature,
        }
        return Loss(classification + contrast, terms)

    def assign(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits / self.config.gcd.student_temperature, 1)
