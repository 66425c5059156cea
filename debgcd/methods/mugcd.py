"""μGCD (Vaze et al. 2023): a student on strong views learns from its moving average, the teacher, on weak views.

No training code is public. From a summary of the paper: losses, momentum, two stages. The first stage is a GCD run, or the
run that `train --start RUN` names; with every preset, its clusters become the prototypes if their number is K. Temperatures,
ε and the schedule are not published; SimGCD's values are used. The strong view is a common one (random resized crop, colour
jitter, greyscale). The student gives the categories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.config.schema import Options, option
from debgcd.data.views import PLAIN, STRONG, Kinds
from debgcd.methods.base import About, Batch, Context, FirstStage, Loss
from debgcd.methods.shared import BaselineOptions, PrototypeMethod, WarmStart
from debgcd.model.network import Network, Teacher


@dataclass(frozen=True)
class Momentum:
    """ω: the share of its own weights that the teacher keeps at a step."""

    base: float = option(0.7, "at the start, as published", 0, 1)
    end: float = option(0.999, "at the end, as published", 0, 1)


@dataclass(frozen=True)
class MuGCDOptions(Options):
    first: FirstStage = FirstStage()
    heads: WarmStart = WarmStart()
    baseline: BaselineOptions = BaselineOptions()
    momentum: Momentum = Momentum()

    def contradiction(self) -> str | None:
        if self.momentum.base + self.momentum.end < 1:
            return "momentum.base and momentum.end must sum to 1 or more; raise one of them"
        return None


class MuGCD(PrototypeMethod):
    """(1 − λ) (distillation from the teacher − ε H(p̄)) + λ cross-entropy, on strong views; then the teacher follows."""

    about = About(
        "μGCD",
        2023,
        "NeurIPS",
        "the student sees strong views, its moving average weak ones; the paper was not at hand",
    )
    Options: ClassVar[type[Options]] = MuGCDOptions
    views: ClassVar[Kinds] = (PLAIN, STRONG)
    first = "gcd"
    options: MuGCDOptions

    def memory(self, network: Network) -> nn.Module:
        return Teacher(network)

    def before_training(self, context: Context) -> None:
        super().before_training(context)
        _teacher(context.network).follow(context.network, momentum=0.0)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        options = self.options.baseline
        weak, strong = batch.tokens.chunk(2)
        student = network(strong)["classifier"]
        teacher = _teacher(network)(network, weak, ("classifier",))["classifier"]
        teacher_temperature = options.teacher_temperature(progress)
        distillation = losses.teacher_distillation(student, teacher, teacher_temperature, options.student_temperature)
        entropy = losses.mean_entropy(student, options.student_temperature)
        labelled = batch.labelled[: len(batch.y)]  # row numbers of the first view are image numbers
        supervised = losses.supervised(student[labelled], batch.y, options.student_temperature)
        share = options.supervised_weight
        total = (1 - share) * (distillation - options.entropy_weight * entropy) + share * supervised
        terms: dict[str, Tensor | float] = {
            "distillation": distillation,
            "mean_entropy": entropy,
            "supervised": supervised,
            "teacher_temperature": teacher_temperature,
        }
        return Loss(total, terms)

    def after_step(self, network: Network, progress: Progress) -> None:
        momentum = losses.momentum(progress.share, self.options.momentum.base, self.options.momentum.end)
        _teacher(network).follow(network, momentum)

    @property
    def temperature(self) -> float:
        return self.options.baseline.student_temperature


def _teacher(network: Network) -> Teacher:
    assert isinstance(network.memory, Teacher)
    return network.memory
