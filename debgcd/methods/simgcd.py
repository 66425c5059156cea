"""SimGCD (Wen et al. 2023): a parametric classifier by self-distillation, with contrastive learning beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from debgcd import losses
from debgcd.cluster.prototypes import prototypes
from debgcd.config import schedules
from debgcd.config.schedules import Progress
from debgcd.config.schema import Options, option
from debgcd.methods.base import About, Batch, Context, Loss, Method
from debgcd.methods.gcd import ContrastOptions, ProjectionOptions, representation
from debgcd.model.heads import Prototypes, classifiers
from debgcd.model.network import Network, Output
from debgcd.system.progress import progress as bar


@dataclass(frozen=True)
class BaselineOptions(ContrastOptions):
    """L_gcd (Eq. 1–3)."""

    entropy_weight: float = option(1.0, "ξ; the public scripts take 2 for CUB and 4 for CIFAR-100", 0, 1e6)
    student_temperature: float = option(0.1, "τ_s, and the debiased classifier's τ_a", 1e-4, 100)
    teacher_start: float = option(0.07, "temperature of the teacher at the start", 1e-4, 100)
    teacher_end: float = option(0.04, "and after its warm-up", 1e-4, 100)
    teacher_warmup: float = option(0.15, "share of the run: the paper's 30 of 200 epochs", 0, 1)
    teacher_shape: Literal["cosine", "linear"] = option("cosine", "the paper says cosine; the public code is linear")

    def teacher_temperature(self, progress: Progress) -> float:
        shape = {"cosine": schedules.cosine, "linear": schedules.linear}[self.teacher_shape]
        return shape(self.teacher_start, self.teacher_end, progress.of_warmup(self.teacher_warmup))


@dataclass(frozen=True)
class WarmStart:
    """How a classifier of prototypes starts."""

    warm_start: bool = option(False, "prototypes from semi-supervised k-means; the paper starts from random ones")


@dataclass(frozen=True)
class SimGCDHeads(WarmStart, ProjectionOptions):
    """The projection for L_rep; the classifier is plain prototypes."""


@dataclass(frozen=True)
class SimGCDOptions(Options):
    heads: SimGCDHeads = SimGCDHeads()
    baseline: BaselineOptions = BaselineOptions()


class SimGCD(Method):
    """L_gcd = L_cls + L_rep (Eq. 3)."""

    about = About("SimGCD", 2023, "ICCV", "a classifier by self-distillation, balanced by its mean entropy")
    Options: ClassVar[type[Options]] = SimGCDOptions
    options: SimGCDOptions

    def heads(self) -> nn.ModuleDict:
        classifier = Prototypes(self.sizes.width, self.sizes.k)
        return nn.ModuleDict({"classifier": classifier, "projection": self.options.heads.projection(self.sizes.width)})

    def before_training(self, context: Context) -> None:
        start_prototypes(self, context, self.options.heads.warm_start)

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

    def scores(self, output: Output) -> dict[str, Tensor]:
        return {"gcd": self.probabilities(output["classifier"])}

    def probabilities(self, logits: Tensor) -> Tensor:
        """Eq. 1: (N, K) cosines -> (N, K)."""
        return torch.softmax(logits / self.options.baseline.student_temperature, 1)


def start_prototypes(method: Method, context: Context, warm: bool, new: Tensor | None = None) -> None:
    """Where classifiers start: where one came from another run, all there; else, if `warm`, from semi-supervised k-means.

    new: (N,) which images look new, if that was asked; see `prototypes`.
    """
    heads = classifiers(context.network.heads)
    given = [head for name, head in heads.items() if name in context.given]
    if given:  # all classifiers must number the categories alike
        start = given[0].weight.clone()
    elif warm:
        start = warm_prototypes(method, context, new)
    else:
        return
    for head in heads.values():
        head.weight.copy_(start)


def warm_prototypes(method: Method, context: Context, new: Tensor | None = None) -> Tensor:
    """Unit-length centres of a clustering of all training images: (K, width); new: see `prototypes`."""
    with bar("clustering") as report:
        return prototypes(
            context.features(),
            context.label,
            method.sizes.k,
            new=new,
            seed=method.config.seed,
            on_progress=report,
        )
