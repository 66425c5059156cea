"""Blocks with less work than their own forward pass are the same function, and they do less work."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny import DEPTH, NATIVE, PATCH, WIDTH, block_parameters, hub_model, images, own_forward
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from debgcd.model import vit
from debgcd.model.backbone import Identity
from debgcd.model.vit import VitBackbone

pytestmark = pytest.mark.usefixtures("one_thread", "no_network")

HEADS = WIDTH // 64
# every part that a published or possible model of the families may have or lack
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit", {}),
    "vit without biases": ("vit", {"qkv_bias": False}),
    "dinov2": ("dinov2", {"drop_path_rate": 0.5}),
    "dinov2 without biases": ("dinov2", {"qkv_bias": False}),
    "dinov2 giant": ("dinov2", {"use_swiglu_ffn": True}),
    "dinov2 with registers": ("dinov2_with_registers", {"drop_path_rate": 0.5}),
    "dinov2 giant with registers": ("dinov2_with_registers", {"use_swiglu_ffn": True}),
    "dinov3": ("dinov3_vit", {"drop_path_rate": 0.5}),
    "dinov3 with a key bias": ("dinov3_vit", {"key_bias": True}),
    "dinov3 gated": ("dinov3_vit", {"use_gated_mlp": True}),
    "dinov3 without biases": (
        "dinov3_vit",
        dict.fromkeys(("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias"), False),
    ),
}


def cut(model: Any, tuned_blocks: int, size: int = NATIVE) -> VitBackbone:
    """A copy of the model as a backbone."""
    return VitBackbone(copy.deepcopy(model), Identity("tiny", None, ""), tuned_blocks=tuned_blocks, image_size=size)


@pytest.mark.parametrize("tuned_blocks", [0, 1, 2, DEPTH])
@pytest.mark.parametrize("variant", VARIANTS)
def test_exact_in_output_and_gradients(variant: str, tuned_blocks: int) -> None:
    """In double precision, where what is not the same function cannot hide in rounding."""
    kind, changes = VARIANTS[variant]
    model = hub_model(kind, **changes).double()
    backbone = cut(model, tuned_blocks)
    names = list(backbone.state_dict())
    direction = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    tokens = backbone.tokens(images().double())
    feature, expected = backbone.tail(tokens), own_forward(model, images().double())
    torch.testing.assert_close(feature, expected, atol=1e-10, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(backbone.tail(tokens), expected, atol=1e-10, rtol=0)
    assert list(backbone.state_dict()) == names
    if not tuned_blocks:
        return
    (feature * direction).sum().backward()
    (expected * direction).sum().backward()
    theirs = block_parameters(model, tuned_blocks)
    for own, (name, parameter) in zip(backbone.tuned.parameters(), theirs.items(), strict=True):
        assert own.grad is not None and parameter.grad is not None
        torch.testing.assert_close(own.grad, parameter.grad, atol=1e-10, rtol=0, msg=name)
        without_effect = ".k" in name and name.endswith("bias") and kind != "dinov3_vit"
        assert (parameter.grad.abs().max() > 1e-6) != without_effect, name


@pytest.mark.parametrize("variant", ["vit", "dinov2", "dinov2 with registers"])
def test_a_key_bias_of_the_last_block_has_a_gradient_of_zero(variant: str) -> None:
    """It has no effect, but an optimiser that finds no gradient has no state to save."""
    backbone = cut(hub_model(VARIANTS[variant][0]), 2)
    backbone.tail(backbone.tokens(images())).sum().backward()
    (bias,) = (p for name, p in backbone.tuned[-1].named_parameters() if ".k" in name and name.endswith("bias"))
    assert bias.grad is not None and not bias.grad.any()


def operations(backbone: VitBackbone, count: int, tokens: int) -> int:
    """Of the matrix products of the tail of `count` images, forward and backward."""
    counter = FlopCounterMode(display=False)
    with counter:
        backbone.tail(torch.randn(count, tokens, WIDTH)).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("kind", "for_a_token"),
    [
        # one product of the token with a vector of each head for its score, one for the sum; their two gradients
        ("vit", 2 * 4 * HEADS * WIDTH),
        ("dinov2", 2 * 4 * HEADS * WIDTH),
        ("dinov2_with_registers", 2 * 4 * HEADS * WIDTH),
        # its key and the gradient of the key matrix; the score and its two gradients; the sum and its gradient
        ("dinov3_vit", 2 * (2 * WIDTH * WIDTH + 3 * WIDTH + 2 * HEADS * WIDTH)),
    ],
)
def test_what_a_token_costs_in_the_last_block(kind: str, for_a_token: int) -> None:
    model, count = hub_model(kind), 5
    sizes = (NATIVE, NATIVE + 2 * PATCH)
    fewer, more = ((size // PATCH) ** 2 + 1 for size in sizes)
    few, many = (operations(cut(model, 1, size), count, n) for size, n in zip(sizes, (fewer, more), strict=True))
    assert many - few == count * (more - fewer) * for_a_token


@pytest.mark.parametrize("kind", ["vit", "dinov2", "dinov2_with_registers", "dinov3_vit"])
def test_no_gradient_of_the_tokens_of_the_trunk(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither theirs nor, for the sake of the first LayerNorm alone, that of the normed ones: three products less."""
    backbone, count, tokens = cut(hub_model(kind), 2), 5, (NATIVE // PATCH) ** 2 + 1

    def own(block: Any, x: Tensor, **positions: Any) -> Tensor:
        return block(x, **positions)

    ours = operations(backbone, count, tokens)
    monkeypatch.setattr(vit, "first_block", own)
    saved = operations(backbone, count, tokens) - ours
    product, row = 2 * count * tokens * WIDTH**2, 2 * WIDTH**2
    assert 3 * product - 9 * row <= saved <= 3 * product  # the shift goes through three matrices once, with gradients
