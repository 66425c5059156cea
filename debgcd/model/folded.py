"""Cheaper forward passes of vision transformer blocks, with the same results and gradients.

The gain g and shift s of a LayerNorm can be folded into the matrix W that follows it, where z are the standardised tokens:

    W (g z + s) + b = (W g) z + (W s + b).

`first_block` uses this if the tokens need no gradient, `cls_row` if only the CLS row is needed. With only one query q per
head, and attention weights a over the tokens x, the key and value matrices need not be applied to every token:

    q · (W_k x_j) = (W_kᵀ q) · x_j        and        Σ_j a_j (W_v x_j) = W_v (Σ_j a_j x_j).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import layer_norm, linear

Rotation = tuple[Tensor, Tensor]  # cosine and sine of each patch position, (patches, head size) each


@dataclass(frozen=True)
class Parts:
    """The parts that blocks of all families have."""

    before: nn.LayerNorm  # the LayerNorm before the attention
    after: nn.LayerNorm  # the one after it
    query: nn.Linear  # each linear layer may lack a bias
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear


def parts(block: nn.Module) -> Parts:
    """Find the parts of a `transformers` block; their names differ between families and versions."""
    before, after = (module for module in block.children() if isinstance(module, nn.LayerNorm))
    attention = block.get_submodule("attention")
    # q_proj or query, k_proj or key, v_proj or value; the remaining one is the output
    matrices = {name.rpartition(".")[2][0]: m for name, m in attention.named_modules() if isinstance(m, nn.Linear)}
    query, key, value = (matrices.pop(letter) for letter in "qkv")
    (output,) = matrices.values()
    return Parts(before, after, query, key, value, output)


def first_block(block: nn.Module, tokens: Tensor, **positions: Rotation) -> Tensor:
    """`block(tokens, **positions)` for tokens that need no gradient: (N, T, width).

    The gradient of the normalised tokens, three matrix products, would be needed only for the gain and shift of the first
    LayerNorm. Once these are folded into the matrices, their gradient follows from the gradient of the matrices.
    """
    found = parts(block)
    names = {module: name for name, module in block.named_modules()}
    gain, shift = found.before.weight, found.before.bias
    instead = {
        f"{names[found.before]}.weight": torch.ones_like(gain),
        f"{names[found.before]}.bias": torch.zeros_like(shift),
    }
    for matrix in (found.query, found.key, found.value):
        instead[f"{names[matrix]}.weight"] = matrix.weight * gain
        instead[f"{names[matrix]}.bias"] = linear(shift, matrix.weight, matrix.bias)
    return functional_call(block, instead, (tokens,), positions)


def cls_row(block: Any, tokens: Tensor, heads: int, rotation: Rotation | None) -> Tensor:
    """Row 0 of `block(tokens)` in evaluation mode: (N, 1 + registers + patches, width) -> (N, width).

    Allocates no gradient of the size of the tokens, unless the tokens need one or there is a `rotation`.
    """
    found = parts(block)
    scales = [getattr(block, name, nn.Identity()) for name in ("layer_scale1", "layer_scale2")]  # ViT has none
    # In older versions of `transformers`, ViT's MLP has two parts, and the second also adds the residual.
    mlp = block.mlp if hasattr(block, "mlp") else nn.Sequential(block.intermediate, block.output.dense)
    row = tokens[:, 0]
    query = found.query(found.before(row)).unflatten(1, (heads, -1))  # (N, heads, head size)
    row = row + scales[0](found.output(_attended(found, query, tokens, rotation)))
    return row + scales[1](mlp(found.after(row)))


def _attended(found: Parts, query: Tensor, tokens: Tensor, rotation: Rotation | None) -> Tensor:
    """The attention output before the output matrix: (N, width)."""
    gain, shift, by_head = found.before.weight, found.before.bias, query.shape[1:]
    plain = layer_norm(tokens, found.before.normalized_shape, eps=found.before.eps)  # (N, T, width)
    # The attention weights of a head sum to one, so shift and bias can be added once, after the sum over the tokens.
    seen = _weights(found, query, plain, rotation) @ plain * gain + shift  # (N, heads, width)
    values = torch.einsum("nhw,hsw->nhs", seen, found.value.weight.unflatten(0, by_head)).flatten(1)
    return values if found.value.bias is None else values + found.value.bias


def cls_attention(block: nn.Module, tokens: Tensor, heads: int, rotation: Rotation | None) -> Tensor:
    """Attention weights of row 0 over all tokens: (N, T, width) -> (N, heads, T)."""
    found = parts(block)
    query = found.query(found.before(tokens[:, 0])).unflatten(1, (heads, -1))
    plain = layer_norm(tokens, found.before.normalized_shape, eps=found.before.eps)
    return _weights(found, query, plain, rotation)


def _weights(found: Parts, query: Tensor, plain: Tensor, rotation: Rotation | None) -> Tensor:
    """(N, heads, T) attention weights of one query per head."""
    query = query * query.shape[2] ** -0.5
    scores = _folded_scores(found, query, plain) if rotation is None else _rotated_scores(found, query, plain, rotation)
    return scores.softmax(2)


def _folded_scores(found: Parts, query: Tensor, plain: Tensor) -> Tensor:
    """Attention scores (N, heads, T), up to a constant per head, which cancels in the softmax."""
    by_head = query.shape[1:]
    if found.key.bias is not None:
        # The key bias only adds to that constant, so its gradient is exactly zero. It must be zero rather than None: the
        # optimiser skips a parameter without a gradient and keeps no state for it, and checkpoints expect that state.
        query = query + 0 * found.key.bias.unflatten(0, by_head)
    folded = torch.einsum("nhs,hsw->nhw", query, found.key.weight.unflatten(0, by_head))
    return folded * found.before.weight @ plain.mT


def _rotated_scores(found: Parts, query: Tensor, plain: Tensor, rotation: Rotation) -> Tensor:
    """Attention scores (N, heads, T) with each patch's key rotated by its position.

    The rotation acts between W_k and the query and differs per patch, so no single vector W_kᵀ q serves all patches, and the
    keys of all tokens are computed. The CLS token and the registers have no position and are not rotated.
    """
    cosine, sine = rotation
    shift = linear(found.before.bias, found.key.weight, found.key.bias)
    keys = linear(plain, found.key.weight * found.before.weight, shift).unflatten(2, query.shape[1:]).transpose(1, 2)
    still, turned = keys.split((keys.shape[2] - len(sine), len(sine)), dim=2)  # (N, heads, T, head size)
    left, right = turned.chunk(2, dim=3)
    turned = turned * cosine + torch.cat([-right, left], 3) * sine
    return (torch.cat([still, turned], 2) @ query.unsqueeze(3)).squeeze(3)
