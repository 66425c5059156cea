"""The picture of the categories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from debgcd.demo import GAP, LABEL, TILE, draw_exemplars
from debgcd.run.categories import Category
from debgcd.run.predictions import Prediction

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def image(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (100, 80)) -> str:
    Image.new("RGB", size, colour).save(path)
    return str(path)


def row(path: str, category: int, confidence: float) -> Prediction:
    return {"path": path, "category": category, "confidence": confidence}


def tile(sheet: np.ndarray, category: int, column: int) -> np.ndarray:
    top, left = GAP + category * (TILE + GAP), LABEL + GAP + column * (TILE + GAP)
    return sheet[top : top + TILE, left : left + TILE]


@pytest.mark.parametrize(("categories", "columns"), [(1, 1), (3, 12), (10, 5)])
def test_every_row_and_column_is_seen_in_full_with_a_margin(tmp_path: Path, categories: int, columns: int) -> None:
    green = image(tmp_path / "g.png", GREEN)
    known = [Category(i, f"c{i}", f"c{i}", i == 0) for i in range(categories)]
    predictions = [row(green, i, 0.5) for i in range(categories) for _ in range(columns)]
    draw_exemplars(predictions, known, tmp_path / "out.png", columns)
    sheet = np.asarray(Image.open(tmp_path / "out.png", formats=["PNG"]))
    assert (sheet == GREEN).all(2).sum() == categories * columns * TILE**2  # none cut off, none over another
    assert (sheet[-1] == 255).all() and (sheet[:, -1] == 255).all()


def test_the_surest_images_come_first_and_stay_in_their_row(tmp_path: Path) -> None:
    categories = [Category(0, "known", "known", True), Category(1, "new-01", "new-01", False)]
    red, green, blue = (image(tmp_path / f"{n}.png", c) for n, c in (("r", RED), ("g", GREEN), ("b", BLUE)))
    predictions = [row(red, 0, 0.5), row(green, 0, 0.9), row(blue, 1, 0.7)]
    draw_exemplars(predictions, categories, tmp_path / "out.png", columns=3)
    sheet = np.asarray(Image.open(tmp_path / "out.png"))
    assert (tile(sheet, 0, 0) == GREEN).all()
    assert (tile(sheet, 0, 1) == RED).all()
    assert (tile(sheet, 0, 2) == 255).all()
    assert (tile(sheet, 1, 0) == BLUE).all()
    assert (tile(sheet, 1, 1) == 255).all()
    assert not (
        sheet[GAP : GAP + TILE, :5] == sheet[2 * GAP + TILE : 2 * (GAP + TILE), :5]
    ).all()  # known or discovered


def test_more_images_than_columns(tmp_path: Path) -> None:
    red = image(tmp_path / "r.png", RED)
    draw_exemplars([row(red, 0, 0.5)] * 9, [Category(0, "a", "a", True)], tmp_path / "out.png", columns=2)
    sheet = np.asarray(Image.open(tmp_path / "out.png"))
    assert (tile(sheet, 0, 1) == RED).all()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "日本語",
        "a\nb\r\nc",
        "😀" * 40,
        "x" * 500,
        "\u202eabc",
        "e\u0301",
        "\t",
        "\x00\x07",
        "a\udcffb",
        "<&>\"'%s{}",
    ],
)
def test_names_of_any_kind(tmp_path: Path, name: str) -> None:
    draw_exemplars([], [Category(0, name, name, True)], tmp_path / "out.png", columns=1)
    sheet = np.asarray(Image.open(tmp_path / "out.png"))
    assert (sheet[:, LABEL + GAP :] == 255).all()  # out of the images


@pytest.mark.parametrize("length", [12, 16, 60])
def test_a_name_stays_out_of_the_images(tmp_path: Path, length: int) -> None:
    """Even of the widest letters."""
    draw_exemplars([], [Category(0, "W" * length, "W" * length, True)], tmp_path / "out.png", columns=2)
    sheet = np.asarray(Image.open(tmp_path / "out.png"))
    assert (sheet[:, LABEL + GAP :] == 255).all()
    assert (sheet[:, 16:LABEL] < 255).any()


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (500, 20), (20, 500)])
def test_images_of_any_shape(tmp_path: Path, size: tuple[int, int]) -> None:
    red = image(tmp_path / "r.png", RED, size)
    draw_exemplars([row(red, 0, 0.5)], [Category(0, "a", "a", True)], tmp_path / "out.png")
    assert (tile(np.asarray(Image.open(tmp_path / "out.png")), 0, 0) == RED).all()


def test_an_image_that_vanished_leaves_a_grey_tile(tmp_path: Path) -> None:
    draw_exemplars([row(str(tmp_path / "gone.png"), 0, 0.5)], [Category(0, "a", "a", True)], tmp_path / "out.png")
    found = tile(np.asarray(Image.open(tmp_path / "out.png")), 0, 0)
    assert len(np.unique(found.reshape(-1, 3), axis=0)) == 1
    assert (found < 255).all()
