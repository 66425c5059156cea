"""Prompts: what learns before the frozen trunk. The wrapped backbone's trunk only passes pixels on; its tail does the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from debgcd.data.sampler import stream_seed
from debgcd.model.backbone import Backbone

if TYPE_CHECKING:
    from debgcd.model.vit import VitBackbone


class Prompted(Backbone):
    """A backbone with a module of prompts as the last of its tuned parts: everything runs in the tail, with gradients.

    Tokens are normalised pixels with a fourth channel, 1 where a row gets the prompts and 0 where it does not.
    """

    def __init__(self, inner: Backbone, prompts: nn.Module):
        super().__init__()
        # In a tuple, not as a submodule: its tuned blocks are below, and a teacher must find each parameter under one name.
        self._inner = (inner,)
        self.identity, self.width, self.standardise = inner.identity, inner.width, inner.standardise
        self.tail_blocks = inner.tail_blocks
        self.tuned = nn.ModuleList([*inner.tuned, prompts])
        self.unpretrained = f"{len(inner.tuned)}."
        self.register_buffer("pixel_mean", inner.pixel_mean.clone(), persistent=False)
        self.register_buffer("pixel_std", inner.pixel_std.clone(), persistent=False)

    @property
    def inner(self) -> Backbone:
        return self._inner[0]

    @property
    def prompts(self) -> nn.Module:
        return self.tuned[-1]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Prompted:
        self.inner._apply(fn, recurse)  # type: ignore[no-untyped-call] # to a device, with this module
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def tokens(self, pixels: Tensor) -> Tensor:
        return torch.cat([pixels, torch.ones_like(pixels[:, :1])], 1)

    def tail(self, tokens: Tensor) -> Tensor:
        pixels = tokens[:, :3] + tokens[:, 3:] * self.prompts()
        return self.inner.tail(self.inner.tokens(pixels))  # in single precision: the gradient passes through the trunk


class PixelPrompts(nn.Module):
    """SPTNet's (Wang et al. 2024): a frame around every patch and one around the image, added to normalised pixels."""

    def __init__(self, size: int, patch: int, frame: int, border: int, start: float, seed: int):
        """start: standard deviation of the first prompts."""
        super().__init__()
        generator = torch.Generator().manual_seed(stream_seed(seed, "prompts") % 2**63)
        self.patches, self.around = (
            nn.Parameter(start * torch.randn(3, size, size, generator=generator)) for _ in range(2)
        )
        place = torch.arange(size)
        inner, outer = place % patch, torch.minimum(place, size - 1 - place)
        in_frame = (inner < frame) | (inner >= patch - frame)
        at_border = outer < border
        self.register_buffer("in_frame", (in_frame[:, None] | in_frame).float(), persistent=False)
        self.register_buffer("at_border", (at_border[:, None] | at_border).float(), persistent=False)

    def forward(self) -> Tensor:
        """(3, size, size)."""
        return self.patches * self.get_buffer("in_frame") + self.around * self.get_buffer("at_border")


class BlockPrompts(nn.Module):
    """PromptCAL's (Zhang et al. 2023): tokens of their own for every block of a ViT."""

    def __init__(self, depth: int, count: int, width: int, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(stream_seed(seed, "prompts") % 2**63)
        tokens = nn.init.trunc_normal_(torch.empty(depth, count, width), std=0.02, generator=generator)
        self.tokens = nn.Parameter(tokens)


class PromptedViT(Prompted):
    """A ViT with prompts in every block; the feature is the CLS row and the mean of the first `supervised` prompts."""

    def __init__(self, inner: VitBackbone, count: int, supervised: int, seed: int):
        blocks = [*inner.frozen, *inner.tuned]
        super().__init__(inner, BlockPrompts(len(blocks), count, inner.width, seed))
        self._vit, self.count, self.supervised = (inner,), count, supervised
        self.width = 2 * inner.width

    def tail(self, tokens: Tensor) -> Tensor:
        """(N, 4, S, S) -> (N, 2 · width)."""
        (vit,) = self._vit
        prompts = self.prompts.tokens  # not get_parameter: a teacher puts tensors in the place of parameters
        assert isinstance(prompts, Tensor)
        rows = vit.embed(tokens[:, :3])
        for i, block in enumerate([*vit.frozen, *vit.tuned]):
            own = prompts[i].expand(rows.shape[0], -1, -1)  # not len(rows), which a trace takes for a constant
            rest = rows[:, 1:] if i == 0 else rows[:, 1 + self.count :]
            rows = vit.through([block], torch.cat([rows[:, :1], own, rest], 1))
        rows = vit.norm(rows[:, : 1 + self.supervised])
        return torch.cat([rows[:, 0], rows[:, 1:].mean(1)], 1)
