"""Images that come in arrays, as PNG files in the cache: written once, named after their content."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from debgcd.data.benchmarks.facts import Facts
from debgcd.files import new_folder, turn
from debgcd.progress import Report, progress, say


@dataclass(frozen=True)
class Batch:
    """Images and their classes."""

    pixels: np.ndarray  # (N, H, W, 3) uint8
    labels: np.ndarray  # (N,) int64


def as_files(cache: Path, facts: Facts, train: Batch, test: Batch) -> tuple[list[str], list[str]]:
    """The paths of both parts' images; files of the same pixels are there already, from whatever form they were read."""
    parts = {"train": train.pixels, "test": test.pixels}
    digest = hashlib.sha256()
    for pixels in parts.values():
        digest.update(str(pixels.shape).encode())
        digest.update(np.ascontiguousarray(pixels).data)
    key = digest.hexdigest()[:16]
    place = Path(os.path.abspath(cache)) / "benchmarks"
    folder = place / f"{facts.name}-{key}"
    if not folder.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        with turn(place, key, lambda: say(f"{facts.title}: waiting for another process, which writes its image files")):
            if not folder.is_dir():  # the other process has not
                with progress(f"writing {facts.title} as image files") as report, new_folder(folder) as beside:
                    _write(parts, beside, report)
    names = {part: [os.path.join(folder, part, f"{i:05d}.png") for i in range(len(parts[part]))] for part in parts}
    return names["train"], names["test"]


def _write(parts: dict[str, np.ndarray], folder: Path, report: Report) -> None:
    done, total = 0, sum(map(len, parts.values()))
    for part, images in parts.items():
        (folder / part).mkdir()
        for i, pixels in enumerate(images):
            Image.fromarray(pixels).save(folder / part / f"{i:05d}.png", compress_level=1)
            done += 1
            if done % 1000 == 0 or done == total:
                report(done, total)
    os.sync()  # before the folder gets its name: else a power cut could leave it whole by its name, with empty files
