"""The two networks that are timed compute the same, in the two ways that they are meant to."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import SHAPE, SIZES, toy

from debgcd.errors import DebgcdError
from debgcd.reproduce.bench import measure
from debgcd.reproduce.bench.networks import (
    alternate_labels,
    from_bank,
    ours,
    plain,
    random_bank,
    random_images,
    random_vit,
    require_same_loss,
)
from debgcd.reproduce.bench.session import Session

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from performance import products

IMAGES, LABEL = random_images(8, SIZES.views.size), alternate_labels(4, SIZES.known)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """One for all: no test changes the weights in it."""
    return toy(tmp_path_factory.mktemp("bench"))


def test_the_plain_way_is_the_librarys_own_with_its_own_attention(session: Session) -> None:
    whole = plain(session, SHAPE, 2)
    assert random_vit(session, SHAPE)[0].config._attn_implementation == "eager"
    tokens = whole.trunk(IMAGES)
    assert tokens.shape == IMAGES.shape  # nothing of the network is in the trunk: every step goes through all of it
    loss = whole.loss(tokens, LABEL)
    loss.backward()
    learned = {name for name, p in whole.network.backbone.named_parameters() if p.grad is not None}
    assert learned == {name for name, p in whole.network.backbone.named_parameters() if p.requires_grad}
    blocks = {found[1] for name in learned if (found := re.search(r"layers?\.(\d+)\.", name))}
    assert blocks == {"1", "2"}  # the last two of three
    assert all(p.dtype == torch.float32 for p in whole.network.parameters())


@pytest.mark.parametrize("tuned_blocks", [1, 2])
def test_both_have_the_same_loss_before_and_after_the_same_steps(session: Session, tuned_blocks: int) -> None:
    own, other = ours(session, SHAPE, tuned_blocks), plain(session, SHAPE, tuned_blocks)
    require_same_loss(own, other, IMAGES, LABEL)
    before = own.loss(own.trunk(IMAGES), LABEL).item()
    for one in (own, other):
        for _ in range(3):
            one.step(one.trunk(IMAGES), LABEL)
    require_same_loss(own, other, IMAGES, LABEL)
    assert own.loss(own.trunk(IMAGES), LABEL).item() < before - 1e-3  # they have learned, so the check saw gradients


def test_different_networks_are_not_compared(session: Session) -> None:
    own, other = ours(session, SHAPE, 2), plain(session, SHAPE, 2)
    with torch.no_grad():
        matrices = [p for p in other.network.backbone.tuned.parameters() if p.ndim == 2]
        matrices[-1].neg_()  # changes the loss by 14 %, more than is allowed in bfloat16 as well
    with pytest.raises(DebgcdError, match="not timed"):
        require_same_loss(own, other, IMAGES, LABEL)


def test_a_loss_that_is_no_number_is_not_compared(session: Session) -> None:
    own, other = ours(session, SHAPE, 2), plain(session, SHAPE, 2)
    for one in (own, other):
        next(one.network.heads.parameters()).data.fill_(float("nan"))
    with pytest.raises(DebgcdError, match="not timed"):
        require_same_loss(own, other, IMAGES, LABEL)


def test_the_step_part_refuses_where_the_plain_network_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(session: Session, shape: object, tuned_blocks: int) -> object:
        found = plain(session, SHAPE, tuned_blocks)
        found.network.heads["classifier"].weight.data.neg_()
        return found

    monkeypatch.setattr(measure, "plain", other)
    with pytest.raises(DebgcdError, match="not timed"):
        measure.measure_step(toy(tmp_path))


def test_the_step_part_refuses_where_a_gradient_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(session: Session, shape: object, tuned_blocks: int) -> object:
        found = plain(session, SHAPE, tuned_blocks)
        for group in found.optimiser.param_groups:
            group["lr"] *= 20
        return found

    monkeypatch.setattr(measure, "plain", other)
    with pytest.raises(DebgcdError, match="not timed"):
        measure.measure_step(toy(tmp_path, repeats=3))


def test_products_are_all_of_a_forward_pass(session: Session) -> None:
    """Counted by torch on the plain network, whose every block is run."""
    from torch.utils.flop_counter import FlopCounterMode

    whole = plain(session, SHAPE, 0).network.backbone
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        whole.tail(whole.trunk(IMAGES[:1]))
    counted = products(SHAPE, SIZES.views.size, SHAPE.depth)
    assert sum(2 * often * batch * m * k * n for often, batch, m, k, n in counted) == counter.get_total_flops()


def test_a_random_bank_has_the_right_shape(tmp_path: Path) -> None:
    shape = (70, 3, 5, 4)  # more than is written at once
    random_bank(tmp_path, shape)
    assert [path.stat().st_size for path in tmp_path.glob("*/records")] == [2 * np.prod(shape)]
    tokens = random_bank(tmp_path, shape)
    assert from_bank(tokens, 6).shape == (12, 5, 4)
    (centre,) = tokens.centre(np.arange(70))
    assert centre.shape == (70, 5, 4)
    assert 0.9 < float(centre.std()) < 1.1
