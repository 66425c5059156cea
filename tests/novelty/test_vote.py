"""Novelty from neighbours: the vote against a slow form, its calibration on data whose truth is known."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from debgcd.evaluate import novelty_auroc
from debgcd.novelty import vote as neighbours
from debgcd.novelty.vote import Neighbours, calibrated, class_rates, interpolate, known_part, rising


def clouds(seed: int, classes: int, size: int, spread: float, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    truth = torch.arange(classes).repeat_interleave(size)
    return torch.randn(classes, width, generator=rng)[truth] + spread * torch.randn(
        classes * size, width, generator=rng
    ), truth


def labelled_part(truth: torch.Tensor, known: int, every: int | torch.Tensor = 2) -> torch.Tensor:
    return torch.where((truth < known) & (torch.arange(len(truth)) % every == 0), truth, -1)


def fitted(
    feature: torch.Tensor,
    label: torch.Tensor,
    labelled_fraction: float | None = None,
    uneven: float = neighbours.UNEVEN,
) -> Neighbours:
    head = Neighbours(feature.shape[1], len(feature), labelled_fraction, uneven)
    head.fit(feature, label)
    return head


def test_the_vote_is_the_slow_one() -> None:
    """One image at a time, as the docstrings say it: cosines in centred principal axes, ranks, weights, two sums."""
    feature, truth = clouds(0, 4, 30, 0.8)
    label = labelled_part(truth, 2)
    head = fitted(feature, label)
    centred = feature.double() - feature.double().mean(0)  # all 16 axes are kept, so the rotation does not matter
    unit = centred / centred.norm(dim=1, keepdim=True)
    found = head.vote(feature)
    for i in range(len(feature)):
        order = sorted((j for j in range(len(feature)) if j != i), key=lambda j: -float(unit[i] @ unit[j]))[:60]
        votes = {True: 0.0, False: 0.0}
        for rank, j in enumerate(order):
            votes[bool(label[j] >= 0)] += math.exp(-rank / 20)
        assert float(found[i]) == pytest.approx(
            votes[True] / (votes[True] + votes[False]), abs=5e-3
        )  # stored as halves


def test_an_image_has_no_vote_on_itself_nor_has_a_copy_of_it() -> None:
    feature, truth = clouds(1, 3, 20, 0.5)
    label = labelled_part(truth, 2)
    alone = feature.new_zeros(1, 16)
    alone[0, 3] = 50.0  # far from all others, so that its own vote would weigh most
    features = torch.cat([feature, alone, alone])
    head = fitted(features, torch.cat([label, torch.tensor([0, 0])]))
    without = fitted(features, torch.cat([label, torch.tensor([0, -1])]))
    assert head.vote(alone) == pytest.approx(float(without.vote(alone)), abs=1e-6)


def test_new_images_look_new_and_known_ones_do_not() -> None:
    feature, truth = clouds(3, 8, 60, 0.7)
    label = labelled_part(truth, 4)
    s, free = fitted(feature, label)(feature), label < 0
    assert novelty_auroc(s[free].numpy(), (truth[free] >= 4).numpy()) > 0.97
    assert ((s[free] > 0.5) == (truth[free] >= 4)).float().mean() > 0.93


def test_few_labels_are_enough_and_unseen_images_are_judged_alike() -> None:
    feature, truth = clouds(4, 8, 60, 0.7)
    label = labelled_part(truth, 4, 12)  # five per class
    head = fitted(feature[::2], label[::2])
    unseen, new = feature[1::2], truth[1::2] >= 4
    assert novelty_auroc(head(unseen).numpy(), new.numpy()) > 0.93


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_share_of_new_images_is_estimated_and_the_errors_are_those_that_are_said(share: float) -> None:
    """Overlapping classes; what is said of the errors is compared with the truth."""
    feature, truth = clouds(5, 10, 150, 1.1)
    rng = torch.Generator().manual_seed(0)
    known_rows, new_rows = (truth < 5).nonzero()[:, 0], (truth >= 5).nonzero()[:, 0]
    labelled = known_rows[torch.randperm(750, generator=rng)[:300]]
    rest = torch.tensor(sorted(set(known_rows.tolist()) - set(labelled.tolist())))
    count = round(share / (1 - share) * 300)
    rows = torch.cat([labelled, rest[torch.randperm(450, generator=rng)[:300]], new_rows[:count]])
    if count > len(new_rows):
        rows = torch.cat([labelled, rest[: round(len(new_rows) * (1 - share) / share)], new_rows])
    label = torch.where(torch.arange(len(rows)) < 300, truth[rows], -1)
    head = fitted(feature[rows], label)
    found, free = head.threshold(), label < 0
    new = truth[rows][free] >= 5
    assert found.share == pytest.approx(float(new.float().mean()), abs=0.12)
    assert found.share_low - 1e-6 <= found.share <= found.share_high + 1e-6
    assert found.above == 0.5
    said = head(feature[rows])[free] > 0.5
    if share == 0.2:
        assert (found.error_known, found.error_new) == (None, None)  # so few new images leave it open
    else:
        assert found.error_known == pytest.approx(float(said[~new].float().mean()), abs=0.1)
        assert found.error_new == pytest.approx(float((~said[new]).float().mean()), abs=0.15)


def test_of_too_few_labels_no_error_is_stated() -> None:
    feature, truth = clouds(4, 8, 60, 0.7)
    few, enough = (fitted(feature, labelled_part(truth, 4, every)).threshold() for every in (12, 4))
    assert (few.error_known, few.error_new) == (None, None) and few.share is not None
    assert enough.error_known is not None and enough.error_new is not None


def test_expected_errors_by_hand() -> None:
    """Four labelled images, one of which looks new; six others, three of which do, and at most two thirds of which are new."""
    novelty = torch.tensor([0.1, 0.2, 0.3, 0.9, 0.8, 0.9, 1.0, 0.2, 0.4, 0.0]).double()
    labelled = torch.arange(10) < 4
    wrong, missed = neighbours.expected_errors(novelty, labelled, torch.ones(10).double(), 2 / 3)
    assert wrong == pytest.approx((1 / 4 + 0.3 / 2.7) / 2)
    assert missed == pytest.approx((1 - (3 / 6 - 1 / 3 / 4) / (2 / 3) + 0.6 / 3.3) / 2)


def test_a_known_share_of_new_images_is_taken_as_given() -> None:
    feature, truth = clouds(6, 6, 50, 0.9)
    label = labelled_part(truth, 3)
    labelled = int((label >= 0).sum())
    fraction = labelled / (labelled + 0.3 * (len(label) - labelled))
    found = fitted(feature, label, fraction).threshold()
    assert (found.share, found.share_low, found.share_high) == pytest.approx((0.7, 0.7, 0.7))


def test_labels_in_uneven_shares_are_made_up_for() -> None:
    """Of two known classes one image in eight has its label, of the others nearly all."""
    feature, truth = clouds(7, 8, 100, 0.8)
    every = torch.where(truth < 2, 8, 1)
    number = torch.arange(len(truth))
    label = torch.where((truth < 4) & (number % every == 0) & (number % 10 != 0), truth, -1)
    free = label < 0
    scores = []
    for uneven in (math.inf, neighbours.UNEVEN):
        vote = fitted(feature, label, uneven=uneven).vote(feature)
        scores.append(novelty_auroc(-vote[free].numpy(), (truth[free] >= 4).numpy()))
    assert scores[1] > scores[0] + 0.01


def test_even_shares_are_left_alone() -> None:
    feature, truth = clouds(8, 8, 60, 0.8)
    head = fitted(feature, labelled_part(truth, 4))
    assert set(head.votes.tolist()) == {0.0, 1.0}


def test_rates_count_the_unlabelled_images_around_a_class() -> None:
    """Class 0 has one labelled image in five, class 1 four in five; shrunk towards the mean of the two by hand."""
    voter = torch.tensor([0, -1, -1, -1, -1, 1, 1, 1, 1, -1])
    near = torch.tensor([[1, 2, 3, 4], [6, 7, 8, 9], [5, 7, 8, 9], [5, 6, 8, 9], [5, 6, 7, 9]])
    rates = class_rates(near, voter, voter[voter >= 0], uneven=0.0)
    first, second = (4 + 1 + 5 * 0.625) / (0 + 1 + 5 * 0.375), (1 + 1 + 5 * 0.625) / (3 + 1 + 5 * 0.375)
    assert rates.tolist() == pytest.approx([math.sqrt(first / second), math.sqrt(second / first)])


def test_the_curve_is_scikit_learns_isotonic_regression() -> None:
    rng = torch.Generator().manual_seed(0)
    vote = torch.rand(200, generator=rng, dtype=torch.float64)
    labelled = torch.rand(200, generator=rng) < vote
    weight = torch.where(labelled, 1 + torch.rand(200, generator=rng).double(), 1.0)
    place, odds = rising(vote, labelled, weight)
    model = IsotonicRegression().fit(vote.numpy(), labelled.double().numpy(), sample_weight=weight.numpy())
    expected = model.predict(place.numpy())
    assert (odds / (1 + odds)).numpy() == pytest.approx(expected, abs=0.02)  # at a block's mean vote, not at its images
    assert (place.diff() > 0).all() and (odds.diff() > 0).all()


def test_a_part_without_new_images_tells_how_many_are_known() -> None:
    """New images below ½ alone; above, labelled and unlabelled known ones are as many."""
    known = torch.linspace(0, 1, 400).double()
    vote = torch.cat([known, known, torch.linspace(0, 0.5, 800).double()])
    labelled = torch.arange(1600) < 400
    assert known_part(vote, labelled, torch.ones(1600).double()) == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize("label", [[-1] * 6, [0, 1, 0, 1, 0, 1], [0, -1, -1, -1, -1, -1]])
def test_extreme_cases_are_finite(label: list[int]) -> None:
    """No label, all labelled, one labelled; fewer images than voters or axes; all images alike."""
    for feature in (clouds(9, 3, 2, 1.0)[0], torch.ones(6, 16)):
        head = fitted(feature, torch.tensor(label)) if max(label) >= 0 else Neighbours(16, 6)
        s = head(feature)
        assert s.isfinite().all() and ((s >= 0) & (s <= 1)).all()
    assert head(torch.empty(0, 16)).shape == (0,)


def test_a_tuned_space_keeps_the_calibration() -> None:
    """The n newest images are as new as the n newest were, in the order of the tuned features."""
    feature, truth = clouds(10, 8, 60, 1.2)
    label = labelled_part(truth, 4)
    head = fitted(feature, label)
    before, free = head(feature), label < 0
    tuned = clouds(10, 8, 60, 0.6)[0]
    head.refit(tuned, label, before)
    after = head(tuned)
    assert after[free].sort().values == pytest.approx(before[free].sort().values, abs=0.12)
    new = (truth[free] >= 4).numpy()
    assert novelty_auroc(after[free].numpy(), new) > novelty_auroc(before[free].numpy(), new)


def test_more_images_than_voters_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MOST", 100)
    feature, truth = clouds(11, 8, 60, 0.7)
    label = labelled_part(truth, 4)
    head = fitted(feature, label)
    assert len(head.votes) == 100
    free = label < 0
    assert novelty_auroc(head(feature)[free].numpy(), (truth[free] >= 4).numpy()) > 0.85


def test_interpolation_is_linear_between_points_and_constant_beyond() -> None:
    curve = torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.5, 0.0]])
    x = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, 5.0])
    assert interpolate(x, curve).tolist() == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_calibration_says_half_where_known_and_new_are_equally_many() -> None:
    vote = torch.tensor([0.1] * 90 + [0.2] * 20 + [0.9] * 40).double()
    labelled = torch.tensor([False] * 90 + [False] * 15 + [True] * 5 + [False] * 20 + [True] * 20)
    curve, _ = calibrated(vote, labelled, torch.ones(150).double(), known_share=25 / 125)
    s = interpolate(torch.tensor([0.1, 0.2, 0.9]), curve)
    assert s.tolist() == pytest.approx([1.0, 1 - 5 / 15, 0.0], abs=1e-6)
