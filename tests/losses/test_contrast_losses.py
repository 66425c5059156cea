"""The losses of RankStats, XCon and OpenCon against their slow forms, and what a caller relies on."""

import oracles_contrast as oracles
import pytest
import torch
from test_losses import CLASSIFIER, CONTRASTIVE, close, cosines, drawn, generator, normal, uniform, unit

from debgcd import losses


def chance(seed: int, rows: int, columns: int, share: float = 0.5) -> torch.Tensor:
    return uniform(generator(seed), rows, columns) < share


@pytest.mark.parametrize(("seed", "rows", "columns"), drawn(CLASSIFIER))
def test_contrast(seed: int, rows: int, columns: int):
    similarity, among = normal(generator(seed), rows, columns), chance(seed, rows, columns, 0.7)
    positive = among & chance(seed + 100, rows, columns)
    expected = oracles.contrast(similarity.tolist(), positive.tolist(), among.tolist())
    leaf = similarity.clone().requires_grad_()
    found = losses.contrast(leaf, positive, among)
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    found.sum().backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("top", [1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_same_ranks(seed: int, top: int):
    feature = normal(generator(seed), 12, 6)
    found = losses.same_ranks(feature, top)
    assert found.tolist() == oracles.same_ranks(feature.tolist(), top)
    assert found.diagonal().all() and (found == found.T).all()


def test_the_order_of_the_largest_dimensions_does_not_matter():
    feature = torch.tensor([[3.0, 2.0, 1.0, 0.0], [2.0, 3.0, 0.0, 1.0], [0.0, 2.0, 3.0, 1.0]])
    assert losses.same_ranks(feature, 2).tolist() == [[True, True, False], [True, True, False], [False, False, True]]


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("seed", "images", "categories"), drawn(CLASSIFIER))
def test_pairwise_agreement_and_consistency(seed: int, images: int, categories: int, temperature: float):
    logits = cosines(generator(seed), 2 * images, categories)
    same = chance(seed, images, images, 0.3).fill_diagonal_(True)
    expected = oracles.pairwise_agreement(logits.tolist(), same.tolist(), temperature)
    assert close(losses.pairwise_agreement(logits, same, temperature), expected)
    assert close(losses.view_consistency(logits, temperature), oracles.view_consistency(logits.tolist(), temperature))


def test_pairwise_agreement_as_the_authors_function():
    """Numbers of RankStats' BCE over all pairs of first and second views, on these predictions."""
    logits = torch.sin(1.3 * torch.arange(18, dtype=torch.float64).reshape(6, 3) + 0.2)
    same = torch.tensor([[True, False, True], [False, True, False], [True, False, True]])
    assert close(losses.pairwise_agreement(logits, same, 1.0), 0.8095446706962703)


def test_the_consistency_grows_over_its_ramp():
    assert losses.ramp(0.0) == pytest.approx(0.006737947) and losses.ramp(1.0) == losses.ramp(2.0) == 1.0


@pytest.mark.parametrize("temperature", [1.0, 0.07])
@pytest.mark.parametrize(("seed", "images", "width"), drawn(CONTRASTIVE))
def test_contrast_within_parts(seed: int, images: int, width: int, temperature: float):
    rng = generator(seed)
    z, part = unit(normal(rng, 2 * images, width)), torch.randint(3, (images,), generator=rng)
    y = torch.randint(3, (images,), generator=rng)
    found = losses.info_nce_within(z @ z.T, part, 5, temperature)
    assert close(found, oracles.info_nce_within(z.tolist(), part.tolist(), temperature), 1e-9)
    found = losses.supervised_contrastive_within(z @ z.T, y, part, 5, temperature)
    assert close(found, oracles.supervised_contrastive_within(z.tolist(), y.tolist(), part.tolist(), temperature), 1e-9)


def test_in_one_part_it_is_the_contrast_of_gcd():
    z, part = unit(normal(generator(0), 10, 4)), torch.zeros(5, dtype=torch.int64)
    y = torch.tensor([0, 1, 0, 1, 2])
    assert close(losses.info_nce_within(z @ z.T, part, 8), losses.info_nce(z).item())
    assert close(losses.supervised_contrastive_within(z @ z.T, y, part, 8), losses.supervised_contrastive(z, y).item())


@pytest.mark.parametrize("share", [0.7, 0.3])
@pytest.mark.parametrize("seed", range(12))
def test_looks_new(seed: int, share: float):
    images, k, known = 14, 5, 3
    rows = cosines(generator(seed), images, k)
    label = torch.where(chance(seed, images, 1, 0.0 if seed == 11 else 0.5)[:, 0], 1, -1)
    labelled, free = (label >= 0).nonzero()[:, 0], (label < 0).nonzero()[:, 0]
    found = losses.looks_new(rows, labelled, free, known, share)
    assert found.tolist() == oracles.looks_new(rows.tolist(), label.tolist(), known, share)
    assert not found[labelled].any()


@pytest.mark.parametrize(("seed", "images", "width"), drawn(CONTRASTIVE))
def test_contrast_among_new_images(seed: int, images: int, width: int):
    rng = generator(seed)
    z, y = unit(normal(rng, 2 * images, width)), torch.randint(3, (images,), generator=rng)
    chosen = chance(seed, images, 1)[:, 0]
    expected = oracles.contrastive_among(z.tolist(), y.tolist(), chosen.tolist(), 0.7)
    assert close(losses.contrastive_among(z @ z.T, y, chosen, 0.7), expected, 1e-9)


@pytest.mark.parametrize(("seed", "rows", "k"), drawn(CLASSIFIER))
def test_divergence_and_follow(seed: int, rows: int, k: int):
    rng = generator(seed)
    logits, prior = cosines(rng, rows, k), uniform(rng, k) + 0.1
    prior = prior / prior.sum()
    assert close(losses.divergence(logits, prior), oracles.divergence(logits.tolist(), prior.tolist()))
    prototypes, z = unit(normal(rng, k, 4)), unit(normal(rng, rows, 4))
    y, counts = torch.randint(k, (rows,), generator=rng), chance(seed, rows, 1)[:, 0]
    before = prototypes.clone()
    found = losses.follow(prototypes, z, y, counts, 0.9)
    expected = oracles.follow(prototypes.tolist(), z.tolist(), y.tolist(), counts.tolist(), 0.9)
    assert found.tolist() == [pytest.approx(row, abs=1e-12) for row in expected]
    assert torch.equal(prototypes, before)


@pytest.mark.parametrize("shape", [(5, 5), (6, 4), (4, 6)])
def test_a_similarity_that_is_not_of_two_views_is_refused(shape: tuple[int, int]):
    similarity, y = torch.zeros(shape), torch.zeros(shape[0] // 2, dtype=torch.int64)
    for refused in (
        lambda: losses.smoothed_nce(similarity, 0.0),
        lambda: losses.near_contrastive(similarity, y),
        lambda: losses.contrastive_among(similarity, y, y >= 0),
        lambda: losses.info_nce_within(similarity, y, 2),
    ):
        with pytest.raises(ValueError, match=r"similarity must have shape \(2B, 2B\)"):
            refused()


@pytest.mark.parametrize("images", [0, 2, 4, 6])
def test_what_is_not_of_the_images_of_the_similarity_is_refused_by_its_name(images: int):
    similarity, right, wrong = (
        torch.zeros(6, 6),
        torch.zeros(3, dtype=torch.int64),
        torch.zeros(images, dtype=torch.int64),
    )
    for name, refused in (
        ("y", lambda: losses.near_contrastive(similarity, wrong)),
        ("chosen", lambda: losses.contrastive_among(similarity, right, wrong >= 0)),
        ("part", lambda: losses.supervised_contrastive_within(similarity, right, wrong, 2)),
        ("own", lambda: losses.centre_contrast(similarity[:3], torch.tensor(6), wrong, 0.1)),
    ):
        with pytest.raises(ValueError, match=rf"\b{name} has shape"):
            refused()


def test_empty_sets_give_live_zeros():
    z, none = torch.empty(0, 4, requires_grad=True), torch.empty(0, dtype=torch.int64)
    cases = [
        losses.pairwise_agreement(z, torch.empty(0, 0, dtype=torch.bool)),
        losses.view_consistency(z),
        losses.info_nce_within(z @ z.T, none, 3),
        losses.supervised_contrastive_within(z @ z.T, none, none, 3),
        losses.contrastive_among(z @ z.T, none, none.bool()),
        losses.divergence(z, torch.full((4,), 0.25)),
    ]
    for value in cases:
        assert value.item() == 0.0
        value.backward()
    chosen = torch.zeros(3, dtype=torch.bool)
    rows = unit(normal(generator(0), 6, 4)).requires_grad_()
    value = losses.contrastive_among(rows @ rows.T, torch.zeros(3, dtype=torch.int64), chosen)
    value.backward()
    assert value.item() == 0.0 and not rows.grad.any()
