"""SimGCD (Wen et al. 2023): a parametric classifier by self-distillation, with contrastive learning beside it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from debgcd import losses, schedules
from debgcd.cluster.kmeans import prototypes
from debgcd.config import Config
from debgcd.methods.protocol import Loss
from debgcd.model.heads import Projection, Prototypes
from debgcd.model.network import Output


class SimGCD:
    """L_gcd = L_cls + L_rep (Eq. 3)."""

    tuned_blocks = 1
    trains = True

    def __init__(self, config: Config, known: int):
        assert config.k is not None
        self.config, self.k, self.known = config, config.k, known

    def heads(self, width: int) -> nn.ModuleDict:
        shape = self.config.heads
        return nn.ModuleDict(
            {
                "classifier": Prototypes(width, self.k),
                "projection": Projection(width, shape.hidden, shape.projection_width, shape.projection_depth),
            }
        )

    def at_epoch(self, epoch: int, heads: nn.ModuleDict, features: Callable[[], Tensor], label: Tensor) -> None:
        """Before the first epoch: prototypes from semi-supervised k-means, if the configuration asks for it."""
        if epoch or not self.config.heads.warm_start:
            return
        start = prototypes(features(), label, self.k, seed=self.config.seed)
        for head in heads.values():
            if isinstance(head, Prototypes):
                head.weight.copy_(start)

    def loss(self, output: Output, label: Tensor, progress: float) -> Loss:
        assert output.logits is not None and output.projection is not None
        gcd = self.config.gcd
        labelled = (label >= 0).repeat(2)
        y = label[label >= 0]
        shape = {"cosine": schedules.cosine, "linear": schedules.linear}[gcd.teacher_shape]
        warmed_up = progress / gcd.teacher_warmup if gcd.teacher_warmup else 1.0
        teacher_temperature = shape(gcd.teacher_start, gcd.teacher_end, warmed_up)

        distillation = losses.self_distillation(output.logits, teacher_temperature, gcd.student_temperature)
        entropy = losses.mean_entropy(output.logits, gcd.student_temperature)
        supervised = losses.supervised(output.logits[labelled], y.repeat(2), gcd.student_temperature)
        info_nce = losses.info_nce(output.projection, gcd.unlabelled_temperature)
        contrastive = losses.supervised_contrastive(output.projection[labelled], y, gcd.labelled_temperature)

        share = gcd.supervised_weight
        classification = (1 - share) * (distillation - gcd.entropy_weight * entropy) + share * supervised
        representation = (1 - share) * info_nce + share * contrastive
        terms: dict[str, Tensor | float] = {
            "distillation": distillation,
            "mean_entropy": entropy,
            "supervised": supervised,
            "info_nce": info_nce,
            "supervised_contrastive": contrastive,
            "teacher_temperature": teacher_temperature,
        }
        return Loss(classification + representation, terms)

    def assign(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits / self.config.gcd.student_temperature, 1)
