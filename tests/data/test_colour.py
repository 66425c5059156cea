"""Colours of a view: against loops over pixels written from the definitions, and against Pillow."""

from __future__ import annotations

import colorsys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from debgcd.data import views as colour
from debgcd.data.views import COLOURS, PLAIN, View, crop_view

FACTORS = [0.0, 0.3, 0.6, 0.93, 1.0, 1.2, 1.4, 2.5]
TURNS = [-0.5, -0.25, -0.1, -0.03, 0.0, 0.05, 0.1, 1 / 3, 0.5]
Pixels = np.ndarray  # (h, w, 3) uint8


def photo(seed: int) -> Pixels:
    """Noise, a smooth image, or a few colours; each with black, white, grey and full colours somewhere."""
    rng = np.random.default_rng(seed)
    shape = (9 + seed, 14, 3)
    if seed % 3 == 0:
        image = rng.integers(0, 256, shape, dtype=np.uint8)
    elif seed % 3 == 1:
        image = np.array(Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize(shape[1::-1]))
    else:
        image = rng.choice(np.array([0, 100, 255], np.uint8), shape)
    image[0, :7] = [[0, 0, 0], [255, 255, 255], [77, 77, 77], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0]]
    return image


def each_pixel(image: Pixels, change: Callable[[float, float, float], tuple[float, float, float]]) -> np.ndarray:
    found = np.zeros(image.shape)
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            found[row, column] = change(*(float(x) for x in image[row, column]))
    return found


def within(x: float) -> float:
    return min(max(x, 0.0), 255.0)


def grey_of(r: float, g: float, b: float) -> float:
    return (r * 299 + g * 587 + b * 114) / 1000


def slow_brightness(image: Pixels, factor: float) -> np.ndarray:
    return each_pixel(image, lambda r, g, b: (within(factor * r), within(factor * g), within(factor * b)))


def slow_contrast(image: Pixels, factor: float) -> np.ndarray:
    mean = np.mean([grey_of(*pixel) for pixel in image.reshape(-1, 3).astype(float)])

    def change(r: float, g: float, b: float) -> tuple[float, float, float]:
        r, g, b = (within(mean + factor * (x - mean)) for x in (r, g, b))
        return r, g, b

    return each_pixel(image, change)


def slow_saturation(image: Pixels, factor: float) -> np.ndarray:
    def change(r: float, g: float, b: float) -> tuple[float, float, float]:
        grey = grey_of(r, g, b)
        r, g, b = (within(grey + factor * (x - grey)) for x in (r, g, b))
        return r, g, b

    return each_pixel(image, change)


def slow_hue(image: Pixels, turn: float) -> np.ndarray:
    def change(r: float, g: float, b: float) -> tuple[float, float, float]:
        h, s, v = colorsys.rgb_to_hsv(r / 255, g / 255, b / 255)
        r, g, b = colorsys.hsv_to_rgb((h + turn) % 1.0, s, v)
        return 255 * r, 255 * g, 255 * b

    return each_pixel(image, change)


def slow_grey(image: Pixels) -> np.ndarray:
    return each_pixel(image, lambda r, g, b: (grey_of(r, g, b),) * 3)


def tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def array(pixels: torch.Tensor) -> np.ndarray:
    return pixels.permute(1, 2, 0).double().numpy()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("ours", "slow", "amounts", "tolerance"),
    [
        (colour.brightness, slow_brightness, FACTORS, 1e-3),
        (colour.contrast, slow_contrast, FACTORS, 0.5 * 1.5),  # the mean of whole grey levels; at most |1 - 2.5| of it
        (colour.saturation, slow_saturation, FACTORS, 1e-3),
        (colour.hue, slow_hue, TURNS, 1e-3),
    ],
    ids=["brightness", "contrast", "saturation", "hue"],
)
def test_each_change_is_its_definition(
    ours: Callable[[torch.Tensor, float], torch.Tensor],
    slow: Callable[[Pixels, float], np.ndarray],
    amounts: list[float],
    tolerance: float,
    seed: int,
) -> None:
    image = photo(seed)
    for amount in amounts:
        assert abs(array(ours(tensor(image), amount)) - slow(image, amount)).max() < tolerance, amount


@pytest.mark.parametrize("seed", range(6))
def test_grey_is_its_definition_and_pillows(seed: int) -> None:
    image = photo(seed)
    found = array(colour.luma(tensor(image)))[..., 0]
    assert abs(found - slow_grey(image)[..., 0]).max() < 1e-3
    assert abs(found - np.asarray(Image.fromarray(image).convert("L"))).max() < 0.501


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("factor", FACTORS)
def test_pillow_enhances_alike(seed: int, factor: float) -> None:
    """Pillow cuts fractions off, and rounds the mean of the contrast and each grey level before it goes on."""
    image = photo(seed)
    for ours, enhance, tolerance in (
        (colour.brightness, ImageEnhance.Brightness, 1),
        (colour.contrast, ImageEnhance.Contrast, 2),
        (colour.saturation, ImageEnhance.Color, 2),
    ):
        pillow = np.asarray(enhance(Image.fromarray(image)).enhance(factor)).astype(float)
        assert abs(array(ours(tensor(image), factor)) - pillow).max() <= tolerance + 1e-3, enhance


def test_the_primary_colours_turn_in_a_circle() -> None:
    red, green, blue = (torch.tensor(c).view(3, 1, 1) for c in ([255.0, 0, 0], [0, 255.0, 0], [0, 0, 255.0]))
    for start, end in ((red, green), (green, blue), (blue, red)):
        torch.testing.assert_close(colour.hue(start, 1 / 3), end, atol=1e-3, rtol=0)
        torch.testing.assert_close(colour.hue(end, -1 / 3), start, atol=1e-3, rtol=0)


def test_the_same_bits_with_any_number_of_threads() -> None:
    """A loader process has one thread, the process without workers all of them."""
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 301, 299), dtype=np.uint8))
    cut = np.array([0.3, 0.8, 0.1, 0.9, 0.4, 0.2, 0.93, 0.71, 0.1, 0.9])
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(crop_view(pixels, cut, 256, View(area=(0.9, 1.0), jitter=1.0)))
            found.append(colour.hue(colour.contrast(pixels.float(), 1.3), 0.07))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[i], found[i % 2]) for i in range(6))


@pytest.mark.parametrize("seed", range(6))
def test_a_view_changes_brightness_contrast_saturation_and_hue_in_this_order(seed: int) -> None:
    """Loops one after the other, each from what the one before left; once with grey at the end and once without."""
    image = photo(seed)[:9, :9]
    cut = np.concatenate([[0.0, 0.0, 1.0], np.random.default_rng(seed).random(7)])
    for jitter in (0.5, 1.0, 2.0):
        b, c, s, h = (float(jitter * strength * (2 * u - 1)) for strength, u in zip(COLOURS, cut[5:9], strict=True))
        slow = slow_hue(slow_saturation(slow_contrast(slow_brightness(image, 1 + b), 1 + c), 1 + s), h)
        for grey, expected in ((0.0, slow), (1.0, slow_grey(slow))):
            found = crop_view(tensor(image).to(torch.uint8), cut, 9, View(jitter=jitter, grey=grey))
            assert found.dtype == torch.uint8 and found.shape == (3, 9, 9)
            assert abs(array(found) - expected).max() <= 1


def test_the_middle_of_every_range_is_the_image_itself() -> None:
    image = tensor(photo(0)[:9, :9]).to(torch.uint8)
    cut = np.array([0, 0, 1.0, *[0.5] * 7])
    for view in (View(jitter=1.0), View(jitter=2.5), View(grey=0.5), View(area=(1.0, 1.0))):
        assert torch.equal(crop_view(image, cut, 9, view), crop_view(image, cut, 9, PLAIN)), view
