"""Backbone, heads and a method's memory together: what training and prediction call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debgcd.model.backbone import Backbone
from debgcd.system import distributed

LEAST_SPREAD = 0.1  # of the mean channel's: channels that vary less are not stretched further


@dataclass(frozen=True)
class Output:
    """The network's output for N rows: the feature, and the output of each head that was asked."""

    feature: Tensor  # (N, width); standardised where the backbone needs it
    heads: Mapping[str, Tensor]  # by the head's name, N rows each

    def __getitem__(self, head: str) -> Tensor:
        return self.heads[head]

    def __contains__(self, head: str) -> bool:
        return head in self.heads


class Network(nn.Module):
    """Trunk, tail and heads; which heads there are, and what else is remembered in training, the method decides."""

    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(self, backbone: Backbone, heads: nn.ModuleDict):
        super().__init__()
        self.backbone = backbone
        self.heads = heads
        self._batch: int | None = None  # images of the global batch, within `gathering`
        self._before_heads = False
        self.memory = nn.Module()  # in checkpoints, not in the model: an EMA teacher, queues, pseudo-labels
        self.register_buffer("feature_mean", torch.zeros(backbone.width))
        self.register_buffer("feature_scale", torch.ones(backbone.width))

    @property
    def learning(self) -> set[str]:
        """The heads that gradients train; the others are filled from the features of all images."""
        return {name for name, head in self.heads.items() if any(True for _ in head.parameters())}

    def trained(self) -> dict[str, nn.Parameter]:
        """Every parameter that the optimiser changes, under the name it has in `state`."""
        tail = {f"tail.{name}": p for name, p in self.backbone.tuned.named_parameters()}
        return tail | {f"heads.{name}": p for name, p in self.heads.named_parameters()}

    def forward(self, tokens: Tensor, heads: Collection[str] | None = None) -> Output:
        """From the trunk's tokens to what the named heads say; none named: those that learn.

        The category of an image needs the heads that its method names in `answers` alone.
        """
        feature = (self.backbone.features(tokens) - self.feature_mean) * self.feature_scale
        if self._batch is not None and self._before_heads:
            feature = _gathered(Output(feature, {}), self._batch).feature
        output = self.from_feature(feature, self.learning if heads is None else heads)
        return output if self._batch is None or self._before_heads else _gathered(output, self._batch)

    @contextmanager
    def gathering(self, images: int, before_heads: bool = False) -> Iterator[None]:
        """In this context `forward` takes this rank's rows and returns outputs for the whole global batch of `images` images.

        The rows are whole views, and come in the order that they have in the global batch. before_heads: features are
        gathered and every rank runs the heads on all of them, for those who change the feature's gradient.
        """
        outer = self._batch, self._before_heads
        self._batch, self._before_heads = images if distributed.count() > 1 else None, before_heads
        try:
            yield
        finally:
            self._batch, self._before_heads = outer

    def from_feature(self, feature: Tensor, heads: Collection[str]) -> Output:
        """The heads alone."""
        return Output(feature, {name: head(feature) for name, head in self.heads.items() if name in heads})

    def standardise(self, feature: Tensor) -> None:
        """Fix mean and scale of the features from those of the untuned network over the data set: (N, width).

        A CNN's pooled features are positive and off-centre, so that all cosines are near 1; a ViT's last LayerNorm
        already does this. Only backbones that say `standardise` are changed.

        A channel that hardly varies in these images is not stretched to the spread of the others: tuning may wake it, and
        then it would drown them all. Within one step every feature would point the same way.
        """
        if self.backbone.standardise:
            spread = feature.std(0, correction=0)
            self.feature_mean.copy_(feature.mean(0))
            self.feature_scale.copy_(1 / spread.clamp_min(max(1e-4, LEAST_SPREAD * float(spread.mean()))))

    def state(self) -> dict[str, Tensor]:
        """The model: the tuned blocks, the heads, the fixed standardisation, by name."""
        tensors: dict[str, Tensor] = {f"tail.{name}": value for name, value in self.backbone.tuned.named_parameters()}
        tensors |= {f"heads.{name}": value for name, value in self.heads.state_dict().items()}
        tensors |= {"feature_mean": self.feature_mean, "feature_scale": self.feature_scale}
        return {name: value.detach() for name, value in tensors.items()}

    def remembered(self) -> dict[str, Tensor]:
        """The memory, by name."""
        return {f"memory.{name}": value.detach() for name, value in self.memory.state_dict().items()}

    def resize(self, shapes: Mapping[str, list[int]]) -> None:
        """Give heads and memory these shapes, by their names in `state` and `remembered`; the values are undefined then."""
        own = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        for name, shape in shapes.items():
            if name in own and list(own[name].shape) != shape:
                own[name].data = own[name].data.new_empty(shape)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill from `state`; a KeyError or ValueError names a tensor that is missing, unexpected or of another shape."""
        _fill(self.state(), tensors)

    def require_fitting(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise as `load_state` would; nothing is copied, so the heads may still be on the meta device."""
        _compare(self.state(), tensors)

    def load_remembered(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill from `remembered`; errors as for `load_state`."""
        _fill(self.remembered(), tensors)


def _gathered(output: Output, images: int) -> Output:
    """The outputs of all ranks, in one transfer; each has V views of its share of the images, (V·b, ...).

    Shares differ by at most one image; a rank with one less has a row more per view that does not count.
    """
    own = {"": output.feature, **output.heads}
    widths = [rows[0].numel() for rows in own.values()]
    joined = torch.cat([rows.flatten(1) for rows in own.values()], 1)
    largest, short = -(-images // distributed.count()), -images % distributed.count()
    every = distributed.gather(joined).unflatten(1, (-1, largest)).transpose(0, 1)  # (V, ranks, b, ...)
    whole = distributed.count() - short
    views = torch.cat([every[:, :whole].flatten(1, 2), every[:, whole:, :-1].flatten(1, 2)], 1) if short else every
    parts = views.flatten(0, -2).split(widths, 1)
    rows = {name: part.unflatten(1, own[name].shape[1:]) for name, part in zip(own, parts, strict=True)}
    return Output(rows.pop(""), rows)


def _fill(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    _compare(own, tensors)
    for name, value in own.items():
        value.copy_(tensors[name])


def _compare(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    if set(own) != set(tensors):
        raise KeyError(", ".join(sorted(set(own) ^ set(tensors))[:3]))
    for name, value in own.items():
        given = tensors[name]
        if value.shape != given.shape:
            raise ValueError(f"{name} has shape {tuple(given.shape)}, expected {tuple(value.shape)}")
        if value.is_floating_point() != given.is_floating_point():
            raise ValueError(f"{name} has type {given.dtype}, expected {value.dtype}")


class Teacher(nn.Module):
    """The network with parameters of its own that follow the trained ones slowly: an exponential moving average."""

    def __init__(self, network: Network):
        super().__init__()
        self.names = list(network.trained())
        for i, parameter in enumerate(network.trained().values()):
            self.register_buffer(f"p{i}", parameter.detach().clone())

    @torch.no_grad()
    def follow(self, network: Network, momentum: float) -> None:
        """θ ← momentum · θ + (1 − momentum) · the network's."""
        for own, parameter in zip(self.buffers(recurse=False), network.trained().values(), strict=True):
            own.lerp_(parameter, 1 - momentum)

    @torch.no_grad()
    def forward(self, network: Network, tokens: Tensor, heads: Collection[str]) -> Output:
        """What the network would say with the teacher's parameters."""
        places = {"tail": "backbone.tuned", "heads": "heads"}
        parts = (name.partition(".") for name in self.names)
        names = [f"{places[first]}.{rest}" for first, _, rest in parts]
        values = dict(zip(names, self.buffers(recurse=False), strict=True))
        return torch.func.functional_call(network, values, (tokens, heads))


class Queue(nn.Module):
    """The last rows that were added, with their labels: new ones take the place of the oldest."""

    EMPTY = -2  # label of a place that no row was in yet; -1: a row without a label
    rows: Tensor
    label: Tensor
    following: Tensor

    def __init__(self, size: int, *shape: int):
        super().__init__()
        self.register_buffer("rows", torch.zeros(size, *shape))
        self.register_buffer("label", torch.full((size,), self.EMPTY))
        self.register_buffer("following", torch.zeros((), dtype=torch.int64))  # where to go on

    @torch.no_grad()
    def add(self, rows: Tensor, label: Tensor) -> None:
        """rows: (N, ...); label: (N,), -1 where there is none. Of more rows than there are places, the last ones stay."""
        size = len(self.label)
        last = slice(max(0, len(rows) - size), len(rows))
        place = (self.following + torch.arange(len(rows), device=rows.device)[last]) % size
        self.rows.index_copy_(0, place, rows[last].to(self.rows.dtype))
        self.label.index_copy_(0, place, label[last])
        self.following.copy_((self.following + len(rows)) % size)
