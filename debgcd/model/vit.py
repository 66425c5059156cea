"""Vision transformers (DINO, DINOv2 with and without registers, DINOv3), split into trunk and tail.

The models are those of Hugging Face `transformers`, which `load` builds.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from debgcd.errors import UsageError
from debgcd.model.backbone import Backbone, Identity
from debgcd.model.folded import Rotation, cls_attention, cls_row, first_block

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class VitBackbone(Backbone):
    """A vision transformer, split before its last `tuned_blocks` blocks; the feature is the normalised CLS row."""

    standardise = False
    tuned: nn.ModuleList

    def __init__(
        self,
        model: Any,
        identity: Identity,
        *,
        tuned_blocks: int,
        image_size: int,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        depth = model.config.num_hidden_layers
        # Names of parts differ between families and versions, but each model has one list of blocks and one outer LayerNorm.
        blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth)
        self.identity = identity
        self.width = model.config.hidden_size
        self.heads = model.config.num_attention_heads
        self.image_size, self.patch = image_size, model.config.patch_size
        self.embeddings = model.embeddings
        self.rotary = getattr(model, "rope_embeddings", None)  # DINOv3: positions are encoded in every block
        self.tail_blocks = tuned_blocks
        self.frozen = nn.ModuleList(blocks[: depth - tuned_blocks])
        self.tuned = nn.ModuleList(blocks[depth - tuned_blocks :])
        self.norm = next(m for m in model.children() if isinstance(m, nn.LayerNorm))
        # ViT resizes its position embeddings only on request; the other families have no such switch.
        asks = "interpolate_pos_encoding" in inspect.signature(self.embeddings.forward).parameters
        self._resize: dict[str, bool] = {"interpolate_pos_encoding": True} if asks else {}
        self.register_buffer("pixel_mean", 255 * torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", 255 * torch.tensor(std).view(3, 1, 1), persistent=False)
        self.requires_grad_(False)
        self.tuned.requires_grad_(True)
        self.eval()

    def tokens(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) normalised pixels -> (N, 1 + registers + patches, width), or only the CLS row if there is no tail."""
        if pixels.shape[-2:] != (self.image_size, self.image_size):
            got = "×".join(map(str, pixels.shape[-2:]))
            raise ValueError(f"images are {got}, but this backbone was loaded for image_size {self.image_size}")
        tokens = self.embed(pixels)
        return self.through(self.frozen, tokens) if self.tail_blocks else self._cls_row([*self.frozen], tokens)[:, None]

    def tail(self, tokens: Tensor) -> Tensor:
        """Output of `tokens` -> the CLS row, (N, width)."""
        return self.norm(self._cls_row([*self.tuned], tokens) if self.tail_blocks else tokens[:, 0])

    @torch.no_grad()
    def attention(self, tokens: Tensor) -> Tensor:
        """Attention of the last block's CLS token over the patches: output of `tokens` -> (N, heads, rows, columns)."""
        if not self.tail_blocks:
            raise UsageError("attention needs at least one tuned block: without one, the trunk keeps only the CLS row")
        last = self.through(self.tuned[:-1], tokens)
        seen = cls_attention(self.tuned[-1], last, self.heads, self._rotation(tokens))
        side = self.image_size // self.patch
        return seen[:, :, -side * side :].unflatten(2, (side, side))

    def _cls_row(self, blocks: Sequence[nn.Module], tokens: Tensor) -> Tensor:
        """The CLS row after at least one block: (N, width)."""
        return cls_row(blocks[-1], self.through(blocks[:-1], tokens), self.heads, self._rotation(tokens))

    def embed(self, pixels: Tensor) -> Tensor:
        """Normalised pixels -> the tokens before the first block."""
        return self.embeddings(pixels, **self._resize)

    def through(self, blocks: Iterable[nn.Module], tokens: Tensor) -> Tensor:
        """The tokens after these blocks."""
        rotation = self._rotation(tokens)
        positions = {} if rotation is None else {"position_embeddings": rotation}
        for block in blocks:
            learns = torch.is_grad_enabled() and next(block.parameters()).requires_grad
            forward = partial(first_block, block) if learns and not tokens.requires_grad else block
            tokens = forward(tokens, **positions)
        return tokens

    def _rotation(self, tokens: Tensor) -> Rotation | None:
        if self.rotary is None:
            return None
        # only the size, device and dtype of this tensor are used
        return self.rotary(tokens.new_empty(1, 3, self.image_size, self.image_size))
