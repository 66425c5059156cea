"""ORCA's losses against their slow forms, against numbers of the authors' code, and what a caller relies on."""

import math

import numpy as np
import peer_oracles as oracles
import pytest
import torch
from test_losses import CLASSIFIER, PRECISIONS, close, cosines, drawn, extreme_rows, generator, labels, normal, uniform
from torch import Tensor

from debgcd import losses
from debgcd.data.sampler import Draws
from debgcd.methods.base import Batch


def rows_of(label: Tensor, device: str = "cpu") -> Batch:
    """Two views of images with these labels; the tokens are not looked at."""
    numbers = np.arange(len(label))
    return Batch.of(torch.empty(2 * len(label), 1), Draws(numbers, numbers), label.numpy(), device)


@pytest.mark.parametrize(("seed", "rows", "categories"), drawn(CLASSIFIER))
def test_uncertainty(seed: int, rows: int, categories: int):
    p = (3 * normal(generator(seed), rows, categories)).softmax(1)
    assert close(losses.uncertainty(p), oracles.uncertainty(p.tolist()))


def test_uncertainty_lies_between_a_sure_and_a_flat_prediction():
    assert losses.uncertainty(torch.eye(4, dtype=torch.float64)).item() == 0.0
    assert losses.uncertainty(torch.full((3, 4), 0.25)).item() == 0.75


@pytest.mark.parametrize("margin", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("seed", "rows", "categories"), drawn(CLASSIFIER))
def test_margin_supervised(seed: int, rows: int, categories: int, temperature: float, margin: float):
    rng = generator(seed)
    logits = cosines(rng, rows, categories)
    y = labels(["mixed", "one label"][seed % 2], rng, rows, categories)
    expected = oracles.margin_supervised(logits.tolist(), y.tolist(), margin, temperature)
    assert close(losses.margin_supervised(logits, y, margin, temperature), expected)
    as_tensor = torch.tensor(margin, dtype=torch.float64)
    assert close(losses.margin_supervised(logits, y, as_tensor, temperature), expected)


@pytest.mark.parametrize(
    ("margin", "expected"), [(0.0, 7.8449107074537565), (0.2, 6.258817673248831), (0.5, 4.177691198115876)]
)
def test_margin_supervised_has_the_sign_and_scale_of_the_authors_code(margin: float, expected: float):
    """Numbers of its MarginLoss (MIT licence) with m = -margin and s = 10, on 10 times these cosines."""
    logits = torch.sin(1.7 * torch.arange(24, dtype=torch.float64).reshape(6, 4) + 0.3)
    y = torch.tensor([0, 2, 1, 1, 0, 3])
    assert close(losses.margin_supervised(logits, y, margin), expected)


def test_a_margin_of_zero_leaves_the_cross_entropy_and_a_larger_one_weakens_its_pull():
    rng = generator(1)
    logits, y = cosines(rng, 8, 5), torch.randint(5, (8,), generator=rng)
    assert close(losses.margin_supervised(logits, y, 0.0), losses.supervised(logits, y).item())
    pulls = []
    for margin in (0.0, 0.25, 0.5):
        leaf = logits.clone().requires_grad_()
        losses.margin_supervised(leaf, y, margin).backward()
        pulls.append(leaf.grad.gather(1, y[:, None]).abs())
    assert (pulls[0] > pulls[1]).all() and (pulls[1] > pulls[2]).all()


def test_the_margin_gets_no_gradient():
    margin = torch.tensor(0.3, requires_grad=True)
    logits = cosines(generator(0), 4, 3).requires_grad_()
    losses.margin_supervised(logits, torch.tensor([0, 1, 2, 0]), margin).backward()
    assert margin.grad is None


def batch_of(seed: int, images: int) -> tuple[Tensor, Tensor]:
    """Which images are labelled, and their labels: none or all of them for some seeds, in no order."""
    rng = generator(seed)
    count = [0, images][seed % 2] if seed < 6 else int(torch.randint(images + 1, (), generator=rng))
    return torch.randperm(images, generator=rng)[:count], torch.randint(3, (count,), generator=rng)


@pytest.mark.parametrize("width", [2, 6])
@pytest.mark.parametrize(("seed", "images"), [(seed, 1 + seed % 13) for seed in range(40)])
def test_partners(seed: int, images: int, width: int):
    rng = generator(100 + seed)
    feature = 5 * normal(rng, images, width)
    labelled, y = batch_of(seed, images)
    draw = uniform(rng, len(y))
    found = losses.partners(feature, labelled, y, draw)
    assert found.dtype == torch.long
    assert found.tolist() == oracles.partners(feature.tolist(), labelled.tolist(), y.tolist(), draw.tolist())


def test_each_other_image_of_the_class_is_a_partner_equally_often():
    labelled, y = torch.tensor([5, 1, 0, 4, 2]), torch.tensor([7, 3, 7, 7, 3])
    feature = normal(generator(0), 6, 3)
    found = []
    for share in torch.arange(0.5, 60) / 60:
        found.append(losses.partners(feature, labelled, y, share.expand(5)))
    chosen = torch.stack(found)  # (60, 6)
    for image, others in {5: (0, 4), 0: (5, 4), 4: (5, 0)}.items():
        assert [chosen[:, image].eq(other).sum().item() for other in others] == [30, 30]
    assert chosen[:, 1].eq(2).all() and chosen[:, 2].eq(1).all()
    assert chosen[:, 3].eq(chosen[0, 3]).all()  # unlabelled: no chance in it


@pytest.mark.parametrize("draw", [0.0, 1.0])
def test_partners_at_the_ends_of_the_draw(draw: float):
    y = torch.zeros(4, dtype=torch.long)
    found = losses.partners(torch.eye(4), torch.arange(4), y, torch.full((4,), draw))
    assert found.tolist() == ([1, 0, 0, 0] if draw == 0 else [3, 3, 3, 2])


def test_equal_features_are_partners_of_each_other_not_of_themselves():
    feature = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [2.0, 4.0], [-2.0, 1.0], [0.0, 0.0]])
    none = torch.zeros(0, dtype=torch.long)
    found = losses.partners(feature, none, none, torch.zeros(0))
    assert found[:4].tolist() == [2, 3, 0, 1]
    assert found[4] != 4


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("seed", "images", "categories"), drawn(CLASSIFIER))
def test_pairwise(seed: int, images: int, categories: int, temperature: float):
    rng = generator(seed)
    logits = cosines(rng, 2 * images, categories)
    partner = torch.randint(images, (images,), generator=rng)
    expected = oracles.pairwise(logits.tolist(), partner.tolist(), temperature)
    assert close(losses.pairwise(logits, partner, temperature), expected)


def test_pairwise_is_zero_for_sure_partners_and_asks_for_certainty():
    sure = torch.eye(2, dtype=torch.float64).repeat(2, 1)  # two images of two categories, two views
    assert losses.pairwise(sure, torch.tensor([0, 1]), 0.01).item() < 1e-12
    assert close(losses.pairwise(sure, torch.tensor([1, 0]), 0.01), 100 - math.log(2))
    flat = torch.zeros(4, 5, dtype=torch.float64)
    assert close(losses.pairwise(flat, torch.tensor([1, 0])), math.log(5))


@PRECISIONS
@pytest.mark.parametrize("alike", [True, False])
def test_extreme_logits(alike: bool, dtype: torch.dtype, tolerance: float):
    x = extreme_rows(8, 5, 0, alike).to(dtype)
    partner, y = torch.tensor([1, 0, 3, 3]), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
    for call, expected in [
        (lambda x: losses.pairwise(x, partner, 0.01), oracles.pairwise(x.tolist(), partner.tolist(), 0.01)),
        (
            lambda x: losses.margin_supervised(x, y, 0.5, 0.01),
            oracles.margin_supervised(x.tolist(), y.tolist(), 0.5, 0.01),
        ),
    ]:
        leaf = x.clone().requires_grad_()
        value = call(leaf)
        assert close(value, expected, tolerance)
        value.backward()
        assert leaf.grad.isfinite().all()


def test_gradients():
    rng = generator(0)
    x = cosines(rng, 8, 4).requires_grad_()
    y, partner = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]), torch.tensor([1, 2, 2, 0])
    assert torch.autograd.gradcheck(lambda x: losses.margin_supervised(x, y, 0.3), (x,))
    assert torch.autograd.gradcheck(lambda x: losses.pairwise(x, partner), (x,))
    losses.pairwise(x, partner).backward()
    trained = x.grad.abs().sum(1) > 0
    assert trained.tolist() == [True] * 4 + [True, True, True, False]  # nobody's partner: the last second view


def test_float32_is_close_to_float64_and_inputs_are_not_modified():
    rng = generator(3)
    x, feature, y = cosines(rng, 8, 4).float(), normal(rng, 4, 3).float(), torch.tensor([0, 1, 1, 0])
    draw = uniform(rng, 4).float()
    given = [x, feature, y, draw]
    before = [tensor.clone() for tensor in given]
    partner = losses.partners(feature, torch.arange(4), y, draw)
    assert partner.equal(losses.partners(feature.double(), torch.arange(4), y, draw.double()))
    for call in (
        lambda x: losses.pairwise(x, partner),
        lambda x: losses.margin_supervised(x, y.repeat(2), 0.4),
        lambda x: losses.uncertainty(x.softmax(1)),
    ):
        assert call(x).dtype == torch.float32
        assert close(call(x), call(x.double()).item(), 1e-5)
    for tensor, copy in zip(given, before, strict=True):
        assert tensor._version == 0 and tensor.equal(copy)


def test_empty_set_gives_a_live_zero():
    none = torch.zeros(0, dtype=torch.long)
    weight = torch.ones(6, 4, requires_grad=True)
    for call in (
        lambda x: losses.margin_supervised(x, none, 0.3),
        lambda x: losses.pairwise(x, none),
        losses.uncertainty,
    ):
        weight.grad = None
        value = call(torch.zeros(0, 6) @ weight)
        assert value.shape == () and value.item() == 0.0
        value.backward()
        assert weight.grad is not None and weight.grad.count_nonzero() == 0
    partner = losses.partners(torch.zeros(0, 3), none, none, torch.zeros(0))
    assert partner.shape == (0,) and partner.dtype == torch.long


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_odd_number_of_rows_is_refused(rows: int):
    with pytest.raises(ValueError, match=r"\blogits\b"):
        losses.pairwise(torch.zeros(rows, 3), torch.zeros(rows // 2, dtype=torch.long))


@pytest.mark.parametrize("length", [0, 1, 3, 5, 8])
def test_arguments_of_another_length_are_refused(length: int):
    wrong, right = torch.zeros(length, dtype=torch.long), torch.zeros(4, dtype=torch.long)
    logits, feature, draw = torch.zeros(4, 3), torch.ones(6, 3), torch.zeros(4)
    with pytest.raises(ValueError, match=r"\by\b"):
        losses.margin_supervised(logits, wrong, 0.1)
    with pytest.raises(ValueError, match=r"\bpartner\b"):
        losses.pairwise(torch.zeros(8, 3), wrong)
    with pytest.raises(ValueError, match=r"\by\b"):
        losses.partners(feature, right, wrong, draw)
    with pytest.raises(ValueError, match=r"\bdraw\b"):
        losses.partners(feature, right, right, wrong.float())


def test_arguments_of_another_shape_are_refused():
    one = torch.zeros(1, dtype=torch.long)
    with pytest.raises(ValueError, match=r"\bp\b"):
        losses.uncertainty(torch.zeros(3))
    with pytest.raises(ValueError, match=r"\bmargin\b"):
        losses.margin_supervised(torch.zeros(1, 3), one, torch.zeros(1))
    with pytest.raises(ValueError, match=r"\blogits\b"):
        losses.margin_supervised(torch.zeros(3), one, 0.1)
    with pytest.raises(ValueError, match=r"\blogits\b"):
        losses.pairwise(torch.zeros(2, 3, 4), one)
    with pytest.raises(ValueError, match=r"\bfeature\b"):
        losses.partners(torch.zeros(3), one, one, torch.zeros(1))
    with pytest.raises(ValueError, match=r"\blabelled\b"):
        losses.partners(torch.zeros(1, 3), one.repeat(2), one.repeat(2), torch.zeros(2))


@pytest.mark.parametrize("label", [[0, -1, 2, 0], [-1, -1], [1, 1]])
def test_nothing_asks_the_device_for_a_value(label: list[int]):
    """Tensors on the meta device have none. The rows come from a batch, as in a method."""
    batch = rows_of(torch.tensor(label), "meta")
    images, known = len(label), len(batch.y)
    logits, feature = torch.empty(2 * images, 5, device="meta"), torch.empty(2 * images, 3, device="meta")
    u = losses.uncertainty(logits[batch.unlabelled].softmax(1))
    partner = losses.partners(feature[:images], batch.labelled[:known], batch.y, torch.empty(known, device="meta"))
    first = logits[batch.labelled[:known]]
    total = losses.margin_supervised(first, batch.y, u.clamp(max=0.5)) + losses.pairwise(logits, partner)
    assert total.is_meta and total.shape == ()
