"""Views: PIL's resize, crops that reach everywhere, flips half of the time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from debgcd.data.views import CENTRE, cut_view, random_cuts, resize_short_side


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def against_pil(image: np.ndarray, size: int) -> np.ndarray:
    """Our resize less PIL's, pixel by pixel."""
    resized = resize_short_side(image, size)
    assert resized.dtype == torch.uint8
    assert min(resized.shape[1:]) == size
    pil = Image.fromarray(image).resize((resized.shape[2], resized.shape[1]), Image.Resampling.BICUBIC)
    return np.asarray(pil).astype(int) - resized.permute(1, 2, 0).numpy().astype(int)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(64, 64, 32), (60, 97, 32), (97, 60, 32), (300, 41, 36), (37, 53, 36), (375, 500, 256)],
)
def test_shrinking_is_pils_bicubic_within_one_grey_level(height: int, width: int, size: int) -> None:
    """Noise, but no black and white: where overshoot is cut off, the order of the two passes shows, and Pillow's varies."""
    for seed in range(3):
        image = 64 + noise(height, width, seed) // 2
        assert abs(against_pil(image, size)).max() <= 1


@pytest.mark.parametrize(("height", "width", "size"), [(20, 24, 36), (13, 40, 64), (5, 5, 64), (8, 8, 256)])
def test_enlarging_is_pils_bicubic_within_one_grey_level(height: int, width: int, size: int) -> None:
    """Random but smooth images; each of the two passes rounds, so that on pure noise one pixel in thousands is off by two."""
    for seed in range(3):
        coarse = Image.fromarray(64 + noise(height // 4 + 1, width // 4 + 1, seed) // 2)
        assert abs(against_pil(np.array(coarse.resize((width, height), Image.Resampling.BICUBIC)), size)).max() <= 1
        difference = abs(against_pil(64 + noise(height, width, seed) // 2, size))
        assert difference.max() <= 2
        assert (difference > 1).mean() < 1e-3


@pytest.mark.parametrize(("height", "width"), [(333, 500), (500, 333), (375, 1001), (256, 300), (8, 9)])
def test_the_long_side_keeps_the_shape_of_the_image(height: int, width: int) -> None:
    _, h, w = resize_short_side(noise(height, width), 256).shape
    assert abs(h / w - height / width) < height / width * (1 / min(h, w))  # less than one pixel of the long side
    assert (h, w) == (256 * height // min(height, width), 256 * width // min(height, width))


def test_an_image_of_the_right_size_stays_as_it_is() -> None:
    image = noise(36, 50)
    np.testing.assert_array_equal(resize_short_side(image, 36).permute(1, 2, 0).numpy(), image)
    turned = noise(50, 36).transpose(1, 0, 2)  # not contiguous
    np.testing.assert_array_equal(resize_short_side(turned, 36).permute(1, 2, 0).numpy(), turned)


def places(height: int, width: int) -> torch.Tensor:
    """An image that says of each pixel where it is: (3, h, w) with row, column, 0."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns, torch.zeros_like(rows)]).to(torch.uint8)


def test_crops_reach_every_place_and_none_outside() -> None:
    """A 13 × 16 image has 4 × 7 places for a crop of 10; all of them come alike."""
    image, size, count = places(13, 16), 10, 6000
    seen = np.zeros((4, 7), int)
    for cut in random_cuts(0, np.arange(count), views=1)[:, 0]:
        view = cut_view(image, cut, size)
        assert view.shape == (3, size, size)
        seen[int(view[0].min()), int(view[1].min())] += 1
    expected = count / 28
    assert (abs(seen - expected) < 5 * expected**0.5).all()


@pytest.mark.parametrize("edge", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_the_ends_of_the_range_are_inside(edge: float) -> None:
    for free in range(5):
        view = cut_view(places(10 + free, 10 + free), np.array([edge, edge, 1.0]), 10)
        assert view.shape == (3, 10, 10)
        assert int(view[0, 0, 0]) == int(view[1, 0, 0]) <= free
        if edge > 0.5:
            assert int(view[0, 0, 0]) == free


def test_half_of_the_views_are_flipped_and_only_from_left_to_right() -> None:
    image, flipped, count = places(12, 12), 0, 4000
    for cut in random_cuts(3, np.arange(count), views=1)[:, 0]:
        view = cut_view(image, cut, 10)
        assert bool((view[0].diff(dim=0) == 1).all())  # rows always go downwards
        right = view[1].int().diff(dim=1)
        assert bool((right == 1).all()) or bool((right == -1).all())
        flipped += int(right[0, 0] == -1)
    assert abs(flipped / count - 1 / 2) < 5 * (1 / 4 / count) ** 0.5


@pytest.mark.parametrize(
    ("n", "begins"), [(224, 0), (225, 0), (227, 2), (229, 2), (231, 4), (256, 16), (341, 58), (343, 60), (384, 80)]
)
def test_the_centre_crop_begins_where_torchvisions_does(n: int, begins: int) -> None:
    """int(round((n - size) / 2)) with Python's round, to the even number: by hand for sizes that images have."""
    row = torch.arange(n, dtype=torch.int16).expand(3, 224, n)
    assert int(cut_view(row, CENTRE[0], 224)[0, 0, 0]) == begins
    assert int(cut_view(row.transpose(1, 2), CENTRE[0], 224)[0, 0, 0]) == begins


@pytest.mark.parametrize(("height", "width"), [(10, 10), (11, 10), (12, 15), (10, 31), (256, 340)])
def test_the_centre_crop_is_the_middle_and_never_flipped(height: int, width: int) -> None:
    image = torch.arange(height * width, dtype=torch.float32).view(1, height, width).expand(3, -1, -1)
    view = cut_view(image, CENTRE[0], 10)
    top, left = divmod(int(view[0, 0, 0]), width)
    assert abs(top - (height - 10) / 2) <= 0.5
    assert abs(left - (width - 10) / 2) <= 0.5
    assert torch.equal(view, image[:, top : top + 10, left : left + 10])


def test_the_two_views_of_a_draw_differ_and_the_same_draw_gives_the_same() -> None:
    draws = np.array([3, 9, 3, 2**40])
    cuts = random_cuts(0, draws)
    assert cuts.shape == (4, 2, 3)
    np.testing.assert_array_equal(cuts[0], cuts[2])
    np.testing.assert_array_equal(random_cuts(0, np.array([9])), cuts[1:2])
    assert len(np.unique(cuts[[0, 1, 3]])) == 18  # two views of three draws: no number twice
    assert not np.isin(random_cuts(1, draws), cuts).any()
    image = resize_short_side(noise(40, 60), 36)
    first, second = (cut_view(image, cut, 24) for cut in cuts[0])
    assert not torch.equal(first, second)


def test_more_views_of_a_draw_begin_with_the_same_ones() -> None:
    np.testing.assert_array_equal(random_cuts(0, np.arange(5), 8)[:, :2], random_cuts(0, np.arange(5)))


def test_golden_cuts() -> None:
    """These cuts belong to every published run with seed 0."""
    expected = [
        [0.6738409514635416, 0.6198395328576914, 0.40562400473171134],
        [0.8152856718142624, 0.5514809357412239, 0.5878499138885541],
    ]
    assert random_cuts(0, np.array([5]))[0].tolist() == expected


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2000, 1), (1, 2000), (2, 1), (1, 37)])
def test_images_of_any_shape(height: int, width: int) -> None:
    image = noise(height, width)
    resized = resize_short_side(image, 36)
    assert min(resized.shape[1:]) == 36
    for cut in [*random_cuts(0, np.arange(20), 1)[:, 0], CENTRE[0]]:
        assert cut_view(resized, cut, 32).shape == (3, 32, 32)
    if height * width == 1:
        assert bool((resized == torch.from_numpy(image[0, 0])[:, None, None]).all())
