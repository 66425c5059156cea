"""PromptCAL (Zhang et al. 2023): prompts in every block of a ViT, then positives from a consensus neighbour graph.

From the public code (MIT): prompts, losses, teacher, memory, graph, weights. Both stages are one run: the first takes
`first_share` of the steps, or none with `--start RUN`. docs/methods.md lists the differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.config.schema import Config, option
from debgcd.errors import UsageError
from debgcd.methods.base import About, Batch, Context, Loss
from debgcd.methods.shared import ContrastiveMethod, GCDOptions, fit_detector, representation, settle_centres
from debgcd.model.backbone import Backbone, TrunkSplit
from debgcd.model.heads import Centres, Part
from debgcd.model.network import Network, Output, Queue, Teacher
from debgcd.novelty.one_vs_all import DistanceDetector

HALVES = ("cls", "prompts")  # the two halves of the feature; each has a projection and a memory


@dataclass(frozen=True)
class PromptCALObjective:
    prompts: int = option(5, "per block, as published", 1, 1000)
    supervised: int = option(2, "of them with a loss of their own, as published", 1, 1000)
    prompt_weight: float = option(0.35, "of that loss, as published", 0, 1e6)
    first_share: float = option(2 / 3, "of the run in the first stage: the public 200 of 300 epochs", 0, 1)
    ramp: float = option(2.0, "epochs in which the neighbours' weight grows, as published", 0, 1e6)
    neighbour_weight: float = option(0.6, "as published", 0, 1)
    neighbours: int = option(5, "as published for fine-grained sets; 10 for CIFAR and ImageNet-100", 1, 1000)
    quantile: float = option(0.8, "as published for fine-grained sets; 0.5 for CIFAR and ImageNet-100", 0, 1)
    temperature: float = option(0.07, "of the contrast with neighbours, as published", 1e-4, 100)
    memory: int = option(4096, "rows remembered, as published", 2, 10**7)
    negatives: int = option(1024, "of them kept as negatives of a row, on average; as published", 1, 10**7)
    momentum: float = option(0.999, "of the teacher, as published", 0, 1)


@dataclass(frozen=True)
class PromptCALOptions(GCDOptions):
    promptcal: PromptCALObjective = PromptCALObjective()


class Memory(nn.Module):
    """The teacher, and a queue of its latest features, both halves."""

    def __init__(self, network: Network, rows: int, half: int):
        super().__init__()
        self.teacher = Teacher(network)
        self.queue = Queue(rows, len(HALVES), half)

    @staticmethod
    def of(network: Network) -> Memory:
        assert isinstance(network.memory, Memory)
        return network.memory


class PromptCAL(ContrastiveMethod):
    """GCD with prompts; the second stage contrasts with a teacher, and adds neighbours in the graph as positives."""

    about = About(
        "PromptCAL", 2023, "CVPR", "prompts in every block; positives from a graph of agreed neighbours", needs_vit=True
    )
    Options = PromptCALOptions
    cut = TrunkSplit(tuned=1, early="prompts of its blocks")
    options: PromptCALOptions

    @classmethod
    def prompted(cls, backbone: Backbone, config: Config) -> Backbone:
        from debgcd.model.prompts import PromptedViT
        from debgcd.model.vit import VitBackbone

        if not isinstance(backbone, VitBackbone):
            raise UsageError(f"promptcal needs a ViT, and {backbone.identity.name} is none; choose one with --backbone")
        how: PromptCALObjective = config.options.promptcal
        return PromptedViT(backbone, how.prompts, min(how.supervised, how.prompts), config.seed)

    def heads(self) -> nn.ModuleDict:
        half = self.sizes.width // 2
        parts = {
            "classifier": Part(Centres(half, self.sizes.k), 0, half),
            "detector": Part(DistanceDetector(half, self.sizes.known), 0, half),
        }
        halves = {name: Part(self.projection(half), i * half, (i + 1) * half) for i, name in enumerate(HALVES)}
        return nn.ModuleDict(parts | halves)

    def memory(self, network: Network) -> nn.Module:
        return Memory(network, self.options.promptcal.memory, self.sizes.width // 2)

    def before_training(self, context: Context) -> None:
        Memory.of(context.network).teacher.follow(context.network, 0.0)  # the network may come from another run

    def _neighbour_weight(self, progress: Progress) -> float | None:
        """Weight of the second stage's neighbour loss; None in the first stage."""
        options = self.options.promptcal
        share = 0.0 if self.config.start is not None else options.first_share
        steps = progress.step - round(share * progress.steps)
        grown = steps / (options.ramp * progress.steps_per_epoch) if options.ramp else 1.0
        return options.neighbour_weight * min(1.0, grown) if steps >= 0 else None

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        output, memory, weight = network(batch.tokens), Memory.of(network), self._neighbour_weight(progress)
        if weight is None:
            parts = [representation(output[name], batch, self.options.baseline) for name in HALVES]
        else:
            teacher = memory.teacher(network, batch.tokens, HALVES)
            parts = [self._second_stage(output, teacher, i, memory.queue, batch, weight) for i in range(len(HALVES))]
            memory.queue.add(normalize(teacher.feature.unflatten(1, (2, -1)), dim=2), batch.labels)
        terms = {
            f"{name}_{term}": value
            for name, (_, half_terms) in zip(HALVES, parts, strict=True)
            for term, value in half_terms.items()
        }
        return Loss(parts[0][0] + self.options.promptcal.prompt_weight * parts[1][0], terms)

    def _second_stage(
        self, output: Output, teacher: Output, i: int, queue: Queue, batch: Batch, weight: float
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        """Loss of half `i` of the features against the teacher and the queue, and its terms; weight: of the neighbours."""
        name, options, base = HALVES[i], self.options.promptcal, self.options.baseline
        nce = losses.cross_nce(output[name], teacher[name], base.unlabelled_temperature)
        student_labelled, teacher_labelled = (model[name][batch.labelled] for model in (output, teacher))
        supervised = losses.cross_contrastive(student_labelled, teacher_labelled, batch.y, base.labelled_temperature)
        z, own = (normalize(model.feature.chunk(2, 1)[i], dim=1) for model in (output, teacher))
        other_view = own.roll(len(own) // 2, 0)
        others, label, filled = queue.rows[:, i].clone(), queue.label.clone(), queue.label > queue.EMPTY
        valid = torch.cat([torch.ones(len(z), dtype=torch.bool, device=z.device), filled])
        linked = losses.agreed(torch.cat([other_view, others]), len(z), options.neighbours, options.quantile, valid)
        positive = losses.with_labels(linked, batch.labels, label)
        share_kept = options.negatives / filled.sum().clamp_min(1)
        candidate = (batch.uniform("promptcal", len(label)) < share_kept).repeat(2, 1) & filled | linked
        near = losses.neighbour_contrast(
            (z * other_view).sum(1), z @ others.T, positive, candidate, options.temperature
        )
        unsupervised = (1 - weight) * nce + weight * near
        total = (1 - base.supervised_weight) * unsupervised + base.supervised_weight * supervised
        return total, {"info_nce": nce, "supervised_contrastive": supervised, "neighbours": near}

    def after_step(self, network: Network, progress: Progress) -> None:
        momentum = self.options.promptcal.momentum if self._neighbour_weight(progress) is not None else 0.0
        Memory.of(network).teacher.follow(network, momentum)

    def finalise(self, context: Context) -> None:
        feature = context.features().chunk(2, 1)[0]
        settle_centres(self, context, normalize(feature, dim=1))
        fit_detector(context, feature)
