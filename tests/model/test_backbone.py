"""The trunk on many threads: the same tokens in the same order, fit for autograd, and nothing left behind when it fails."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from debgcd.model import backbone as backbones
from debgcd.model.backbone import Backbone, Identity, chunk_rows

CHUNK = 16


class Doubles(Backbone):
    """Tokens are twice the mean grey level; remembers how many images came together; fails on an image of grey level 9."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = Identity("doubles", None, "")
        self.width, self.standardise = 1, False
        self.tuned = nn.ModuleList([nn.Linear(1, 1)])
        self.register_buffer("pixel_mean", torch.zeros(3, 1, 1))
        self.register_buffer("pixel_std", torch.ones(3, 1, 1))
        self.together: list[tuple[int, int]] = []

    def tokens(self, pixels: Tensor) -> Tensor:
        self.together.append((len(pixels), torch.get_num_threads()))
        grey = pixels.mean((1, 2, 3))
        if (grey == 9).any():
            raise ValueError("nine")
        return 2 * grey[:, None]

    def tail(self, tokens: Tensor) -> Tensor:
        return self.tuned[0](tokens)


@pytest.fixture(autouse=True)
def _two_threads(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)  # the fixture sets it back
    monkeypatch.setattr(backbones, "CHUNK", 12 * CHUNK)  # numbers of so many images of `grey`


def grey(levels: Tensor) -> Tensor:
    return levels.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)


def threads() -> set[int]:
    """As torch sees them here and in a thread that starts now."""
    with ThreadPoolExecutor(1) as pool:
        return {torch.get_num_threads(), pool.submit(torch.get_num_threads).result()}


@pytest.mark.parametrize("count", [0, 1, 2, 3, CHUNK, 2 * CHUNK, 2 * CHUNK + 1, 9 * CHUNK])
def test_rows_keep_their_order_and_cores_get_as_much(count: int) -> None:
    backbone, levels = Doubles(), 10 + torch.arange(count)
    assert torch.equal(backbone.trunk(grey(levels)), 2.0 * levels[:, None])
    sizes = [size for size, _ in backbone.together]
    assert sum(sizes) == count and max(sizes) <= CHUNK and max(sizes) - min(sizes) <= 1
    if count > 1:
        assert len(sizes) == 2 * math.ceil(count / (2 * CHUNK))
        assert {number for _, number in backbone.together} == {1}
    assert threads() == {2}


@pytest.mark.parametrize("count", [1, 3 * CHUNK])
def test_tokens_can_be_learned_from(count: int) -> None:
    backbone = Doubles()
    tokens = backbone.trunk(grey(10 + torch.arange(count)))
    assert not tokens.is_inference() and not tokens.requires_grad
    backbone.tail(tokens).sum().backward()  # saves the tokens for the gradient of its weight
    assert float(backbone.tuned[0].weight.grad) == float(tokens.sum())


@pytest.mark.parametrize("place", [0, 5 * CHUNK - 1])
def test_a_trunk_that_fails_leaves_threads_as_they_were(place: int) -> None:
    levels = 10 + torch.arange(5 * CHUNK)
    levels[place] = 9
    before = threading.active_count()
    with pytest.raises(ValueError, match="nine"):
        Doubles().trunk(grey(levels))
    assert threads() == {2}
    assert threading.active_count() == before


@pytest.mark.parametrize(("height", "width", "most"), [(2, 2, 16), (4, 4, 4), (4, 8, 2), (8, 8, 1), (9, 9, 1)])
def test_a_chunk_has_fewer_images_the_larger_they_are(height: int, width: int, most: int) -> None:
    backbone, images = Doubles(), torch.full((2 * 3 * most, 3, height, width), 10, dtype=torch.uint8)
    assert chunk_rows(images) == most
    backbone.trunk(images)
    assert [size for size, _ in backbone.together] == [most] * 6


class Blocks(Doubles):
    """Features are a nonlinear function of tokens; remembers how many rows came together."""

    def __init__(self) -> None:
        super().__init__()
        self.tuned = nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 3)])

    def tail(self, tokens: Tensor) -> Tensor:
        self.together.append((len(tokens), torch.get_num_threads()))
        return self.tuned[1](self.tuned[0](tokens.flatten(1)).tanh())


@pytest.mark.parametrize(("rows", "chunks"), [(0, 1), (1, 1), (64, 1), (65, 2), (200, 4)])
def test_the_tail_in_chunks_is_the_tail(rows: int, chunks: int) -> None:
    """Features and gradients; 32 rows of six numbers are a chunk here for each of two cores."""
    torch.manual_seed(0)
    backbone, tokens = Blocks().double(), torch.randn(rows, 2, 3, dtype=torch.float64)
    found = backbone.features(tokens)
    sizes = [size for size, _ in backbone.together]
    assert len(sizes) == chunks and sum(sizes) == rows and max(sizes) - min(sizes) <= 1
    (found**2).sum().backward()
    gradients = [parameter.grad.clone() for parameter in backbone.tuned.parameters()]
    backbone.zero_grad()
    whole = backbone.tail(tokens)
    torch.testing.assert_close(found, whole)
    (whole**2).sum().backward()
    for parameter, gradient in zip(backbone.tuned.parameters(), gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
