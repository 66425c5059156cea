"""Categories that are left at the end of a run whose K was too large."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from debgcd.model.heads import merged
from debgcd.train.finish import DUPLICATE, FEWEST_KNOWN, in_use


def at(*degrees: float, known: int = FEWEST_KNOWN) -> torch.Tensor:
    """Known classes at right angles to all others, then new ones in a plane; of different lengths, which must not matter."""
    angle = torch.deg2rad(torch.tensor(degrees))
    rows = torch.block_diag(torch.eye(known), torch.stack([angle.cos(), angle.sin()], 1))
    return rows * (1 + torch.arange(len(rows)))[:, None]


# the squared distance of two known classes is 2, so that doubles are those nearer than DUPLICATE * 2; as an angle:
LIMIT = float(torch.rad2deg(torch.acos(torch.tensor(1 - DUPLICATE))))


def groups(new: tuple[float, ...], images: tuple[int, ...], known: int = FEWEST_KNOWN) -> list[list[int]]:
    """How the new ones are grouped, counted from the first; the known classes are checked to be there, each alone."""
    found = in_use(at(*new, known=known), np.array((0, *[3] * (known - 1), *images)), known)
    assert found[:known] == [[i] for i in range(known)]
    return [[i - known for i in group] for group in found[known:]]


def test_what_is_used_and_apart_stays() -> None:
    assert groups((0, 180), (4, 4)) == [[0], [1]]


def test_empty_new_categories_go_and_empty_known_ones_stay() -> None:
    assert groups((0, 20, 180), (4, 0, 4)) == [[0], [2]]


def test_two_new_ones_are_doubles_up_to_a_share_of_the_known_classes_distance() -> None:
    assert groups((180, 180 + LIMIT - 1), (4, 4)) == [[0, 1]]
    assert groups((180, 180 + LIMIT + 1), (4, 4)) == [[0], [1]]


def test_a_new_one_close_to_a_known_class_stays() -> None:
    prototypes = at(0, 180)
    prototypes[FEWEST_KNOWN] = prototypes[0] + 0.01
    assert len(in_use(prototypes, np.full(len(prototypes), 4), FEWEST_KNOWN)) == len(prototypes)


def test_the_nearest_pair_is_merged_first_and_its_middle_counts_by_images() -> None:
    """160 and 200 are doubles; their middle lies at 160 or 200, where nearly all images are, and 245 is near 200 alone."""
    assert groups((160, 200, 200 + LIMIT - 1), (1000, 1, 9)) == [[0, 1], [2]]
    assert groups((160, 200, 200 + LIMIT - 1), (1, 1000, 9)) == [[0, 1, 2]]


@pytest.mark.parametrize("known", range(1, FEWEST_KNOWN))
def test_few_known_classes_are_no_measure_for_doubles(known: int) -> None:
    assert groups((180, 180, 181), (4, 0, 4), known) == [[0], [2]]


def test_close_known_classes_make_the_rule_stricter() -> None:
    edge = 10 * DUPLICATE**0.5  # degrees, as good as exact for small angles
    close = at(180, 180 + edge + 0.2)
    close[1] = close[0]
    close[1, 1] = close[0, 0] * torch.tensor(10.0).deg2rad().tan()
    assert len(in_use(close, np.full(len(close), 4), FEWEST_KNOWN)) == FEWEST_KNOWN + 2
    close[-2:] = at(180, 180 + edge - 0.2)[-2:]
    assert len(in_use(close, np.full(len(close), 4), FEWEST_KNOWN)) == FEWEST_KNOWN + 1


@pytest.mark.parametrize("images", [(0, 3, 0, 0), (0, 0, 0, 0)])
def test_no_new_category_may_be_left(images: tuple[int, ...]) -> None:
    assert in_use(at(180, 270, known=2), np.array(images), known=2) == [[0], [1]]


def test_merged_is_the_direction_between_by_images_whatever_the_lengths() -> None:
    weight = torch.tensor([[3.0, 0.0], [0.0, 5.0], [10.0, 0.0], [0.0, 0.1]])
    found = merged(weight, np.array([0, 2, 1, 3]), [[0], [1], [2, 3]])
    torch.testing.assert_close(found[:2], weight[:2])  # alone: as it was
    between = (1 * np.array([1, 0]) + 3 * np.array([0, 1])) / np.hypot(1, 3)
    length = (1 * 10 + 3 * 0.1) / 4
    np.testing.assert_allclose(found[2].numpy(), length * between, rtol=1e-6)
