"""Which images a step sees: a function of (seed, step), cut into slices for ranks."""

from __future__ import annotations

import numpy as np
import pytest

from debgcd.data.sampler import Sampler, half_labelled


def labels(labelled: int, free: int) -> np.ndarray:
    return np.array([i % 3 for i in range(labelled)] + [-1] * free, dtype=np.int64)


def test_golden_batch() -> None:
    """This batch belongs to every published run with seed 0."""
    sampler = Sampler(half_labelled(labels(4, 8)), 16, seed=0)
    assert sampler.draws(3).image.tolist() == [2, 11, 4, 2, 1, 0, 5, 2, 1, 6, 9, 1, 0, 1, 10, 0]
    assert sampler.draws(3).draw.tolist() == list(range(48, 64))


@pytest.mark.parametrize(("labelled", "free"), [(10, 10), (10, 90), (90, 10), (1, 999)])
def test_half_of_what_is_drawn_is_labelled(labelled: int, free: int) -> None:
    label = labels(labelled, free)
    weights = half_labelled(label)
    np.testing.assert_array_equal(weights[label >= 0], 1)
    np.testing.assert_allclose(weights[label < 0], labelled / free)  # |D_l| / |D_u|, as in SimGCD
    drawn = np.concatenate([Sampler(weights, 128, seed=0).draws(step).image for step in range(100)])
    share = (label[drawn] >= 0).mean()
    assert abs(share - 1 / 2) < 5 * (1 / 4 / len(drawn)) ** 0.5


def test_every_image_is_drawn_and_each_of_a_kind_alike() -> None:
    label = labels(20, 60)
    drawn = np.concatenate([Sampler(half_labelled(label), 64, seed=1).draws(step).image for step in range(500)])
    counts = np.bincount(drawn, minlength=80)
    expected = np.where(label >= 0, 1 / 40, 1 / 120) * len(drawn)
    assert (abs(counts - expected) < 5 * expected**0.5).all()


def test_images_without_weight_are_never_drawn() -> None:
    weights = np.array([0.0, 1.0, 0.0, 0.0, 2.0, 0.0])
    drawn = np.concatenate([Sampler(weights, 50, seed=0).draws(step).image for step in range(40)])
    assert set(drawn.tolist()) == {1, 4}


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_slices_of_the_ranks_are_the_global_batch(ranks: int) -> None:
    sampler = Sampler(half_labelled(labels(30, 70)), 32, seed=4)
    for step in (0, 1, 17):
        whole = sampler.draws(step)
        slices = [sampler.draws(step, rank, ranks) for rank in range(ranks)]
        np.testing.assert_array_equal(np.concatenate([part.draw for part in slices]), whole.draw)
        np.testing.assert_array_equal(np.concatenate([part.image for part in slices]), whole.image)
        sizes = [len(part.image) for part in slices]
        assert max(sizes) - min(sizes) <= 1


def test_a_batch_depends_on_seed_and_step_only() -> None:
    weights = half_labelled(labels(30, 70))
    forwards = Sampler(weights, 32, seed=4)
    straight = [forwards.draws(step).image for step in range(10)]
    backwards = Sampler(weights, 32, seed=4)
    for step in reversed(range(10)):
        np.testing.assert_array_equal(backwards.draws(step).image, straight[step])
    assert not np.array_equal(straight[0], straight[1])
    assert not np.array_equal(Sampler(weights, 32, seed=5).draws(0).image, straight[0])


def test_no_two_steps_share_a_draw() -> None:
    """So that the two draws of one image never get the same views."""
    sampler = Sampler(half_labelled(labels(3, 3)), 7, seed=0)
    draws = np.concatenate([sampler.draws(step).draw for step in range(20)])
    np.testing.assert_array_equal(draws, np.arange(140))
