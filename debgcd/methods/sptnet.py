"""SPTNet (Wang et al. 2024): pixel prompts and the network learn alternately, from a trained SimGCD.

The first stage is a SimGCD run, or `--start RUN`. In a turn of the prompts both views of an image carry them; in a turn of
the network the two views are one crop, without and with prompts. The loss is SimGCD's. Only facts and numbers come from the
public code, whose licence forbids reuse. The trunk's tokens change with the prompts, so there is no view bank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from debgcd.config import schedules
from debgcd.config.schedules import Progress
from debgcd.config.schema import Config, ScheduleConfig, option
from debgcd.methods.base import About, Batch, FirstStage, Loss, Sizes
from debgcd.methods.simgcd import SimGCD, SimGCDOptions
from debgcd.model.backbone import Backbone, TrunkSplit
from debgcd.model.network import Network
from debgcd.model.optimiser import SGD, sgd
from debgcd.model.prompts import PixelPrompts, Prompted


@dataclass(frozen=True)
class PromptOptions:
    """Shape and schedule of the prompts."""

    patch: int | None = option(None, "side of a patch; null: the ViT's own, and 16 for a CNN", 1, 4096)
    frame: int = option(1, "width of the frame around each patch, as published", 0, 4096)
    border: int = option(30, "width of the border of an image of 224 px, as published; 0 for CIFAR", 0, 4096)
    start: float = option(
        1.0, "standard deviation of the first prompts, in normalised pixels, as in the public code", 0, 100
    )
    period: int = option(20, "steps before the other part learns, as published; turns restart every epoch", 1, 10**6)
    rate: float = option(25.0, "largest learning rate of the prompts, as published for CUB", 0, 1e6)
    warmup: int = option(1000, "steps in which that rate is reached, as in the public code", 0, 10**9)
    entropy_weight: float | None = option(None, "ξ of this stage; null: that of the first stage", 0, 1e6)

    def rate_at(self, progress: Progress) -> float:
        """A line up to `rate`, then half a cosine down to 0; by step, also where the network's rate changes by epoch."""
        if progress.step < self.warmup:
            return self.rate * (progress.step + 1) / self.warmup
        return schedules.cosine(self.rate, 0.0, (progress.step - self.warmup) / (progress.steps - self.warmup))

    def learn(self, progress: Progress) -> bool:
        """Whether the prompts learn. The first turn of an epoch is a step shorter, as in the public code.

        With so few images that an epoch is shorter than a turn, turns go on over epochs: else the network would never learn.
        """
        restarts = progress.steps_per_epoch >= self.period
        step = progress.step % progress.steps_per_epoch if restarts else progress.step
        return (step + 1) // self.period % 2 == 0


@dataclass(frozen=True)
class SPTNetOptions(SimGCDOptions):
    first: FirstStage = FirstStage()
    prompts: PromptOptions = PromptOptions()


class SPTNet(SimGCD):
    """SimGCD's loss on prompted views; prompts and network learn alternately."""

    about = About("SPTNet", 2024, "ICLR", "prompts of pixels and the network learn in turns, from a trained SimGCD")
    Options = SPTNetOptions
    cut = TrunkSplit(tuned=1, early="prompts of pixels")
    first = "simgcd"
    options: SPTNetOptions

    def __init__(self, config: Config, sizes: Sizes):
        super().__init__(config, sizes)
        own = self.options.prompts.entropy_weight
        if own is not None:
            self.options = replace(self.options, baseline=replace(self.options.baseline, entropy_weight=own))

    @classmethod
    def prompted(cls, backbone: Backbone, config: Config) -> Backbone:
        from debgcd.model.vit import VitBackbone

        how: PromptOptions = config.options.prompts
        own = backbone.patch if isinstance(backbone, VitBackbone) else 16
        border = round(how.border * config.views.crop / 224)
        prompts = PixelPrompts(config.views.crop, how.patch or own, how.frame, border, how.start, config.seed)
        return Prompted(backbone, prompts)

    def optimiser(self, network: Network, schedule: ScheduleConfig) -> SGD:
        """As for all methods, but prompts have a group of their own: another rate, and no decay."""
        optimiser = sgd(network, schedule)
        prompts = list(_backbone(network).prompts.parameters())
        for group in optimiser.param_groups:
            group["params"] = [p for p in group["params"] if all(p is not prompt for prompt in prompts)]
        own = {"params": prompts, "weight_decay": 0.0, "rate": self.options.prompts.rate_at}
        return SGD([*optimiser.param_groups, own], schedule.lr, schedule.momentum)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        prompts_learn = self.options.prompts.learn(progress)
        # Without a gradient for the prompts, the trunk's activations are not stored.
        for parameter in network.trained().values():
            parameter.requires_grad_(not prompts_learn)
        _backbone(network).prompts.requires_grad_(prompts_learn)
        tokens = batch.tokens
        if not prompts_learn:
            crop = tokens[: len(tokens) // 2]
            plain = crop.clone()
            plain[:, 3] = 0
            tokens = torch.cat([plain, crop])
        return self.baseline_loss(network(tokens), batch, progress)


def _backbone(network: Network) -> Prompted:
    assert isinstance(network.backbone, Prompted)
    return network.backbone
