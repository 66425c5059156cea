"""Heads on the feature: prototypes, projections, centres; novelty detectors are in novelty/."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, normalize

from debgcd.data.sampler import stream_seed

AXES = 128  # principal axes of the features; the remaining ones are mostly noise


class Classifier(nn.Module):
    """A head that scores K categories: (N, width) -> (N, K). All classifiers of a network number the categories alike."""

    weight: Tensor  # (K, ...), a row per category

    def prototypes(self) -> Tensor:
        """One direction per category: (K, ...)."""
        return self.weight

    def keep(self, categories: list[int]) -> None:
        """Drop all other categories; a known class is never dropped."""
        self.weight.data = self.weight.data[categories]

    def place(self, feature: Tensor) -> Tensor:
        """Features as the rows see them: (N, width) -> (N, ...), unit rows."""
        return normalize(feature, dim=1)

    def grow(self, feature: Tensor, category: Tensor, more: int, seen: Tensor, where: Tensor) -> None:
        """Add categories, each in the direction of the mean of its images, as long as the others; these stay as they are.

        feature (N, width), category (N,) in 0..more-1: of the new images. seen (S, width), where (S,): the images so far, -1 for
        one in a category without a row.
        """
        points = self.place(feature)
        rows = normalize(points.new_zeros(more, points.shape[1]).index_add_(0, category, points), dim=1)
        self.weight.data = torch.cat([self.weight.data, (rows * self.weight.data.norm(dim=1).mean()).to(self.weight)])


class Prototypes(Classifier):
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


class Centres(Classifier):
    """The classifier of a clustering: minus half the squared distance of the unit-length feature to K centres.

    On unit-length centres this is the cosine minus one, so that its probabilities compare with those of prototypes.
    """

    def __init__(self, width: int, categories: int):
        super().__init__()
        self.register_buffer("weight", torch.zeros(categories, width))

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, K)."""
        return -squared_distance(normalize(feature, dim=1), self.weight) / 2


class Settled(Classifier):
    """The classifier of an answer from features (cluster/settle.py): linear on whitened principal axes at unit length."""

    mean: Tensor
    directions: Tensor

    def __init__(self, width: int, categories: int, images: int):
        """images: from which it will be filled; they limit the number of axes."""
        super().__init__()
        axes = min(AXES, width, images)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("directions", torch.zeros(width, axes))
        self.register_buffer("weight", torch.zeros(categories, axes))

    @property
    def filled(self) -> bool:
        return bool(self.weight.any())

    def fill(self, mean: Tensor, directions: Tensor, weight: Tensor) -> None:
        """Set all buffers; there may be fewer directions (width, d) than axes, the others have no influence then."""
        self.mean.copy_(mean)
        self.directions.zero_()[:, : directions.shape[1]] = directions
        self.weight.zero_()[:, : weight.shape[1]] = weight

    def place(self, feature: Tensor) -> Tensor:
        return normalize((feature - self.mean) @ self.directions, dim=1)

    def grow(self, feature: Tensor, category: Tensor, more: int, seen: Tensor, where: Tensor) -> None:
        """Set every row to the mean of its images: rows that were fitted against each other would outdo new ones, or new ones them.

        All have one length, with which the images so far score on average what they scored before.
        """
        points, k = self.place(seen), len(self.weight)
        scores = linear(points, self.weight)
        where = torch.where(where >= 0, where, scores.argmax(1))
        every, of = torch.cat([points, self.place(feature)]), torch.cat([where, k + category])
        sums = points.new_zeros(k + more, points.shape[1]).index_add_(0, of, every)
        empty = torch.bincount(where, minlength=k)[:k] == 0
        sums[:k][empty] = self.weight[empty]
        rows = normalize(sums, dim=1)
        before, now = scores.gather(1, where[:, None]).mean(), (points * rows[where]).sum(1).mean()
        self.weight = rows * (before / now)

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, K)."""
        return linear(self.place(feature), self.weight)


class MLP(nn.Module):
    """Linear layers with GELU between them; with no layer nothing is changed."""

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
        """(N, width) -> (N, out)."""
        for i, layer in enumerate(self.layers):
            feature = layer(gelu(feature) if i else feature)
        return feature


class Projection(MLP):
    """An MLP whose output has unit length."""

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, out), unit rows."""
        return normalize(super().forward(feature), dim=1)


class PrototypeProjection(nn.Module):
    """GCD's whole head of DINO: a projection, and the unit-length vector of its cosines to many prototypes."""

    def __init__(self, width: int, hidden: int, inner: int, depth: int, prototypes: int):
        super().__init__()
        self.projection = Projection(width, hidden, inner, depth)
        self.prototypes = Prototypes(inner, prototypes)

    def forward(self, feature: Tensor) -> Tensor:
        """(N, width) -> (N, prototypes), unit rows."""
        return normalize(self.prototypes(self.projection(feature)), dim=1)


class Part(nn.Module):
    """A head on the columns start..end of the feature."""

    def __init__(self, head: nn.Module, start: int, end: int):
        super().__init__()
        self.head, self.start, self.end = head, start, end

    def forward(self, feature: Tensor) -> Tensor:
        return self.head(feature[:, self.start : self.end])


def whole_heads(heads: nn.ModuleDict) -> dict[str, nn.Module]:
    """The heads by name, each without the `Part` around it."""
    return {name: head.head if isinstance(head, Part) else head for name, head in heads.items()}


def classifiers(heads: nn.ModuleDict) -> dict[str, Classifier]:
    """The heads with a row of weights per category, by name."""
    return {name: head for name, head in whole_heads(heads).items() if isinstance(head, Classifier)}


def squared_distance(points: Tensor, centres: Tensor) -> Tensor:
    """(N, width), (C, width) -> (N, C), by a product of matrices."""
    norms = points.square().sum(1, keepdim=True) + centres.square().sum(1)
    return (norms - 2 * linear(points, centres)).clamp_min(0)


def reset_heads(heads: nn.ModuleDict, seed: int) -> None:
    """Initialise each head from (seed, its name) alone, so that methods which share a head start it alike."""
    for name, head in heads.items():
        reset(head, torch.Generator().manual_seed(stream_seed(seed, f"head/{name}") % 2**63), name)


def reset(module: nn.Module, generator: torch.Generator, head: str = "") -> None:
    """Initialise a module by its `reset(generator)`, or else its parts, in their order. head: a name for errors."""
    own = getattr(module, "reset", None)
    if own is not None:
        own(generator)
    elif any(True for _ in module.parameters(recurse=False)):
        raise TypeError(f"the head {head!r} has parameters but no reset(generator) to initialise them")
    else:
        for part in module.children():
            reset(part, generator, head)
