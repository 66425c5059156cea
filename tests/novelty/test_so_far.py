"""Three answers for images that come later, on clouds of points whose truth is known."""

from __future__ import annotations

import pytest
import torch

from debgcd.evaluate import novelty_auroc
from debgcd.novelty.so_far import POOLED, PRIOR, Answer, Origin, SoFar

Rows = torch.Tensor


def weeks(seed: int, seen: int, unseen: int, size: int, spread: float = 0.9) -> tuple[Rows, Rows, Rows, Rows]:
    """Features and classes of what there was, and of a batch with a third as many images per class and further classes."""
    rng = torch.Generator().manual_seed(seed)
    centre = torch.randn(seen + unseen, 24, generator=rng)

    def drawn(classes: int, each: int) -> tuple[Rows, Rows]:
        truth = torch.arange(classes).repeat_interleave(each)
        return centre[truth] + spread * torch.randn(len(truth), 24, generator=rng), truth

    return *drawn(seen, size), *drawn(seen + unseen, size // 3)


def fitted(feature: Rows, truth: Rows, origin: Origin = Origin.GIVEN) -> SoFar:
    return SoFar(feature.shape[1], len(feature)).fit(feature, truth, torch.full_like(truth, origin))


@pytest.mark.parametrize("spread", [0.6, 0.9])
def test_a_batch_tells_what_was_not_there_and_how_often_it_errs(spread: float) -> None:
    feature, truth, batch, of = weeks(0, 8, 4, 60, spread)
    found, new = fitted(feature, truth)(batch), of >= 8
    assert novelty_auroc(found.none_p.numpy(), new.numpy()) > 0.95
    said = found.answers(of < 4)
    assert ((said == Answer.NONE) == (found.none_p > 0.5)).all()
    assert (said[(of < 4) & (said != Answer.NONE)] == Answer.KNOWN).all()
    assert (said[(of >= 4) & (said != Answer.NONE)] == Answer.FOUND).all()
    looks = found.none_p > 0.5
    assert found.errors.error_known == pytest.approx(float(looks[~new].float().mean()), abs=0.1)
    assert found.errors.error_new == pytest.approx(float((~looks[new]).float().mean()), abs=0.1)


def test_it_makes_no_difference_who_named_what_there_was() -> None:
    feature, truth, batch, _ = weeks(1, 6, 2, 45)
    origins = [torch.full_like(truth, Origin.GIVEN), torch.where(truth < 3, Origin.GIVEN, Origin.NAMED)]
    said = [SoFar(24, len(truth)).fit(feature, truth, origin)(batch).none_p for origin in origins]
    assert torch.equal(said[0], said[1])


def test_a_batch_of_what_there_was_has_hardly_anything_new() -> None:
    feature, truth, batch, of = weeks(2, 8, 3, 60)
    found = fitted(feature, truth)(batch[of < 8])
    assert float((found.none_p > 0.5).float().mean()) < 0.05
    assert found.errors.error_new is None  # nothing new to estimate it from


def test_classes_that_are_missing_from_a_batch_are_made_up_for() -> None:
    """Half of the classes did not come again, so the others are denser than all images together would let expect."""
    feature, truth, batch, of = weeks(3, 8, 4, 60)
    there = (of % 2 == 0) | (of >= 8)
    found, new = fitted(feature, truth)(batch[there]), of[there] >= 8
    looks = found.none_p > 0.5
    assert float(looks[~new].float().mean()) < 0.1 and float(looks[new].float().mean()) > 0.8


def test_a_single_image_is_compared_with_what_there_was() -> None:
    feature, truth, batch, of = weeks(4, 8, 4, 60, 0.6)
    head, new = fitted(feature, truth), of >= 8
    alone = torch.cat([head(batch[i : i + 1]).none_p for i in range(len(batch))])
    assert novelty_auroc(alone.numpy(), new.numpy()) > 0.9
    few = head(batch[: POOLED - 1])
    assert few.none_p == pytest.approx(alone[: POOLED - 1], abs=1e-3)
    assert few.errors.error_known is few.errors.error_new is None  # classes never seen are not like those left out


def test_categories_that_somebody_judged_are_left_out_to_learn_what_a_stranger_looks_like() -> None:
    """Half of the classes were found in two parts; a part that is left out looks like the other one, not like a stranger."""
    feature, truth, batch, of = weeks(5, 10, 4, 60, 0.9)
    half = torch.where(truth < 5, truth, truth + 5 * (torch.arange(len(truth)) % 2))
    judged = SoFar(24, len(half)).fit(feature, half, torch.where(truth < 5, Origin.GIVEN, Origin.FOUND))
    split = batch[(of >= 5) & (of < 10)]
    heads = (judged, fitted(feature, half, Origin.FOUND))
    looks = [float(torch.cat([head(row[None]).none_p for row in split]).mean()) for head in heads]
    assert looks[0] < looks[1] / 2


def test_one_category_alone_does_not_show_what_a_stranger_looks_like() -> None:
    feature, truth, batch, _ = weeks(6, 1, 1, 30)
    assert fitted(feature, truth)(batch[:3]).none_p.tolist() == pytest.approx([PRIOR] * 3)


def test_a_burst_has_no_vote_on_itself() -> None:
    """Thirty shots of one known scene are alike; without their group they would look like a class of their own."""
    feature, truth, batch, of = weeks(7, 6, 0, 60, 0.6)
    rng = torch.Generator().manual_seed(0)
    shots = batch[:1] + 0.1 * torch.randn(30, 24, generator=rng)
    both = torch.cat([batch, shots])
    group = torch.cat([torch.full_like(of, -1), torch.zeros(30, dtype=of.dtype)])
    head = fitted(feature, truth)
    assert float(head(both, group).none_p[-30:].mean()) < 0.2 < float(head(both).none_p[-30:].mean())


def test_no_image_and_few_images() -> None:
    feature, truth, batch, _ = weeks(8, 2, 1, 3)
    head = fitted(feature, truth)
    assert head(batch[:0]).none_p.shape == (0,)
    assert head(batch).none_p.isfinite().all()
