"""The small networks on top of the feature: prototypes, projections, the detector."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, normalize

from debgcd.data.draws import stream_seed


class Prototypes(nn.Module):
    """Eq. 1 and 8 before the softmax: cosines between the feature and K unit-length prototypes.

    The weight's length is free and does nothing, as under weight normalisation with the gain fixed at 1.
    """

    def __init__(self, width: int, categories: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(categories, width))

    def reset(self, generator: torch.Generator) -> None:
        bound = self.weight.shape[1] ** -0.5  # torch's default for a linear layer, as in SimGCD
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, K) cosines."""
        return linear(normalize(feature, dim=1), normalize(self.weight, dim=1))


class Centres(nn.Module):
    """The classifier of a clustering: minus half the squared distance of the unit-length feature to K centres.

    On unit-length centres this is the cosine less one, so that its probabilities compare with those of prototypes.
    """

    weight: Tensor

    def __init__(self, width: int, categories: int):
        super().__init__()
        self.register_buffer("weight", torch.zeros(categories, width))

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, K)."""
        return -torch.cdist(normalize(feature, dim=1), self.weight).square() / 2


class Projection(nn.Module):
    """An MLP with GELU between its layers, whose output has unit length; with no layer only the length is changed."""

    def __init__(self, width: int, hidden: int, out: int, depth: int):
        super().__init__()
        sizes = [width] + [hidden] * (depth - 1) + [out] if depth else []
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.out = out if depth else width

    def reset(self, generator: torch.Generator) -> None:
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, out), unit rows."""
        for i, layer in enumerate(self.layers):
            feature = layer(gelu(feature) if i else feature)
        return normalize(feature, dim=1)


class Detector(nn.Module):
    """ρ_s and the M one-vs-all detectors on it: for each known class, is this image in or out?"""

    def __init__(self, width: int, hidden: int, out: int, depth: int, known: int, temperature: float):
        super().__init__()
        self.projection = Projection(width, hidden, out, depth)
        self.prototypes = Prototypes(self.projection.out, 2 * known)
        self.temperature = temperature

    def reset(self, generator: torch.Generator) -> None:
        self.projection.reset(generator)
        self.prototypes.reset(generator)

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, M, 2) scores after the temperature; channel 0 is "in", 1 is "out"."""
        return self.prototypes(self.projection(feature)).unflatten(1, (-1, 2)) / self.temperature


def reset_heads(heads: nn.ModuleDict, seed: int) -> None:
    """Initialise each head from (seed, its name) alone, so that methods which share a head start it alike."""
    for name, head in heads.items():
        if isinstance(head, (Prototypes, Projection, Detector)):
            head.reset(torch.Generator().manual_seed(stream_seed(seed, f"head/{name}") % 2**63))
