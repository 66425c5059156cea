"""A backbone of two linear layers, and random outputs of heads: all that a method needs to be tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import config as configuration
from debgcd.config.schedules import Progress
from debgcd.config.schema import Config
from debgcd.data.sampler import Draws
from debgcd.methods import create
from debgcd.methods.base import Batch, Context, Method, Sizes
from debgcd.model.backbone import Backbone, Identity
from debgcd.model.network import Network, Output
from debgcd.train.setup import build

K, KNOWN, WIDTH, TOKENS = 5, 3, 8, 10


class Little(Backbone):
    """Tokens -> two tuned linear layers -> feature."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = Identity("little", None, "0" * 64)
        self.width, self.tail_blocks, self.standardise = WIDTH, 2, False
        self.tuned = nn.ModuleList([nn.Linear(TOKENS, 12), nn.Linear(12, WIDTH)])
        for i, layer in enumerate(self.tuned):
            generator = torch.Generator().manual_seed(i)
            nn.init.normal_(layer.weight, generator=generator)
            nn.init.normal_(layer.bias, generator=generator)

    def tail(self, tokens: Tensor) -> Tensor:
        return self.tuned[1](self.tuned[0](tokens).relu())


def config(preset: str = "paper", **values: Any) -> Config:
    """A preset for K categories with small heads, and what else is given."""
    chosen = configuration.override(configuration.compose(preset), {"k": K, "heads": {"hidden": 6}}, where="test")
    return configuration.override(chosen, values, where="test")


def method_of(chosen: Config, images: int = 12) -> Method:
    """The method of a configuration, for so many training images."""
    return create(chosen, Sizes(WIDTH, K, KNOWN, images))


def made(chosen: Config, images: int = 12) -> tuple[Network, Method]:
    """Network and method of a configuration, with the initial heads of its seed."""
    method = method_of(chosen, images)
    return build(method, Little()), method


def says(output: Output) -> Network:
    """A stand-in for a network whose heads say this of any tokens."""
    return cast(Network, lambda tokens, heads=None: output)


def random_output(images: int, seed: int = 0) -> Output:
    """What heads may say of two views of so many images, in double precision, each a leaf of the graph."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2 * images, *shape, generator=generator, dtype=torch.float64)

    def cosines() -> Tensor:
        return 2 * torch.rand(2 * images, K, generator=generator, dtype=torch.float64) - 1

    return Output(
        feature=normal(WIDTH),
        heads={
            "classifier": cosines().requires_grad_(),
            "projection": normalize(normal(4), dim=1).requires_grad_(),
            "debiased": cosines().requires_grad_(),
            "detector": (3 * normal(KNOWN, 2)).requires_grad_(),
        },
    )


def batch(label: Tensor, tokens: Tensor | None = None) -> Batch:
    """A batch of images 0, 1, ... with these labels, as a method's loss takes it."""
    numbers = np.arange(len(label))
    tokens = torch.empty(2 * len(label), TOKENS) if tokens is None else tokens
    return Batch.of(tokens, Draws(numbers, numbers), label.numpy(), "cpu")


def random_labels(images: int, seed: int = 0) -> Tensor:
    """Half of them labelled."""
    label = torch.randint(KNOWN, (images,), generator=torch.Generator().manual_seed(seed))
    return torch.where(torch.arange(images) % 2 == 0, label, -1)


def at(share: float) -> Progress:
    """This far into a run."""
    return Progress(round(2000 * share), 2000, 10)


def context(network: Network, features: Callable[[], Tensor], label: Tensor) -> Context:
    """What a hook of a method is given."""
    return Context(network, features, features, label)
