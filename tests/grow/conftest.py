"""A finished run of the frozen answer, and images that come later."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import miniatures
import pytest
from miniatures import draw
from quick import train_arguments

from debgcd.cli import main

FOX, ELK = (230, 200, 40), (200, 60, 200)  # colours that no image of the run has
Later = Callable[..., Path]


@pytest.fixture(scope="session")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two known classes and one new category, 52 images; not to be changed."""
    folder = tmp_path_factory.mktemp("frozen")
    for i in range(16):
        kind = ("cat", "dog")[i % 2]
        draw(folder / "images" / "labelled" / kind / f"{i}.png", kind, i)
    for i in range(36):
        draw(folder / "images" / "unlabelled" / f"u{i:02d}.png", ("cat", "dog", "owl")[i % 3], 100 + i)
    words = train_arguments(folder / "images", folder / "run", "--epochs", 0, schedule__steps="null")
    assert main(words) == 0
    return folder / "run"


@pytest.fixture
def run(frozen: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(frozen, tmp_path / "run"))


@pytest.fixture(scope="session")
def later(tmp_path_factory: pytest.TempPathFactory) -> Later:
    """later("first", owl=3, fox=12): a folder with so many images of each kind, others for each name."""
    folder = tmp_path_factory.mktemp("later")

    def make(name: str, **counts: int) -> Path:
        place = folder / name
        if not place.exists():
            seed = 1000 * (1 + sum(map(ord, name)) % 97)
            for kind, count in counts.items():
                for i in range(count):
                    draw(place / f"{name}-{kind}{i:02d}.png", kind, seed + 50 * len(kind) * ord(kind[0]) + i)
        return place

    miniatures.COLOURS |= {"fox": FOX, "elk": ELK}
    return make
