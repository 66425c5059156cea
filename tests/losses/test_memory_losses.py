"""The losses of InfoSieve, DCCL, GPC, PromptCAL and EAGC against their slow forms, and what a caller relies on."""

import math

import oracles_memory as oracles
import pytest
import torch
from test_losses import CLASSIFIER, CONTRASTIVE, close, drawn, generator, normal, uniform, unit
from torch import Tensor

from debgcd import losses


def labels_of(seed: int, rows: int, classes: int = 3, none: float = 0.0) -> Tensor:
    rng = generator(seed + 500)
    y = torch.randint(classes, (rows,), generator=rng)
    return torch.where(uniform(rng, rows) < none, -1, y)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("seed", "images", "width"), drawn(CONTRASTIVE)[::3])
def test_contrasts_by_distance(seed: int, images: int, width: int, smoothing: float, relative: bool):
    z, y = normal(generator(seed), 2 * images, width), labels_of(seed, images)
    slow = oracles.nearness(z.tolist(), relative)
    found = losses.nearness(z, relative)
    assert found.tolist() == [pytest.approx(row, abs=1e-9) for row in slow]
    assert close(losses.smoothed_nce(found, smoothing, 0.5), oracles.smoothed_nce(slow, smoothing, 0.5), 1e-8)
    assert close(losses.near_contrastive(found, y), oracles.near_contrastive(slow, y.tolist()), 1e-8)


def test_a_contrast_by_distance_has_a_finite_gradient_where_two_views_are_the_same():
    z = unit(normal(generator(0), 3, 4)).repeat(2, 1).requires_grad_()
    losses.smoothed_nce(losses.nearness(z), 0.5).backward()
    assert z.grad.isfinite().all() and z.grad.any()


@pytest.mark.parametrize(("seed", "rows", "bits"), drawn(CLASSIFIER))
def test_conditions_of_codes_and_masks(seed: int, rows: int, bits: int):
    rng = generator(seed)
    code, mask = normal(rng, rows, bits).tanh(), uniform(rng, rows, bits)
    weight, y = 1.7 ** -torch.arange(bits, dtype=torch.float64), labels_of(seed, rows, bits)
    assert close(losses.code_condition(code), oracles.code_condition(code.tolist()))
    assert close(losses.mask_condition(mask), oracles.mask_condition(mask.tolist()))
    assert close(losses.code_length(mask, weight), oracles.code_length(mask.tolist(), weight.tolist()))
    logits = 3 * normal(rng, rows, bits)
    assert close(losses.categories_of_codes(logits, y), oracles.categories_of_codes(logits.tolist(), y.tolist()))


@pytest.mark.parametrize(("seed", "rows", "used"), drawn(CLASSIFIER))
def test_centre_contrast(seed: int, rows: int, used: int):
    rng = generator(seed)
    z, centres = unit(normal(rng, rows, 5)), unit(normal(rng, used + 3, 5))
    own = labels_of(seed, rows, used, none=0.3)
    temperature = 0.05 + uniform(rng, used + 3)
    expected = oracles.centre_contrast(z.tolist(), centres.tolist(), used, own.tolist(), temperature.tolist())
    assert close(losses.centre_contrast(z @ centres.T, torch.tensor(used), own, temperature), expected)


def test_without_any_centre_nothing_is_contrasted():
    z = unit(normal(generator(0), 4, 5)).requires_grad_()
    none = torch.full((4,), -1)
    cosines = z @ torch.zeros(5, 2, dtype=torch.float64)
    value = losses.centre_contrast(cosines, torch.tensor(0), none, 0.05)
    value.backward()
    assert value.item() == 0.0 and z.grad.isfinite().all() and not z.grad.any()


@pytest.mark.parametrize("seed", range(10))
def test_density_temperatures(seed: int):
    rng = generator(seed)
    points, own = normal(rng, 15, 3), labels_of(seed, 15, 5)
    own[0] = 5  # alone
    centres = torch.stack([points[own == c].mean(0) if (own == c).any() else torch.zeros(3).double() for c in range(7)])
    expected = oracles.density_temperatures(points.tolist(), own.tolist(), centres.tolist(), 0.7)
    found = losses.density_temperatures(points, own, centres, 0.7)
    assert found.tolist() == pytest.approx(expected, rel=1e-9) and found.mean().item() == pytest.approx(0.7)


def test_clusters_of_equal_points_have_a_temperature_above_zero():
    """Two of four: their density and the 10th percentile are 0, and a cosine over 0 would be infinite."""
    own = torch.arange(40) % 4
    points = torch.eye(4).double()[own]
    points[own < 2] += 0.1 * torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = losses.density_temperatures(points, own, torch.eye(4).double(), 0.7)
    assert found.mean().item() == pytest.approx(0.7)
    assert (found[2:] == found[2]).all() and 0 < found[2] < found[:2].min() / 50
    assert losses.centre_contrast(points, torch.tensor(4), own, found).isfinite()
    assert (losses.density_temperatures(torch.eye(4)[own], own, torch.eye(4), 0.7) == 0.7).all()


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_agreed_neighbours(seed: int, share: float):
    z = in_groups(seed, 40)
    there = torch.ones(40, dtype=torch.bool)
    slow = oracles.consensus(z.tolist(), 8)
    assert losses.consensus(z, 8, there).tolist() == [pytest.approx(row, abs=1e-9) for row in slow]
    found = losses.agreed(z, 10, 8, share, there)
    assert found.tolist() == oracles.agreed(z.tolist(), 10, 8, share) and found.any()


def test_the_graph_of_many_neighbours_needs_no_more_than_its_pairs():
    """A thousand neighbours of each of 2,000 rows: with a row of 2,000 per link it would take 32 GB."""
    z = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))
    found = losses.consensus(z / z.norm(dim=1, keepdim=True), 1000, torch.ones(2000, dtype=torch.bool))
    assert found.sum(1).tolist() == pytest.approx([1.0] * 2000, rel=1e-4)


@pytest.mark.parametrize("absent", [5, 40, 200])
def test_rows_that_are_not_there_change_nothing(absent: int):
    z = in_groups(1, 40)
    more = torch.cat([z, in_groups(2, absent)])
    there = torch.arange(40 + absent) < 40
    found = losses.agreed(more, 10, 8, 0.5, there)
    assert found.any() and not found[:, 30:].any()
    assert torch.equal(found[:, :30], losses.agreed(z, 10, 8, 0.5, there[:40]))


def in_groups(seed: int, rows: int) -> Tensor:
    """Unit rows around five directions: (rows, 6)."""
    rng = generator(seed)
    return unit(3 * normal(rng, 5, 6)[torch.arange(rows) % 5] + normal(rng, rows, 6))


def test_labels_overrule_the_graph():
    positive = torch.tensor([[True, True, True, False], [False, True, False, True]])
    found = losses.with_labels(positive, torch.tensor([0, -1]), torch.tensor([0, 1, -1, 0]))
    assert found.tolist() == [[True, False, True, True], [False, True, False, True]]


@pytest.mark.parametrize(("seed", "rows", "width"), drawn(CONTRASTIVE))
def test_contrasts_with_a_teacher_and_with_neighbours(seed: int, rows: int, width: int):
    rng = generator(seed)
    z, teacher, others = (unit(normal(rng, n, width)) for n in (2 * rows, 2 * rows, 6))
    positive, candidate = uniform(rng, 2 * rows, 6) < 0.3, uniform(rng, 2 * rows, 6) < 0.6
    parts = (z.tolist(), teacher.tolist(), others.tolist(), positive.tolist(), candidate.tolist())
    found = losses.neighbour_contrast((z * teacher).sum(1), z @ others.T, positive, candidate)
    assert close(found, oracles.neighbour_contrast(*parts, temperature=0.07), 1e-9)
    views = list(range(rows)) * 2
    assert close(losses.cross_nce(z, teacher), oracles.cross_contrast(z.tolist(), teacher.tolist(), views, 1.0), 1e-9)
    y = labels_of(seed, rows)
    expected = oracles.cross_contrast(z.tolist(), teacher.tolist(), (y.tolist() * 2), 0.07)
    assert close(losses.cross_contrastive(z, teacher, y), expected, 1e-9)


def test_the_known_subspace_keeps_what_known_classes_have_and_drops_the_rest():
    feature = torch.tensor([[10.0, 0.0, 0.0], [0.0, 0.5, 0.0]], dtype=torch.float64)
    s = losses.known_subspace(feature, eta=2.0)
    r = [50.0, 0.125, 0.0]
    torch.testing.assert_close(s, torch.diag(torch.tensor([v / (v + 0.25) for v in r], dtype=torch.float64)))
    energy = losses.energy(feature, s)
    assert energy.tolist() == pytest.approx([50 / 50.25, 1 / 3])


def test_the_gradient_is_changed_row_by_row():
    rng = generator(3)
    g, z, reference = normal(rng, 5, 3), normal(rng, 5, 3), normal(rng, 2, 3)
    s = losses.known_subspace(normal(rng, 9, 3))
    labelled, free, mean = torch.tensor([0, 3]), torch.tensor([1, 2, 4]), torch.tensor(0.86, dtype=torch.float64)
    found, seen = losses.guided_gradient(g, z, labelled, free, reference, s, mean, 0.7, 0.5), []
    for row, ref in zip(labelled.tolist(), reference, strict=True):
        expected = g[row] + 0.7 * (z[row] - ref) / (2 * 3)
        torch.testing.assert_close(found[row], expected)
    for row in free.tolist():
        strength = 1 - float(z[row] @ s @ z[row]) / float(z[row] @ z[row]) / 0.86
        seen.append(strength)
        torch.testing.assert_close(found[row], g[row] - 0.5 * min(1.0, max(0.0, strength)) * g[row] @ s)
    assert min(seen) < 0 < max(seen)  # one that lies in S more than labelled images do keeps its gradient
    assert torch.equal(losses.guided_gradient(g, z, labelled, free, reference, s, mean, 0.0, 0.0), g)


def test_empty_sets_of_these_give_live_zeros():
    z, none = torch.empty(0, 4, requires_grad=True), torch.empty(0, dtype=torch.int64)
    square = z @ z.T
    no_pairs = torch.empty(0, 2, dtype=torch.bool)
    cases = [
        losses.smoothed_nce(square, 0.5),
        losses.near_contrastive(square, none),
        losses.code_condition(z),
        losses.mask_condition(z),
        losses.code_length(z, torch.ones(4)),
        losses.categories_of_codes(z, none),
        losses.centre_contrast(z @ torch.ones(4, 2), torch.tensor(2), none, 0.1),
        losses.neighbour_contrast(z.sum(1), z @ torch.ones(4, 2), no_pairs, no_pairs),
        losses.cross_nce(z, z),
        losses.cross_contrastive(z, z, none),
    ]
    for value in cases:
        assert value.item() == 0.0 and math.isfinite(value.item())
        value.backward(retain_graph=True)
