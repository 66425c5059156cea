"""The trust of a category against its definition, written slowly; the order of interest."""

from __future__ import annotations

import numpy as np
import pytest

from debgcd.report.trust import COUNTED, PARTS, Evidence, category_means, order_of_interest, trust


def evidence(seed: int, k: int = 4, n: int = 40) -> Evidence:
    random = np.random.default_rng(seed)
    feature = random.normal(size=(n, 5)).astype(np.float32)
    category = random.integers(0, k - 1, n)  # the last category is empty
    return Evidence(
        category=category,
        feature=feature,
        means=category_means(feature, category, k),
        others={"a": random.integers(0, k, n), "b": random.integers(0, k, n)},
        other_view=random.integers(0, k, n),
        cluster=random.integers(0, k, n),
        confidence=random.uniform(size=n),
    )


def slow(e: Evidence, c: int) -> dict[str, float]:
    mine = [i for i in range(len(e.category)) if e.category[i] == c]
    assert e.other_view is not None
    separation = []
    for i in mine:
        far = [float(np.linalg.norm(e.feature[i] - mean)) for mean in e.means]
        other = min(far[d] for d in range(len(far)) if d != c and not np.isnan(far[d]))
        separation.append(max(0.0, (other - far[c]) / other))
    overlap = []
    for q in set(e.cluster.tolist()):
        theirs = {i for i in range(len(e.cluster)) if e.cluster[i] == q}
        overlap.append(len(theirs & set(mine)) / len(theirs | set(mine)))
    return {
        "classifiers": float(np.mean([e.others[name][i] == c for name in e.others for i in mine])),
        "views": float(np.mean([e.other_view[i] == c for i in mine])),
        "clustering": max(overlap),
        "separation": float(np.mean(separation)),
        "confidence": float(np.mean([e.confidence[i] for i in mine])),
    }


@pytest.mark.parametrize("seed", range(5))
def test_trust_is_the_mean_of_the_parts_that_count(seed: int) -> None:
    given = evidence(seed)
    found, parts = trust(given, 4)
    assert tuple(parts) == PARTS
    for c in range(3):
        expected = slow(given, c)
        assert {name: part[c] for name, part in parts.items()} == pytest.approx(expected, abs=1e-5)
        assert found[c] == pytest.approx(np.mean([expected[name] for name in COUNTED]), abs=1e-5)
        assert 0 <= found[c] <= 1
    assert np.isnan(found[3])


def test_what_a_method_does_not_have_is_left_out() -> None:
    given = evidence(0)
    bare = Evidence(**{**given.__dict__, "others": {}, "other_view": None})
    found, parts = trust(bare, 4)
    assert set(parts) == {"clustering", "separation", "confidence"}
    assert found[0] == pytest.approx((parts["clustering"][0] + parts["confidence"][0]) / 2)


def test_a_single_category() -> None:
    feature = np.eye(3, dtype=np.float32)
    zero = np.zeros(3, np.int64)
    given = Evidence(zero, feature, category_means(feature, zero, 1), {}, None, zero, np.ones(3))
    assert trust(given, 1)[0].tolist() == [1.0]


def test_new_categories_come_first_then_the_large_and_trusted() -> None:
    score, size = np.array([0.9, 0.9, 0.5, 0.9, np.nan]), np.array([100, 5, 20, 20, 0])
    assert order_of_interest(score, size, known=2) == [3, 2, 4, 0, 1]
