"""SPTNet (Wang et al. 2024): pixel prompts and the network learn alternately, from a trained SimGCD.

Written from descriptions of the paper; no public code was used. The first stage is a SimGCD run, or `--start RUN`. Training
alternates every 20 steps between the prompts (a frame around each patch, a border around the image) and the tail with the
heads. One view is the plain image, the other has the prompts; the loss is SimGCD's. The trunk's tokens change with the
prompts, so there is no view bank. The descriptions leave open, and this file decides: prompts start at zero, are added to
normalised pixels, and are used at inference too; their learning rate is a multiple of the tail's without a separate warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass

from debgcd.config.schedules import Progress
from debgcd.config.schema import Config, option
from debgcd.methods.base import About, Batch, FirstStage, Loss
from debgcd.methods.simgcd import SimGCD, SimGCDOptions
from debgcd.model.backbone import Backbone, TrunkSplit
from debgcd.model.network import Network
from debgcd.model.prompts import PixelPrompts, Prompted


@dataclass(frozen=True)
class PromptOptions:
    """Shape and schedule of the prompts."""

    patch: int | None = option(None, "side of a patch; null: the ViT's own, and 16 for a CNN", 1, 4096)
    frame: int = option(1, "width of the frame around each patch, as published", 0, 4096)
    border: int = option(30, "width of the border of an image of 224 px, as published; 0 for CIFAR", 0, 4096)
    period: int = option(20, "steps before the other part learns, as published", 1, 10**6)
    rate: float = option(500.0, "learning rate as a multiple of the tail's: 25 / 0.05, as published for CUB", 0, 1e9)


@dataclass(frozen=True)
class SPTNetOptions(SimGCDOptions):
    first: FirstStage = FirstStage()
    prompts: PromptOptions = PromptOptions()


class SPTNet(SimGCD):
    """SimGCD's loss on a plain and a prompted view; prompts and network learn alternately."""

    about = About("SPTNet", 2024, "ICLR", "prompts of pixels and the network learn in turns, from a trained SimGCD")
    Options = SPTNetOptions
    cut = TrunkSplit(tuned=1, early="prompts of pixels")
    first = "simgcd"
    options: SPTNetOptions

    @classmethod
    def prompted(cls, backbone: Backbone, config: Config) -> Backbone:
        from debgcd.model.vit import VitBackbone

        how: PromptOptions = config.options.prompts
        own = backbone.patch if isinstance(backbone, VitBackbone) else 16
        border = round(how.border * config.views.crop / 224)
        prompts = PixelPrompts(config.views.crop, how.patch or own, how.frame, border, how.rate)
        return Prompted(backbone, prompts)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        backbone = network.backbone
        assert isinstance(backbone, Prompted)
        # Train the prompts or everything else; without a gradient for prompts, the trunk's activations are not stored.
        prompts_learn = progress.step // self.options.prompts.period % 2 == 0
        for parameter in network.trained().values():
            parameter.requires_grad_(not prompts_learn)
        backbone.prompts.requires_grad_(prompts_learn)
        tokens = batch.tokens.clone()
        tokens[: len(tokens) // 2, 3] = 0  # first views are plain
        return self.baseline_loss(network(tokens), batch, progress)
