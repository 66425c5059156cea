"""Tiny vision transformers with random weights: in the hub's format, and as DINO's and DINOv2's authors save theirs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from debgcd.model.load import load_vit
from debgcd.model.vit import VitBackbone

WIDTH, DEPTH, PATCH, SIDE = 128, 3, 8, 4  # two heads of 64; 32 × 32 pixels are 4 × 4 patches
NATIVE = PATCH * SIDE
KINDS = {
    "vit": ("ViT", {"intermediate_size": 2 * WIDTH}),
    "dinov2": ("Dinov2", {"mlp_ratio": 2}),
    "dinov2_with_registers": ("Dinov2WithRegisters", {"mlp_ratio": 2, "num_register_tokens": 3}),
    "dinov3_vit": ("DINOv3ViT", {"intermediate_size": 2 * WIDTH, "num_register_tokens": 2}),
}


def hub_model(kind: str, folder: Path | None = None, shard_size: str = "1GB", **changes: Any) -> Any:
    """A model of the family, the same one each time it is called, saved in `folder` if there is one."""
    name, sizes = KINDS[kind]
    cls = getattr(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"), name + "Model")
    common = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": WIDTH // 64}
    model = cls(cls.config_class(**common, image_size=NATIVE, patch_size=PATCH, **(sizes | changes))).eval()
    values = random_tensors({name: tuple(p.shape) for name, p in model.named_parameters()})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
    if folder is not None:
        model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def own_forward(model: Any, pixels: Tensor) -> Tensor:
    """The CLS row by the library's own forward pass."""
    resize = {"interpolate_pos_encoding": True} if model.config.model_type == "vit" else {}
    return model(pixels, **resize).last_hidden_state[:, 0]


def block_parameters(model: Any, last: int) -> dict[str, Tensor]:
    """The parameters of the last blocks, by name: `...layer.<number>.` or `layers.<number>.`"""
    numbered = ((name, re.search(r"layers?\.(\d+)\.", name), p) for name, p in model.named_parameters())
    return {name: p for name, number, p in numbered if number and int(number[1]) >= DEPTH - last}


def original_state(*, scale: bool, registers: int = 0, swiglu: bool = False) -> dict[str, Tensor]:
    """A random state dict with the names and shapes of the published files, a DINOv2 one if `scale`."""
    hidden = 2 * WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, WIDTH),
        "pos_embed": (1, 1 + SIDE * SIDE, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
    }
    if scale:
        shapes["mask_token"] = (1, WIDTH)
    if registers:
        shapes["register_tokens"] = (1, registers, WIDTH)
    if swiglu:  # gate and value: two thirds of the hidden size, rounded up to a multiple of eight
        gated = (hidden * 2 // 3 + 7) // 8 * 8
        mlp = {"mlp.w12": (2 * gated, WIDTH), "mlp.w3": (WIDTH, gated)}
    else:
        mlp = {"mlp.fc1": (hidden, WIDTH), "mlp.fc2": (WIDTH, hidden)}
    linear = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)} | mlp
    for block in range(DEPTH):
        for name in ("norm1", "norm2"):
            shapes[f"blocks.{block}.{name}.weight"] = shapes[f"blocks.{block}.{name}.bias"] = (WIDTH,)
        for name, shape in linear.items():
            shapes[f"blocks.{block}.{name}.weight"], shapes[f"blocks.{block}.{name}.bias"] = shape, shape[:1]
        if scale:
            shapes[f"blocks.{block}.ls1.gamma"] = shapes[f"blocks.{block}.ls2.gamma"] = (WIDTH,)
    return random_tensors(shapes)


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """All of them random, since a fresh model's zero biases and unit scales hide mistakes; scales are around one."""
    generator = torch.Generator().manual_seed(0)
    scales = re.compile(r"norm\w*\.weight$|\.gamma$|\.lambda1$")
    return {
        name: bool(scales.search(name)) + 0.1 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def load(path: Path, tuned_blocks: int = 1, image_size: int = NATIVE) -> VitBackbone:
    """The backbone in a folder or file of this module."""
    return load_vit(str(path), tuned_blocks=tuned_blocks, image_size=image_size)


def images(size: int = NATIVE) -> Tensor:
    """Two normalised images, the same ones each time."""
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))
