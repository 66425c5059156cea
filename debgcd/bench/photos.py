"""Photographs to decode, made up: smooth light, the 1/f detail of natural images, edges, and a sensor's noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import fft

from debgcd.bench.session import Session

QUALITY = 90
OBJECTS = 12
NOISE = 1.7  # grey levels


def photographs(session: Session, size: tuple[int, int], count: int) -> list[Path]:
    """JPEG files of different photographs of this size (width, height)."""
    return session.once(("photos", size, count), lambda: _write(session.folder, size, count))


def _write(folder: Path, size: tuple[int, int], count: int) -> list[Path]:
    paths = [folder / f"{size[0]}x{size[1]}-{count}" / f"{i:04d}.jpg" for i in range(count)]
    paths[0].parent.mkdir(parents=True)
    different = [photograph(*size, seed=i) for i in range(min(count, 8))]
    for i, path in enumerate(paths):
        # many small ones are a few, shifted: no two files are alike, and making them takes no time
        pixels = np.roll(different[i % len(different)], 16 * (i // len(different)), axis=1)
        Image.fromarray(pixels).save(path, quality=QUALITY)
    return paths


def photograph(width: int, height: int, seed: int) -> NDArray[np.uint8]:
    """(height, width, 3) uint8."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j].astype(np.float32)
    image = np.empty((height, width, 3), np.float32)
    detail = _natural_noise(height, width, random)
    for channel in range(3):
        across, down = random.uniform(-60, 60, 2).astype(np.float32)
        image[..., channel] = random.uniform(90, 160) + across * x + down * y + random.uniform(18, 24) * detail
    for _ in range(OBJECTS):
        centre, radius = random.uniform(0, 1, 2), random.uniform(0.03, 0.25, 2)
        low, high = (np.clip((centre + sign * radius) * (width, height), 0, None).astype(int) for sign in (-1, 1))
        box = slice(low[1], high[1]), slice(low[0], high[0])  # its own part of the image alone: large ones take long
        inside = ((x[box] - centre[0]) / radius[0]) ** 2 + ((y[box] - centre[1]) / radius[1]) ** 2 < 1
        image[box][inside] += random.uniform(-70, 70, 3).astype(np.float32)
    image += random.standard_normal((height, width, 1), np.float32) * NOISE
    return image.clip(0, 255).astype(np.uint8)


def _natural_noise(height: int, width: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Noise whose amplitude falls with the frequency as 1/f, as in natural images; standard deviation 1."""
    fy, fx = np.fft.fftfreq(height)[:, None].astype(np.float32), np.fft.rfftfreq(width)[None].astype(np.float32)
    frequency = np.hypot(fy * height, fx * width)  # in cycles an image
    frequency[0, 0] = np.inf
    phase = random.uniform(0, 2 * np.pi, frequency.shape).astype(np.float32)
    field = fft.irfft2(np.exp(1j * phase) / frequency, s=(height, width), workers=1)
    return (field / field.std()).astype(np.float32)
