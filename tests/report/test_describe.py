"""What is picked to be shown of a category."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from debgcd.report.describe import describe, duplicates
from debgcd.report.look import Look
from debgcd.report.thumbnails import fingerprints
from debgcd.report.trust import category_means
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
        doubts=[],
    )


def test_what_is_shown_of_each_category() -> None:
    a, b, new = describe(made())
    assert set(a.exemplars) == {3, 4, 5} and set(a.labelled) == {0, 1, 2}  # unlabelled and labelled images apart
    assert b.exemplars == [] and b.labelled == [6]
    assert new.outliers == [15] and new.exemplars[-1] != new.exemplars[0] and 15 not in new.exemplars[:3]
    assert new.borderline == [8] and a.borderline == []
    assert (a.like, b.like, new.like) == (1, 0, 0)
    assert new.exemplars.index(9) > 6 or new.exemplars.index(10) > 6  # one image of a burst is enough


def test_images_that_are_gone_are_not_shown() -> None:
    whole = made()
    left = np.array([i for i in range(16) if i not in (3, 15)])
    part = Look(**{**whole.__dict__, "there": left, "feature": whole.feature[left]})
    a, _, new = describe(part)
    assert 3 not in a.exemplars and 15 not in [*new.exemplars, *new.outliers]
