"""Groups in the vote, labels that look wrong, and labels given in uneven shares."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from debgcd.novelty.suspicious_labels import CLEARLY, shares_of_labels, suspicious_labels
from debgcd.novelty.vote import UNEVEN, Neighbours

WIDTH = 32


def clusters(count: int, each: int, noise: float = 0.15, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points around `count` directions, and which."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.nn.functional.normalize(torch.randn(count, WIDTH, generator=generator), dim=1)
    truth = torch.arange(count).repeat_interleave(each)
    return centre[truth] + noise * torch.randn(len(truth), WIDTH, generator=generator), truth


def bursts() -> tuple[Tensor, Tensor, Tensor]:
    """Two classes, the first half labelled; one scene of a new class with 70 shots, half of them labelled by mistake as 0."""
    feature, truth = clusters(3, 70)
    label = torch.where((truth < 2) & (torch.arange(len(truth)) % 2 == 0), truth, -1)
    group = torch.where(truth == 2, 5, -1)
    label[truth == 2] = torch.where(torch.arange(70) % 2 == 0, 0, -1)
    return feature, label, group


def test_images_of_one_group_do_not_vote_on_each_other() -> None:
    feature, label, group = bursts()
    width, images = feature.shape[1], len(feature)
    alone, together = Neighbours(width, images), Neighbours(width, images)
    alone.fit(feature, label)
    together.fit(feature, label, group=group)
    scene = group >= 0
    near = together.nearest(feature, 60)  # each finds itself among the voters, and so its group
    assert not scene[near[scene]].any() and scene[alone.nearest(feature, 60)[scene]].any(1).all()
    assert torch.equal(near, together.nearest(feature, 60, group))
    assert torch.equal(near[~scene], alone.nearest(feature, 60)[~scene])  # groups of others are no reason
    assert torch.equal(together.vote(feature), together.vote(feature, group))
    moved = feature + 0.05 * torch.randn(feature.shape, generator=torch.Generator().manual_seed(1))
    assert scene[together.nearest(moved, 60)[scene]].any()  # a new image is of no group unless it is given
    assert not scene[together.nearest(moved, 60, group)[scene]].any()


def test_everyone_in_one_group_has_no_voters() -> None:
    feature, truth = clusters(2, 5)
    head = Neighbours(WIDTH, 10)
    head.fit(feature, torch.where(truth == 0, 0, -1), group=torch.zeros(10, dtype=torch.int64))
    assert (head.nearest(feature, 60) == -1).all() and head(feature).isfinite().all()


@pytest.mark.parametrize(("classes", "each"), [(2, 10), (5, 8), (8, 60)])
def test_wrong_labels_are_found_with_the_class_their_neighbours_have(classes: int, each: int) -> None:
    feature, truth = clusters(classes, each)
    wrong = torch.arange(3, len(truth), 25)
    label = truth.clone()
    label[wrong] = (truth[wrong] + 1) % classes
    other, clearly = suspicious_labels(feature, label)
    assert (clearly >= CLEARLY).nonzero()[:, 0].tolist() == wrong.tolist()
    assert torch.equal(other[wrong], truth[wrong])
    assert ((clearly >= 0) & (clearly <= 1)).all()


def test_right_labels_of_classes_that_look_alike_raise_no_doubt() -> None:
    feature, truth = clusters(3, 60)
    rare = (truth == 2) & (
        torch.arange(180) % 6 == 0
    )  # two names for images that cannot be told apart, one of them rare
    _, clearly = suspicious_labels(feature, torch.where(rare, 3, truth))
    assert (clearly[rare] >= CLEARLY).sum() <= 1 and not (clearly[~rare] >= CLEARLY).any()


def test_a_burst_does_not_vouch_for_its_own_wrong_label() -> None:
    feature, truth = clusters(2, 40, noise=0.1)
    scene = torch.arange(5)
    feature[scene] = feature[0] + 0.03 * torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(2))
    label = truth.clone()
    label[scene] = 1
    group = torch.full((80,), -1)
    group[scene] = 0
    _, clearly = suspicious_labels(feature, label, group)
    assert (clearly[scene] >= CLEARLY).all()
    _, without = suspicious_labels(feature, label)
    assert (without[scene] < clearly[scene]).all()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_labels_raise_no_doubt(count: int) -> None:
    _, clearly = suspicious_labels(torch.randn(count, WIDTH), torch.arange(count))
    assert clearly.shape == (count,) and (clearly < CLEARLY).all()


def test_a_label_that_nobody_could_confirm_is_not_doubted() -> None:
    feature, truth = clusters(3, 20)
    label, group = truth.clone(), torch.full((60,), -1)
    label[:4], group[:4] = 3, 7  # one scene of its own class, among another class
    label[20:22] = 4  # a class of two
    _, clearly = suspicious_labels(feature, label, group)
    assert (clearly == 0).all()
    label[40] = 3
    _, clearly = suspicious_labels(feature, label, group)
    assert (clearly[:4] == 0).all()
    label[40:43] = 3  # somebody else has the label, but looks otherwise
    _, clearly = suspicious_labels(feature, label, group)
    assert (clearly[:4] >= CLEARLY).all()


def test_uneven_shares_of_labels_are_noticed() -> None:
    feature, truth = clusters(6, 60)
    place = torch.arange(60).repeat(6)
    even = torch.where(place < 30, truth, -1)
    uneven = torch.where(place < torch.tensor([6, 54] * 3)[truth], truth, -1)
    assert shares_of_labels(feature, even)[1] < UNEVEN
    rate, spread = shares_of_labels(feature, uneven)
    assert spread > UNEVEN and rate[::2].min() > rate[1::2].max()
