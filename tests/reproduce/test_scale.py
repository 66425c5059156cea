"""A part of a set: known and new classes in turn, proportions kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from debgcd.data.manifest import Manifest
from debgcd.reproduce.experiments import part


def made(known: int, new: int, size: int) -> Manifest:
    """Each class has `size` training and `size` // 2 test images; half of a known class's training images are labelled."""
    rows = []
    for number in range(known + new):
        name = f"{'a' if number < known else 'b'}{number:02d}"
        rows += [(name if number < known and i % 2 else None, name, "train") for i in range(size)]
        rows += [(None, name, "test")] * (size // 2)
    labels, truths, splits = zip(*rows, strict=True)
    paths = tuple(Path(f"/{i}.png") for i in range(len(rows)))
    return Manifest(paths, labels, truths, splits, (None,) * len(rows))


def counts(manifest: Manifest) -> Counter[tuple[str | None, bool, str]]:
    labelled = [label is not None for label in manifest.labels]
    return Counter(zip(manifest.truths, labelled, manifest.splits, strict=True))


def test_classes_in_turn() -> None:
    found = part(made(4, 4, 10), classes=5, images=10**6)
    assert sorted(set(found.truths)) == ["a00", "a01", "a02", "b04", "b05"]
    assert found.classes == ("a00", "a01", "a02")
    more_new = part(made(1, 4, 10), classes=4, images=10**6)
    assert sorted(set(more_new.truths)) == ["a00", "b01", "b02", "b03"]


@pytest.mark.parametrize("images", [40, 160, 333])
def test_every_class_keeps_its_proportions(images: int) -> None:
    whole = made(2, 2, 100)
    found = part(whole, classes=4, images=images)
    share = images / 400
    for group, count in counts(whole).items():
        assert abs(counts(found)[group] - share * count) <= 0.5
    assert abs(len(found.training_rows) - images) <= 3


def test_a_small_set_stays_as_it_is_and_every_class_keeps_an_image() -> None:
    whole = made(3, 3, 4)
    assert part(whole, classes=50, images=1500) == whole
    least = part(whole, classes=6, images=1)
    assert set(least.truths) == set(whole.truths) and len(least.classes) == 3
