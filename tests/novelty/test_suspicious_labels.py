"""Groups in the vote, labels that look wrong, and labels given in uneven shares."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from debgcd.novelty.suspicious_labels import CLEARLY, SHIFTED, check_labels, shares_of_labels, shift, suspicious_labels
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


def sets(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Six classes of 40 images, four of them known, with 15 labels each."""
    feature, truth = clusters(6, 40, seed=seed)
    return feature, torch.where((truth < 4) & (torch.arange(len(truth)) % 40 < 15), truth, -1)


def test_labels_that_fit_the_images_need_no_warning() -> None:
    for seed in range(4):
        feature, label = sets(seed)
        assert check_labels(feature, label).warnings == []
        assert check_labels(feature, torch.where(torch.arange(len(label)) % 40 < 2, label, -1)).warnings == []  # few


def test_permuted_labels_contradict_the_images() -> None:
    for seed in range(4):
        feature, label = sets(seed)
        rows = (label >= 0).nonzero()[:, 0]
        label[rows] = label[rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]]
        (warning,) = check_labels(feature, label).warnings
        assert "the 60 labels contradict the images" in warning


def test_many_wrong_labels_are_counted() -> None:
    feature, label = sets()
    rows = (label >= 0).nonzero()[:, 0]
    wrong = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))[:18]]
    label[wrong] = (label[wrong] + 1 + torch.arange(18) % 3) % 4
    found = check_labels(feature, label)
    assert not found.chance and 12 <= found.wrong <= 30
    assert f"about {found.wrong} of 60 labels are expected to be wrong" in found.warnings[0]


def test_labelled_images_that_differ_as_a_group() -> None:
    """All moved in one direction, by as much as classes differ; the classes can still be told."""
    feature, label = sets()
    direction = torch.nn.functional.normalize(torch.randn(WIDTH, generator=torch.Generator().manual_seed(9)), dim=0)
    moved = feature + 0.2 * (label >= 0)[:, None] * direction
    assert shift(moved, label) > SHIFTED > shift(feature, label)
    assert "differ from the unlabelled ones as a group" in check_labels(moved, label).warnings[-1]
