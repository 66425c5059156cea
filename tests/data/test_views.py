"""Views: PIL's resize, crops that reach everywhere, flips half of the time; kinds with other crops and colours."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from debgcd.data.views import CENTRE, PARTS, PLAIN, SMALL, STRONG, View, crop_view, random_crops, resize_short_side


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


def places(height: int, width: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """An image that says of each pixel where it is: (3, h, w) with row, column, 0."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns, torch.zeros_like(rows)]).to(dtype)


def test_crops_reach_every_place_and_none_outside() -> None:
    """A 13 × 16 image has 4 × 7 places for a crop of 10; all of them come alike."""
    image, size, count = places(13, 16), 10, 6000
    seen = np.zeros((4, 7), int)
    for cut in random_crops(0, np.arange(count), views=1)[:, 0]:
        view = crop_view(image, cut, size)
        assert view.shape == (3, size, size)
        seen[int(view[0].min()), int(view[1].min())] += 1
    expected = count / 28
    assert (abs(seen - expected) < 5 * expected**0.5).all()


@pytest.mark.parametrize("edge", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_the_ends_of_the_range_are_inside(edge: float) -> None:
    for free in range(5):
        view = crop_view(places(10 + free, 10 + free), np.array([edge, edge, 1.0, *[edge] * (PARTS - 3)]), 10)
        assert view.shape == (3, 10, 10)
        assert int(view[0, 0, 0]) == int(view[1, 0, 0]) <= free
        if edge > 0.5:
            assert int(view[0, 0, 0]) == free


def test_half_of_the_views_are_flipped_and_only_from_left_to_right() -> None:
    image, flipped, count = places(12, 12), 0, 4000
    for cut in random_crops(3, np.arange(count), views=1)[:, 0]:
        view = crop_view(image, cut, 10)
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
    assert int(crop_view(row, CENTRE[0], 224)[0, 0, 0]) == begins
    assert int(crop_view(row.transpose(1, 2), CENTRE[0], 224)[0, 0, 0]) == begins


@pytest.mark.parametrize(("height", "width"), [(10, 10), (11, 10), (12, 15), (10, 31), (256, 340)])
def test_the_centre_crop_is_the_middle_and_never_flipped(height: int, width: int) -> None:
    image = torch.arange(height * width, dtype=torch.float32).view(1, height, width).expand(3, -1, -1)
    view = crop_view(image, CENTRE[0], 10)
    top, left = divmod(int(view[0, 0, 0]), width)
    assert abs(top - (height - 10) / 2) <= 0.5
    assert abs(left - (width - 10) / 2) <= 0.5
    assert torch.equal(view, image[:, top : top + 10, left : left + 10])


def test_the_two_views_of_a_draw_differ_and_the_same_draw_gives_the_same() -> None:
    draws = np.array([3, 9, 3, 2**40])
    cuts = random_crops(0, draws)
    assert cuts.shape == (4, 2, PARTS)
    np.testing.assert_array_equal(cuts[0], cuts[2])
    np.testing.assert_array_equal(random_crops(0, np.array([9])), cuts[1:2])
    assert len(np.unique(cuts[[0, 1, 3]])) == 6 * PARTS  # two views of three draws: no number twice
    assert not np.isin(random_crops(1, draws), cuts).any()
    image = resize_short_side(noise(40, 60), 36)
    first, second = (crop_view(image, cut, 24) for cut in cuts[0])
    assert not torch.equal(first, second)


def test_more_views_of_a_draw_begin_with_the_same_ones() -> None:
    np.testing.assert_array_equal(random_crops(0, np.arange(5), 8)[:, :2], random_crops(0, np.arange(5)))


def test_golden_cuts() -> None:
    """These cuts belong to every published run with seed 0."""
    expected = [
        [0.6738409514635416, 0.6198395328576914, 0.40562400473171134],
        [0.8152856718142624, 0.5514809357412239, 0.5878499138885541],
    ]
    assert random_crops(0, np.array([5]))[0, :, :3].tolist() == expected


def test_golden_plain_views() -> None:
    """The bytes of plain views as they were before there were other kinds."""
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 40, 53), dtype=np.uint8))
    cuts = random_crops(3, np.array([0, 1, 77, 2**40]), 3).reshape(-1, PARTS)
    content = b"".join(crop_view(image, cut, 32, PLAIN).contiguous().numpy().tobytes() for cut in cuts)
    expected = "e43eb0213dd4f8c5c84c359af1e3f2fd2e0560e9398258466cdad7f27fb327d2"
    assert hashlib.sha256(content).hexdigest() == expected


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2000, 1), (1, 2000), (2, 1), (1, 37)])
def test_images_of_any_shape(height: int, width: int) -> None:
    image = noise(height, width)
    resized = resize_short_side(image, 36)
    assert min(resized.shape[1:]) == 36
    for cut in [*random_crops(0, np.arange(20), 1)[:, 0], CENTRE[0]]:
        assert crop_view(resized, cut, 32).shape == (3, 32, 32)
    for cut in random_crops(0, np.arange(20), 1)[:, 0]:
        for kind in (SMALL, STRONG, View(area=(1.0, 1.0))):
            view = crop_view(resized, cut, 32, kind)
            assert view.shape == (3, 32, 32) and view.dtype == torch.uint8
    if height * width == 1:
        assert bool((resized == torch.from_numpy(image[0, 0])[:, None, None]).all())


def boxes(monkeypatch: pytest.MonkeyPatch, height: int, width: int, view: View, count: int) -> np.ndarray:
    """Top, left, height and width of the crops of many views: (count, 4)."""
    found = []

    def resize(pixels: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        assert shape == (24, 24)
        rows, columns = pixels[0, :, 0], pixels[1, 0]
        found.append((int(rows[0]), int(columns[0]), len(rows), len(columns)))
        assert bool((rows.diff() == 1).all()) and bool((columns.diff() == 1).all())
        return torch.zeros(3, *shape, dtype=torch.uint8)

    monkeypatch.setattr("debgcd.data.views._resize", resize)
    image = places(height, width, torch.int64)
    for cut in random_crops(1, np.arange(count), views=1)[:, 0]:
        crop_view(image, cut, 24, view)
    return np.array(found)


def assert_uniform(values: np.ndarray, low: float, high: float, blur: float) -> None:
    """All in low..high, each tenth alike: within five standard deviations, and what rounding to whole pixels moves."""
    assert low - blur <= values.min() and values.max() <= high + blur
    shares = np.histogram(values, 10, (low, high))[0] / len(values)
    assert (abs(shares - 0.1) < 5 * (0.1 * 0.9 / len(values)) ** 0.5 + 2 * blur / (high - low)).all(), shares


@pytest.mark.parametrize("view", [SMALL, View(area=(0.05, 0.3)), View(area=(0.4, 0.6), jitter=1.0)])
def test_area_is_uniform_and_aspect_log_uniform(monkeypatch: pytest.MonkeyPatch, view: View) -> None:
    """Of a square image, in which a crop of up to three quarters of it fits with every aspect ratio."""
    found = boxes(monkeypatch, 1000, 1000, view, 3000)
    assert view.area is not None
    assert_uniform(found[:, 2] * found[:, 3] / 1e6, *view.area, blur=0.002)
    assert_uniform(np.log(found[:, 3] / found[:, 2]), -np.log(4 / 3), np.log(4 / 3), blur=0.006)
    for offset, side in ((0, 2), (1, 3)):
        assert_uniform(found[:, offset] / (1000 - found[:, side]), 0, 1, blur=0.002)


def test_area_and_aspect_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    found = boxes(monkeypatch, 1000, 1000, SMALL, 3000)
    area, aspect = found[:, 2] * found[:, 3], np.log(found[:, 3] / found[:, 2])
    assert abs(np.corrcoef(area, aspect)[0, 1]) < 5 / 3000**0.5


@pytest.mark.parametrize(("height", "width"), [(1000, 1000), (1000, 1250), (1250, 1000), (600, 1800), (3000, 200)])
@pytest.mark.parametrize("area", [(0.3, 1.0), (0.9, 1.0), (0.05, 0.3)])
def test_every_crop_fits_and_keeps_its_ranges(
    monkeypatch: pytest.MonkeyPatch, height: int, width: int, area: tuple[float, float]
) -> None:
    """Where a long image has no crop of such an area and aspect ratio, the largest crop with the aspect ratio is taken."""
    found = boxes(monkeypatch, height, width, View(area=area), 500)
    top, left, h, w = found.T
    assert (top >= 0).all() and (left >= 0).all() and (top + h <= height).all() and (left + w <= width).all()
    assert (w / h < 4 / 3 + 0.01).all() and (w / h > 3 / 4 - 0.01).all()
    largest = 4 / 3 * min(height, width) / max(height, width)
    share = h * w / (height * width)
    assert (share < min(area[1], largest) + 0.005).all() and (share > min(area[0], largest) - 0.005).all()
    if largest > area[1]:
        assert_uniform(share, *area, blur=0.005)


def test_a_crop_with_an_area_is_pils_resize_of_it() -> None:
    """The whole image, and a quarter of it at the lower right, flipped; smooth, so that two passes of rounding agree."""
    smooth = Image.fromarray(64 + noise(7, 8, 1) // 2).resize((48, 48), Image.Resampling.BICUBIC)
    image = torch.from_numpy(np.array(smooth)).permute(2, 0, 1)
    last = np.nextafter(1.0, 0.0)
    for area, flip, box in ((1.0, 1.0, (0, 0, 48, 48)), (0.25, 0.0, (24, 24, 48, 48))):
        cut = np.array([last, last, flip, 0.5, 0.5, *[0.5] * (PARTS - 5)])
        found = crop_view(image, cut, 32, View(area=(area, area)))
        pil = np.asarray(smooth.crop(box).resize((32, 32), Image.Resampling.BICUBIC)).astype(int)
        assert abs(found.permute(1, 2, 0).numpy() - (pil if flip else pil[:, ::-1])).max() <= 1


def test_strong_views_are_a_function_of_their_numbers() -> None:
    image = resize_short_side(noise(50, 60), 40)
    before = image.clone()
    first, second = random_crops(0, np.array([7]))[0]
    view = crop_view(image, first, 32, STRONG)
    assert torch.equal(view, crop_view(image, first, 32, STRONG)) and torch.equal(image, before)
    for other in (
        crop_view(image, second, 32, STRONG),
        crop_view(image, first, 32, SMALL),
        crop_view(image, first, 32),
    ):
        assert not torch.equal(view, other)


def test_grey_comes_as_often_as_it_should() -> None:
    image, count, grey = torch.from_numpy(noise(8, 8)).permute(2, 0, 1), 4000, 0
    for cut in random_crops(2, np.arange(count), views=1)[:, 0]:
        red, green, blue = crop_view(image, cut, 8, View(grey=0.2))
        grey += int(torch.equal(red, green) and torch.equal(green, blue))
    assert abs(grey / count - 0.2) < 5 * (0.2 * 0.8 / count) ** 0.5


def test_another_stream_gives_other_numbers() -> None:
    assert not np.isin(random_crops(0, np.arange(5), stream="other"), random_crops(0, np.arange(5))).any()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"area": (0.0, 1.0)}, "area must be"),
        ({"area": (0.5, 0.3)}, "area must be"),
        ({"area": (0.5, 1.1)}, "area must be"),
        ({"jitter": -0.1}, "jitter must be"),
        ({"jitter": 2.6}, "jitter must be"),
        ({"grey": 1.5}, "grey must be"),
    ],
)
def test_a_kind_that_makes_no_sense(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        View(**wrong)  # type: ignore[arg-type]


def test_equal_kinds_have_equal_names_and_others_others() -> None:
    assert View(jitter=1) == View(jitter=1.0) and View(jitter=1).name == View(jitter=1.0).name
    kinds = [PLAIN, STRONG, SMALL, View(jitter=1e-9), View(grey=0.2), View(area=(1.0, 1.0)), View(area=(0.08, 0.51))]
    assert len({kind.name for kind in kinds}) == len(kinds)
