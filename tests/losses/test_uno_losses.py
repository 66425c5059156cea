"""UNO's losses against their slow forms, against numbers of the authors' code, and what a caller relies on."""

import math

import numpy as np
import peer_oracles as oracles
import pytest
import torch
from test_losses import CLASSIFIER, cosines, drawn, generator, normal, uniform
from torch import Tensor

from debgcd import losses
from debgcd.data.sampler import Draws
from debgcd.methods.base import Batch


def batch_of(label: Tensor, device: str = "cpu") -> Batch:
    """Two views of images with these labels; the tokens are not looked at."""
    numbers = np.arange(len(label))
    return Batch.of(torch.empty(2 * len(label), 1), Draws(numbers, numbers), label.numpy(), device)


def same(actual: Tensor, expected: list, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=tolerance, atol=tolerance)


def heads_of(seed: int, heads: int, rows: int, categories: int) -> Tensor:
    return 2 * uniform(generator(seed), heads, rows, categories) - 1


def some_labels(seed: int, images: int) -> list[int]:
    """-1 where there is none; for some seeds all or none have one."""
    rng = generator(seed)
    label = torch.randint(3, (images,), generator=rng)
    share = [0.0, 1.0, 0.5, 0.3][seed % 4]
    return torch.where(torch.rand(images, generator=rng) < share, label, -1).tolist()


@pytest.mark.parametrize(("iterations", "epsilon"), [(3, 0.05), (1, 0.05), (5, 0.1), (3, 1.0)])
@pytest.mark.parametrize(("seed", "rows", "categories"), drawn(CLASSIFIER))
def test_sinkhorn(seed: int, rows: int, categories: int, iterations: int, epsilon: float):
    logits = cosines(generator(seed), rows, categories)
    found = losses.sinkhorn(logits, iterations, epsilon)
    same(found, oracles.sinkhorn(logits.tolist(), iterations, epsilon))
    same(found.sum(1), [1.0] * rows)


@pytest.mark.parametrize(
    ("epsilon", "row", "expected"),
    [
        (0.05, 1, [6.697966580084583e-14, 0.9766756058355601, 0.0233243941643728]),
        (0.05, 3, [0.4341425268000977, 1.3730340373452606e-10, 0.5658574730625988]),
        (0.5, 0, [0.20071838508171536, 0.769316495047587, 0.02996511987069766]),
        (0.5, 4, [0.913576384546037, 0.06776157742557276, 0.01866203802839033]),
    ],
)
def test_sinkhorn_has_the_numbers_of_the_authors_code(epsilon: float, row: int, expected: list[float]):
    """Its SinkhornKnopp (MIT licence), three iterations, on these cosines."""
    logits = torch.sin(1.7 * torch.arange(15, dtype=torch.float64).reshape(5, 3) + 0.3)
    same(losses.sinkhorn(logits, 3, epsilon)[row], expected)


def test_sinkhorn_uses_all_categories_alike():
    """Nine of ten images prefer the first category; in the end each of the five holds two images' worth."""
    logits = cosines(generator(0), 10, 5)
    logits[1:, 0] += 0.5
    same(losses.sinkhorn(logits, 200, 0.5).sum(0), [2.0] * 5)


def test_sinkhorn_of_a_stack_is_that_of_its_parts():
    logits = uniform(generator(0), 2, 3, 7, 4)
    stacked = losses.sinkhorn(logits)
    for i in range(2):
        for j in range(3):
            assert stacked[i, j].equal(losses.sinkhorn(logits[i, j]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sinkhorn_does_not_overflow(dtype: torch.dtype):
    """Exponents up to 5e4: exp(710) is beyond float64."""
    found = losses.sinkhorn(50 * cosines(generator(2), 9, 4).to(dtype), 3, 1e-3)
    assert found.dtype == dtype
    same(found.sum(1), [1.0] * 9, 1e-4)


def test_a_constant_on_all_logits_leaves_sinkhorn_as_it_is():
    logits = cosines(generator(2), 9, 4)
    same(losses.sinkhorn(logits + 1000), losses.sinkhorn(logits).tolist(), 1e-8)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(("seed", "images", "categories"), [(s, 1 + s % 9, 3 + s % 5) for s in range(24)])
def test_swapped_targets(seed: int, images: int, categories: int, heads: int):
    logits = heads_of(seed, heads, 2 * images, categories)
    label = some_labels(seed, images)
    batch = batch_of(torch.tensor(label))
    iterations, epsilon = [(3, 0.05), (2, 0.3)][seed % 2]
    found = losses.swapped_targets(logits, batch.labelled, batch.unlabelled, batch.y, iterations, epsilon)
    same(found, oracles.swapped_targets(logits.tolist(), label, iterations, epsilon))


def test_swapped_targets_by_hand():
    """The first image has label 2. The others are sure of one category each, in the second view of the opposite one."""
    first = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    second = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]])
    batch = batch_of(torch.tensor([2, -1, -1, -1]))
    found = losses.swapped_targets(torch.cat([first, second])[None], batch.labelled, batch.unlabelled, batch.y)
    assert found[0].argmax(1).tolist() == [2, 1, 0, 2, 2, 0, 1, 2]


def test_the_targets_are_constants():
    logits = heads_of(0, 2, 8, 4).requires_grad_()
    batch = batch_of(torch.tensor([0, -1, -1, 1]))
    assert not losses.sinkhorn(logits).requires_grad
    assert not losses.swapped_targets(logits, batch.labelled, batch.unlabelled, batch.y).requires_grad
    targets = logits.detach().softmax(2).requires_grad_()
    losses.swapped(logits, targets).sum().backward()
    assert targets.grad is None


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize(("seed", "rows", "categories"), drawn(CLASSIFIER))
def test_swapped(seed: int, rows: int, categories: int, heads: int, temperature: float):
    logits = heads_of(seed, heads, rows, categories)
    targets = normal(generator(50 + seed), heads, rows, categories).softmax(2)
    found = losses.swapped(logits, targets, temperature)
    assert found.shape == (heads,)
    same(found, oracles.swapped(logits.tolist(), targets.tolist(), temperature))


def test_swapped_with_labels_alone_is_the_cross_entropy():
    logits, y = heads_of(1, 2, 8, 5), torch.tensor([0, 2, 1, 1])
    batch = batch_of(y)
    found = losses.swapped(logits, losses.swapped_targets(logits, batch.labelled, batch.unlabelled, batch.y))
    same(found, [losses.supervised(head, y.repeat(2)).item() for head in logits])


def test_swapped_tells_the_better_head():
    """One head says the same of both views, the other one does not."""
    rows = torch.eye(4, dtype=torch.float64)
    logits = torch.stack([torch.cat([rows, rows]), torch.cat([rows, rows.roll(1, 0)])])
    batch = batch_of(torch.full((4,), -1))
    value = losses.swapped(logits, losses.swapped_targets(logits, batch.labelled, batch.unlabelled, batch.y))
    assert value.argmin() == 0


def test_over_clustering_heads_have_more_columns_than_there_are_categories():
    label = [1, -1, 0, -1, -1]
    batch = batch_of(torch.tensor(label))
    logits = heads_of(3, 2, 10, 11)
    found = losses.swapped_targets(logits, batch.labelled, batch.unlabelled, batch.y)
    same(found, oracles.swapped_targets(logits.tolist(), label))
    assert found[:, batch.labelled].argmax(2).tolist() == [[1, 0, 1, 0]] * 2


def test_default_settings():
    logits = heads_of(5, 2, 6, 4)
    targets = losses.swapped_targets(logits, torch.zeros(0).long(), torch.arange(6), torch.zeros(0).long())
    same(targets, oracles.swapped_targets(logits.tolist(), [-1, -1, -1], 3, 0.05))
    same(losses.sinkhorn(logits[0]), oracles.sinkhorn(logits[0].tolist(), 3, 0.05))
    same(losses.swapped(logits, targets), oracles.swapped(logits.tolist(), targets.tolist(), 0.1))


def test_gradients():
    logits = heads_of(0, 2, 6, 4).requires_grad_()
    targets = normal(generator(1), 2, 6, 4).softmax(2)
    assert torch.autograd.gradcheck(lambda x: losses.swapped(x, targets), (logits,))


def test_extreme_logits_have_finite_losses_and_gradients():
    for dtype in (torch.float32, torch.float64):
        logits = (1e4 * heads_of(0, 2, 6, 4)).to(dtype).requires_grad_()
        none = torch.zeros(0, dtype=torch.long)
        value = losses.swapped(logits, losses.swapped_targets(logits, none, torch.arange(6), none), 0.01)
        assert value.isfinite().all()
        value.sum().backward()
        assert logits.grad.isfinite().all()


def test_float32_is_close_to_float64_and_inputs_are_not_modified():
    logits, batch = heads_of(4, 3, 8, 5).float(), batch_of(torch.tensor([0, -1, 2, -1]))
    before = logits.clone()
    values = []
    for x in (logits, logits.double()):
        targets = losses.swapped_targets(x, batch.labelled, batch.unlabelled, batch.y)
        assert targets.dtype == x.dtype
        values.append(losses.swapped(x, targets))
    assert values[0].dtype == torch.float32
    same(values[0].double(), values[1].tolist(), 1e-5)
    assert logits._version == 0 and logits.equal(before)


def test_empty_set_gives_a_live_zero_for_each_head():
    none = torch.zeros(0, dtype=torch.long)
    weight = torch.ones(6, 4, requires_grad=True)
    logits = (torch.zeros(0, 6) @ weight).expand(3, 0, 4)
    targets = losses.swapped_targets(logits, none, none, none)
    assert targets.shape == (3, 0, 4)
    value = losses.swapped(logits, targets)
    assert value.tolist() == [0.0] * 3
    value.sum().backward()
    assert weight.grad is not None and weight.grad.count_nonzero() == 0
    assert losses.sinkhorn(torch.zeros(2, 0, 4)).shape == (2, 0, 4)


def test_arguments_of_another_shape_are_refused():
    none, rows = torch.zeros(0, dtype=torch.long), torch.arange(6)
    logits = torch.zeros(2, 6, 4)
    for call, name in [
        (lambda: losses.sinkhorn(torch.zeros(3)), "logits"),
        (lambda: losses.sinkhorn(logits, 0), "iterations"),
        (lambda: losses.swapped_targets(torch.zeros(6, 4), none, rows, none), "logits"),
        (lambda: losses.swapped_targets(torch.zeros(2, 5, 4), none, rows[:5], none), "logits"),
        (lambda: losses.swapped_targets(logits, none, rows[:4], none), "free"),
        (lambda: losses.swapped_targets(logits, rows[:4], rows, rows[:2]), "labelled"),
        (lambda: losses.swapped_targets(logits, rows[:3], rows[3:], rows[:1]), "free"),
        (lambda: losses.swapped_targets(logits, rows[:2], rows[2:], rows[:2]), "y"),
        (lambda: losses.swapped_targets(logits, rows[:2], rows[2:], none), "y"),
        (lambda: losses.swapped(torch.zeros(6, 4), torch.zeros(6, 4)), "logits"),
        (lambda: losses.swapped(logits, torch.zeros(2, 6, 3)), "targets"),
    ]:
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            call()


@pytest.mark.parametrize("label", [[0, -1, 2], [-1, -1], [1, 1]])
def test_nothing_asks_the_device_for_a_value(label: list[int]):
    """Tensors on the meta device have none."""
    batch = batch_of(torch.tensor(label), "meta")
    logits = torch.empty(2, 2 * len(label), 5, device="meta")
    value = losses.swapped(logits, losses.swapped_targets(logits, batch.labelled, batch.unlabelled, batch.y))
    assert value.is_meta and value.shape == (2,)


@pytest.mark.parametrize("categories", [1, 2, 10])
def test_equal_cosines_give_equal_shares(categories: int):
    flat = torch.full((2, 6, categories), 0.3, dtype=torch.float64)
    targets = losses.sinkhorn(flat)
    same(targets, torch.full((2, 6, categories), 1 / categories).double().tolist(), 1e-7)
    same(losses.swapped(flat, targets), [math.log(categories)] * 2)
