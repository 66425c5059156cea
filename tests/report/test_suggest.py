"""Which splits and merges are suggested."""

from __future__ import annotations

import numpy as np
import torch

from debgcd.cluster.structure import Structure, structure
from debgcd.report.suggest import LIKELY, sentence, suggestions
from debgcd.run.categories import categories

CLASSES = ("ant", "bee")
Ids = np.ndarray


def made() -> tuple[Structure, Ids, Ids]:
    """Six groups: two known classes; new-01 and new-02 have half of one group each, new-03 has two groups, new-04 its own."""
    random = np.random.default_rng(0)
    of = np.repeat(np.arange(6), 40)
    feature = torch.from_numpy(np.eye(12)[of] * 4 + random.normal(size=(240, 12)) * 0.5).float()
    label = np.where((np.arange(240) % 2 == 0) & (of < 2), of, -1)
    category = np.array([0, 1, 2, 4, 4, 5])[of]
    category[100:120] = 3
    return structure(feature, label, category, 6), category, label


def test_what_is_torn_is_merged_and_what_is_mixed_is_split() -> None:
    found, category, label = made()
    suggested = suggestions(found, category, label, ["open"] * 6)
    assert {(one.kind, *one.categories) for one in suggested} == {("merge", 2, 3), ("split", 4)}
    split = next(one for one in suggested if one.kind == "split")
    assert set(split.images) in (set(range(120, 160)), set(range(160, 200)))
    assert [one.gain for one in suggested] == sorted((one.gain for one in suggested), reverse=True)
    assert all(LIKELY[one.kind] <= one.probability <= 1 for one in suggested)
    size = np.bincount(category[label < 0], minlength=6)
    assert {sentence(one, categories(CLASSES, 6), size) for one in suggested} == {
        "new-01 and new-02 may be one: 20 + 20 images",
        "new-03 looks like two: 40 + 40 images",
    }


def test_what_a_person_decided_is_left_alone() -> None:
    found, category, label = made()

    def kinds(status: dict[int, str]) -> set[str]:
        return {one.kind for one in suggestions(found, category, label, [status.get(c, "open") for c in range(6)])}

    assert kinds({2: "accepted"}) == {"merge", "split"}  # the other one may still be its other half
    assert kinds({2: "accepted", 3: "accepted"}) == {"split"}
    assert kinds({4: "accepted", 3: "rejected"}) == set()


def test_labelled_images_never_leave() -> None:
    found, category, label = made()
    category = np.where(category == 5, 0, category)  # the known class took in a whole group
    suggested = [one for one in suggestions(found, category, label, ["open"] * 6) if one.categories == [0]]
    assert [one.kind for one in suggested] == ["split"]
    assert set(suggested[0].images) == set(range(200, 240)) and (label[suggested[0].images] < 0).all()
