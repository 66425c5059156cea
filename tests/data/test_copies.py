"""Copies and class names that look the same, as `check` and the report name them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from debgcd.data.copies import Copies, copies_in_words, find_copies, names_alike, names_in_words
from debgcd.data.manifest import Manifest, Row, assemble


def listed(paths: list[tuple[Path, str | None, str | None]]) -> Manifest:
    """Path, label and group of each image."""
    return assemble(
        [
            Row(path=str(path), label=label, truth=None, split="train", group=group, where=str(path), box=None)
            for path, label, group in paths
        ],
        [],
    )


def noise(path: Path, seed: int) -> Path:
    Image.fromarray(np.random.RandomState(seed).randint(0, 255, (4, 4, 3), np.uint8)).resize((64, 64)).save(path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """a; b, the same bytes; c, the same image, smaller and as JPEG; d and e, others."""
    a = noise(tmp_path / "a.png", 0)
    shutil.copy(a, tmp_path / "b.png")
    Image.open(a).resize((48, 48)).save(tmp_path / "c.jpg", quality=90)
    return [a, tmp_path / "b.png", tmp_path / "c.jpg", noise(tmp_path / "d.png", 1), noise(tmp_path / "e.png", 2)]


def test_exact_copies_and_near_duplicates(images: list[Path], tmp_path: Path) -> None:
    found = find_copies(listed([(path, None, None) for path in images]), tmp_path / "cache")
    names = [([Path(file).name for file in one.files], one.exact) for one in found]
    assert names == [(["a.png", "b.png"], True), (["a.png", "c.jpg"], False)]
    assert [line.split(":")[0] for line in copies_in_words(found)] == ["exact copies", "near-duplicates"]


def test_copies_that_contradict_each_other_are_said_with_what_to_do(images: list[Path], tmp_path: Path) -> None:
    rows = [(images[0], "oak", None), (images[1], "beech", None), (images[2], None, None)]
    lines = copies_in_words(find_copies(listed([*rows, (images[3], "oak", None)]), tmp_path / "cache"))
    assert "'oak'" in lines[2] and "'beech'" in lines[2] and "correct a label" in lines[2]
    assert "among the unlabelled" in lines[3] and "c.jpg" in lines[3]


def test_shots_of_one_scene_are_no_copies(images: list[Path], tmp_path: Path) -> None:
    assert not find_copies(listed([(path, None, "burst") for path in images[:3]]), tmp_path / "cache")
    assert (
        len(find_copies(listed([(path, None, str(i)) for i, path in enumerate(images[:3])]), tmp_path / "cache")) == 2
    )


def test_an_image_that_cannot_be_drawn_small_is_compared_by_its_bytes(tmp_path: Path) -> None:
    rows = [(tmp_path / name, None, None) for name in ("a.png", "b.png")]
    for path, _, _ in rows:
        path.write_bytes(b"not an image")
    (found,) = find_copies(listed(rows), tmp_path / "cache")
    assert found.exact


def test_class_names_that_look_the_same() -> None:
    assert names_alike(["oak", "Oak", "red_oak", "red oak", "Red-Oak ", "beech"]) == [
        ["Oak", "oak"],
        ["Red-Oak ", "red oak", "red_oak"],
    ]
    composed, decomposed = "\u00e9pic\u00e9a", "e\u0301pice\u0301a"
    (line,) = names_in_words([composed, decomposed, "oak"])
    assert "\\xe9" in line and "\\u0301" in line and "two ways" in line  # else they could not be told apart
    assert not names_in_words(["oak", "beech"])


def test_three_labels_and_none() -> None:
    one = Copies(["a", "b", "c", "d"], ["x", "y", None, "x"], True)
    assert one.contradict and one.known_and_asked
    assert len(copies_in_words([one])) == 2
