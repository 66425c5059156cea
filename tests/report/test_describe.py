"""What is picked to be shown of a category."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from debgcd.cluster.structure import category_means
from debgcd.data.copies import duplicates, fingerprints
from debgcd.report.describe import describe
from debgcd.report.look import Look
from debgcd.run.categories import Category


def test_duplicates_are_found_across_blocks_and_chains_are_one_group() -> None:
    random = np.random.default_rng(0)
    prints = random.uniform(size=(40, 12)).astype(np.float32)
    prints[30] = prints[3] + 0.005
    prints[17] = prints[30] + 0.005
    prints[25] = prints[9]
    prints[5] = np.nan  # no thumbnail
    for block in (4, 7, 1024):
        assert sorted(map(sorted, duplicates(prints, block))) == [[3, 17, 30], [9, 25]]


def test_no_thumbnails_no_duplicates() -> None:
    assert duplicates(fingerprints(["missing", "missing"])) == []


def made() -> Look:
    """Known class a (labelled 0-2, unlabelled 3-5), b (labelled 6), new-01 (7-15): the last one is far off, 8 undecided."""
    label = np.array([0, 0, 0, -1, -1, -1, 1, *[-1] * 9])
    category = np.array([0] * 6 + [1] + [2] * 9)
    feature = np.zeros((16, 3), np.float32)
    feature[:6, 0] = 1 + 0.01 * np.arange(6)
    feature[6, 1] = 1
    feature[7:, 2] = 1
    feature[7:, 0] = 0.5 + 0.01 * np.arange(9)  # nearer to a than to b
    feature[15] = (0, 0, 9)
    rows = {i: {"top1_p": 0.9, "top2_p": 0.05} for i in np.flatnonzero(label < 0).tolist()}
    rows[8] = {"top1_p": 0.45, "top2_p": 0.4}
    scenes = [None] * 16
    scenes[9] = scenes[10] = "burst"
    manifest = SimpleNamespace(groups=scenes, training_rows=np.arange(16), classes=("a", "b"))
    names = [Category(0, "a", "a", True), Category(1, "b", "b", True), Category(2, "new-01", "new-01", False)]
    return Look(
        run=cast(Any, SimpleNamespace(manifest=manifest)),
        categories=names,
        every=names,
        rows=cast(Any, rows),
        label=label,
        category=category,
        there=np.arange(16),
        feature=feature,
        means=category_means(feature, category, 3),
        trust=np.ones(3),
        parts={},
        suggestions=[],
        doubts=[],
    )


def test_what_is_shown_of_each_category() -> None:
    a, b, new = describe(made())
    assert set(a.certain) == {3, 4, 5} and set(a.labelled) == {0, 1, 2}  # unlabelled and labelled images apart
    assert b.certain == [] and b.labelled == [6]
    assert new.outliers == [15] and new.certain[-1] != new.certain[0] and new.certain[-2:] != [15, 8]
    assert new.borderline == [8] and a.borderline == []
    assert (a.like, b.like, new.like) == (1, 0, 0)
    assert new.certain[-1] in (9, 10)  # one image of a burst is enough


def test_images_that_are_gone_are_not_shown() -> None:
    whole = made()
    left = np.array([i for i in range(16) if i not in (3, 15)])
    part = Look(**{**whole.__dict__, "there": left, "feature": whole.feature[left]})
    a, _, new = describe(part)
    assert 3 not in a.certain and 15 not in [*new.certain, *new.outliers]


def test_a_minority_is_among_the_typical_images() -> None:
    whole = made()
    label, category = np.full(40, -1), np.zeros(40, np.int64)
    feature = np.zeros((40, 3), np.float32)
    feature[:31, 0], feature[31:, 1] = 1, 1
    feature[:, 2] = np.linspace(0, 0.1, 40)
    rows = {i: {"top1_p": 0.9, "top2_p": 0.05} for i in range(40)}
    mixed = Look(
        **{
            **whole.__dict__,
            "run": cast(
                Any, SimpleNamespace(manifest=SimpleNamespace(groups=[None] * 40, training_rows=np.arange(40)))
            ),
            "label": label,
            "category": category,
            "there": np.arange(40),
            "feature": feature,
            "means": category_means(feature, category, 3),
            "rows": cast(Any, rows),
        }
    )
    found = describe(mixed)[0]
    assert sum(found.part_sizes) == 40 and sorted(found.part_sizes, reverse=True) == found.part_sizes
    assert any(image >= 31 for image in found.typical) and len(found.typical) == len(found.part_sizes)
