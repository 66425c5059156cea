"""Blocks of a vision transformer with less work than their own forward pass, and the same result and gradients.

A matrix W after a LayerNorm of gain g and shift s takes them over, with z the tokens of zero mean and unit variance:

    W (g z + s) + b = (W g) z + (W s + b).

`first_block` uses that where tokens need no gradient, `cls_row` where only the CLS row is needed. For the one query q of a
head, with weights a over the tokens x, key and value matrices need not be applied to every token:

    q · (W_k x_j) = (W_kᵀ q) · x_j        and        Σ_j a_j (W_v x_j) = W_v (Σ_j a_j x_j).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import layer_norm, linear

Rotation = tuple[Tensor, Tensor]  # cosine and sine of every patch's position, (patches, size of a head) each


@dataclass(frozen=True)
class Parts:
    """What a block of any family is made of."""

    before: nn.LayerNorm  # of the attention
    after: nn.LayerNorm
    query: nn.Linear  # any matrix may be without bias
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear


def parts(block: nn.Module) -> Parts:
    """The parts of a block of `transformers`, whose names differ between families and versions."""
    before, after = (module for module in block.children() if isinstance(module, nn.LayerNorm))
    attention = block.get_submodule("attention")
    # q_proj or query, k_proj or key, v_proj or value; what is left is the output
    matrices = {name.rpartition(".")[2][0]: m for name, m in attention.named_modules() if isinstance(m, nn.Linear)}
    query, key, value = (matrices.pop(letter) for letter in "qkv")
    (output,) = matrices.values()
    return Parts(before, after, query, key, value, output)


def first_block(block: nn.Module, tokens: Tensor, **positions: Rotation) -> Tensor:
    """`block(tokens, **positions)` for tokens that need no gradient: (N, T, width).

    Gain and shift of the first LayerNorm are all that the gradient of the normed tokens would be computed for: three
    products with the matrices after it. Once these have taken them over, their gradient comes out of that of the matrices.
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

    No gradient as large as the tokens is made, unless the tokens need one or there is a `rotation`.
    """
    found = parts(block)
    scales = [getattr(block, name, nn.Identity()) for name in ("layer_scale1", "layer_scale2")]  # ViT has none
    # Older versions of `transformers` have ViT's MLP in two parts, the second of which also adds the residual.
    mlp = block.mlp if hasattr(block, "mlp") else nn.Sequential(block.intermediate, block.output.dense)
    row = tokens[:, 0]
    query = found.query(found.before(row)).unflatten(1, (heads, -1))  # (N, heads, size of a head)
    row = row + scales[0](found.output(_attended(found, query, tokens, rotation)))
    return row + scales[1](mlp(found.after(row)))


def _attended(found: Parts, query: Tensor, tokens: Tensor, rotation: Rotation | None) -> Tensor:
    """The values of the tokens, weighted by each head for its query: (N, width)."""
    gain, shift, by_head = found.before.weight, found.before.bias, query.shape[1:]
    plain = layer_norm(tokens, found.before.normalized_shape, eps=found.before.eps)  # (N, T, width)
    query = query * query.shape[2] ** -0.5
    scores = _folded_scores(found, query, plain) if rotation is None else _rotated_scores(found, query, plain, rotation)
    # The weights of a head sum to one, so shift and bias are added once, after the sum over the tokens.
    seen = scores.softmax(2) @ plain * gain + shift  # (N, heads, width)
    values = torch.einsum("nhw,hsw->nhs", seen, found.value.weight.unflatten(0, by_head)).flatten(1)
    return values if found.value.bias is None else values + found.value.bias


def _folded_scores(found: Parts, query: Tensor, plain: Tensor) -> Tensor:
    """(N, heads, T), each head's up to a number that its tokens share: softmax takes it away, so it is left out."""
    by_head = query.shape[1:]
    if found.key.bias is not None:
        # A part of that number, so its gradient is exactly zero. Zero, not absent: an optimiser passes over a parameter
        # without gradient and keeps no state for it, which a checkpoint would miss.
        query = query + 0 * found.key.bias.unflatten(0, by_head)
    folded = torch.einsum("nhs,hsw->nhw", query, found.key.weight.unflatten(0, by_head))
    return folded * found.before.weight @ plain.mT


def _rotated_scores(found: Parts, query: Tensor, plain: Tensor, rotation: Rotation) -> Tensor:
    """(N, heads, T) with the key of every patch turned by its position.

    The rotation is applied between W_k and the query and differs from patch to patch, so no one vector W_kᵀ q serves them
    all: the keys of all tokens are computed. CLS, whose query it is, and registers have no position and are not turned.
    """
    cosine, sine = rotation
    shift = linear(found.before.bias, found.key.weight, found.key.bias)
    keys = linear(plain, found.key.weight * found.before.weight, shift).unflatten(2, query.shape[1:]).transpose(1, 2)
    still, turned = keys.split((keys.shape[2] - len(sine), len(sine)), dim=2)  # (N, heads, T, size of a head)
    left, right = turned.chunk(2, dim=3)
    turned = turned * cosine + torch.cat([-right, left], 3) * sine
    return (torch.cat([still, turned], 2) @ query.unsqueeze(3)).squeeze(3)
