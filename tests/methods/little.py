"""A backbone of two linear layers, and random outputs of heads: all that a method needs to be tested."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import config as configuration
from debgcd.config import Config
from debgcd.methods import create
from debgcd.methods.protocol import Batch, Method
from debgcd.model.backbone import Backbone, Identity
from debgcd.model.heads import reset_heads
from debgcd.model.network import Network, Output
from debgcd.schedules import Progress

K, KNOWN, WIDTH, TOKENS = 5, 3, 8, 10


class Little(Backbone):
    """Tokens -> two tuned linear layers -> feature."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = Identity("little", None, "0" * 64)
        self.width, self.multiple, self.standardise = WIDTH, 1, False
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


def made(chosen: Config) -> tuple[Network, Method]:
    """Network and method of a configuration, with the initial heads of its seed."""
    method = create(chosen, KNOWN)
    network = Network(Little(), method.heads(WIDTH))
    reset_heads(network.heads, chosen.seed)
    return network, method


def random_output(images: int, seed: int = 0) -> Output:
    """What heads may say of two views of so many images, in double precision, each a leaf of the graph."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2 * images, *shape, generator=generator, dtype=torch.float64)

    def cosines() -> Tensor:
        return 2 * torch.rand(2 * images, K, generator=generator, dtype=torch.float64) - 1

    return Output(
        feature=normal(WIDTH),
        logits=cosines().requires_grad_(),
        projection=normalize(normal(4), dim=1).requires_grad_(),
        debiased=cosines().requires_grad_(),
        detector=(3 * normal(KNOWN, 2)).requires_grad_(),
    )


def batch(label: Tensor) -> Batch:
    """The labels of a batch, as a method's loss takes them."""
    return Batch.of(label.numpy())


def random_labels(images: int, seed: int = 0) -> Tensor:
    """Half of them labelled."""
    label = torch.randint(KNOWN, (images,), generator=torch.Generator().manual_seed(seed))
    return torch.where(torch.arange(images) % 2 == 0, label, -1)


def at(share: float) -> Progress:
    """This far into a run."""
    return Progress(round(2000 * share), 2000, 10)
