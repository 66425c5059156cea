"""The CLS feature of a published DINO or DINOv2 state dict, written from the papers: slowly, one head at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def original_forward(state: dict[str, Tensor], pixels: Tensor, patch: int) -> Tensor:
    """(N, 3, S, S) -> (N, width), in double precision inside."""
    w = {name: tensor.double() for name, tensor in state.items()}
    return torch.stack([_one(w, image.double(), patch) for image in pixels]).float()


def _one(w: dict[str, Tensor], image: Tensor, patch: int) -> Tensor:
    side = image.shape[-1] // patch
    kernel = w["patch_embed.proj.weight"].flatten(1)  # (width, 3 · patch²)
    rows = []
    for top in range(side):
        for left in range(side):
            square = image[:, top * patch : (top + 1) * patch, left * patch : (left + 1) * patch]
            rows.append(kernel @ square.flatten() + w["patch_embed.proj.bias"])
    positions = _positions(w["pos_embed"][0], side)
    tokens = torch.cat([w["cls_token"][0], torch.stack(rows)]) + positions
    if "register_tokens" in w:  # after the class token, and without a position
        tokens = torch.cat([tokens[:1], w["register_tokens"][0], tokens[1:]])
    depth = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks."))
    for number in range(depth):
        tokens = _block(w, f"blocks.{number}.", tokens)
    return _norm(tokens, w, "norm.")[0]


def _positions(grid: Tensor, side: int) -> Tensor:
    own = math.isqrt(len(grid) - 1)
    if side == own:
        return grid
    square = grid[1:].T.reshape(1, -1, own, own).float()  # (1, width, own, own)
    resized = torch.nn.functional.interpolate(square, size=(side, side), mode="bicubic", antialias=True)
    return torch.cat([grid[:1], resized[0].flatten(1).T.double()])


def _block(w: dict[str, Tensor], at: str, tokens: Tensor) -> Tensor:
    tokens = tokens + w.get(at + "ls1.gamma", torch.tensor(1.0)) * _attention(w, at, _norm(tokens, w, at + "norm1."))
    return tokens + w.get(at + "ls2.gamma", torch.tensor(1.0)) * _mlp(w, at, _norm(tokens, w, at + "norm2."))


def _attention(w: dict[str, Tensor], at: str, x: Tensor) -> Tensor:
    qkv = x @ w[at + "attn.qkv.weight"].T + w[at + "attn.qkv.bias"]
    width = x.shape[1]
    mixed = []
    for head in range(width // 64):
        q, k, v = (qkv[:, part * width + head * 64 :][:, :64] for part in range(3))
        scores = torch.exp(q @ k.T / math.sqrt(64))
        mixed.append(scores / scores.sum(1, keepdim=True) @ v)
    return torch.cat(mixed, 1) @ w[at + "attn.proj.weight"].T + w[at + "attn.proj.bias"]


def _mlp(w: dict[str, Tensor], at: str, x: Tensor) -> Tensor:
    if at + "mlp.w12.weight" in w:
        both = x @ w[at + "mlp.w12.weight"].T + w[at + "mlp.w12.bias"]
        gate, value = both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]
        return (gate / (1 + torch.exp(-gate)) * value) @ w[at + "mlp.w3.weight"].T + w[at + "mlp.w3.bias"]
    x = x @ w[at + "mlp.fc1.weight"].T + w[at + "mlp.fc1.bias"]
    gelu = x * (1 + torch.erf(x / math.sqrt(2))) / 2
    return gelu @ w[at + "mlp.fc2.weight"].T + w[at + "mlp.fc2.bias"]


def _norm(x: Tensor, w: dict[str, Tensor], at: str) -> Tensor:
    mean = x.mean(1, keepdim=True)
    variance = ((x - mean) ** 2).mean(1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-6) * w[at + "weight"] + w[at + "bias"]
