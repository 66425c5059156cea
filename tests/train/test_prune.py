"""Categories that are left at the end of a run whose K was too large."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from debgcd.train.prune import DOUBLE, in_use


def at(*degrees: float) -> torch.Tensor:
    """Prototypes in a plane, of different lengths, which must not matter."""
    angle = torch.deg2rad(torch.tensor(degrees))
    return torch.stack([angle.cos(), angle.sin()], 1) * (1 + torch.arange(len(degrees)))[:, None]


KNOWN = (0.0, 90.0)  # squared distance 2, so that doubles are those nearer than DOUBLE * 2
LIMIT = float(torch.rad2deg(torch.acos(torch.tensor(1 - DOUBLE))))  # as an angle


def groups(new: tuple[float, ...], images: tuple[int, ...]) -> list[list[int]]:
    return in_use(at(*KNOWN, *new), np.array((0, 3, *images)), known=2)


def test_what_is_used_and_apart_stays() -> None:
    assert groups((180, 270), (4, 4)) == [[0], [1], [2], [3]]


def test_empty_new_categories_go_and_empty_known_ones_stay() -> None:
    assert groups((180, 200, 270), (4, 0, 4)) == [[0], [1], [2], [4]]


def test_two_new_ones_are_doubles_up_to_a_share_of_the_known_classes_distance() -> None:
    assert groups((180, 180 + LIMIT - 1), (4, 4)) == [[0], [1], [2, 3]]
    assert groups((180, 180 + LIMIT + 1), (4, 4)) == [[0], [1], [2], [3]]


def test_a_new_one_close_to_a_known_class_stays() -> None:
    assert groups((1, 180), (4, 4)) == [[0], [1], [2], [3]]


def test_the_nearest_pair_is_merged_first_and_its_middle_counts_by_images() -> None:
    """160 and 200 are doubles; their middle lies at 160 or 200, where nearly all images are, and 245 is near 200 alone."""
    assert groups((160, 200, 200 + LIMIT - 1), (1000, 1, 9)) == [[0], [1], [2, 3], [4]]
    assert groups((160, 200, 200 + LIMIT - 1), (1, 1000, 9)) == [[0], [1], [2, 3, 4]]


def test_one_known_class_is_measured_against_unrelated_ones() -> None:
    assert in_use(at(0, 180, 180 + LIMIT - 1), np.array([3, 4, 4]), known=1) == [[0], [1, 2]]
    assert in_use(at(0, 180, 180 + LIMIT + 1), np.array([3, 4, 4]), known=1) == [[0], [1], [2]]


def test_close_known_classes_make_the_rule_stricter() -> None:
    close = at(0, 10, 180, 188)
    assert in_use(close, np.array([3, 3, 4, 4]), known=2) == [[0], [1], [2], [3]]
    assert in_use(at(0, 10, 180, 184), np.array([3, 3, 4, 4]), known=2) == [[0], [1], [2, 3]]


@pytest.mark.parametrize("images", [(0, 3, 0, 0), (0, 0, 0, 0)])
def test_no_new_category_may_be_left(images: tuple[int, ...]) -> None:
    assert in_use(at(0, 90, 180, 270), np.array(images), known=2) == [[0], [1]]
