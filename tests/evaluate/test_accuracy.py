"""The metrics against brute force over every matching, and what a user relies on when reading the table."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from debgcd import evaluate

Matching = dict[int, int]  # predicted cluster -> true class; a cluster that is not in it is matched to nothing


def matchings(clusters: list[int], classes: list[int]) -> Iterator[Matching]:
    """Every way to give each cluster a class of its own or none."""
    if not clusters:
        yield {}
        return
    first, rest = clusters[0], clusters[1:]
    for matching in matchings(rest, classes):
        yield matching
        for label in classes:
            if label not in matching.values():
                yield {first: label} | matching


def hits(matching: Matching, truth: list[int], predicted: list[int]) -> int:
    return sum(matching.get(p) == t for t, p in zip(truth, predicted, strict=True))


def best_matchings(truth: list[int], predicted: list[int]) -> tuple[int, list[Matching]]:
    """Eq. 15's h: all matchings with the most hits. There can be several, and they may differ in Old and New."""
    clusters, classes = sorted(set(predicted)), sorted(set(truth))
    count = {(p, t): 0 for p in clusters for t in classes}
    for t, p in zip(truth, predicted, strict=True):
        count[p, t] += 1
    best, most = [], -1
    for matching in matchings(clusters, classes):
        score = sum(count[pair] for pair in matching.items())
        if score > most:
            best, most = [], score
        if score == most:
            best.append(matching)
    return most, best


def brute_force_hits(truth: list[int], predicted: list[int]) -> int:
    """Most hits only, over full-size matchings: quick enough for six clusters and six classes."""
    clusters, classes = sorted(set(predicted)), sorted(set(truth))
    count = [[sum(a == t and b == p for a, b in zip(truth, predicted, strict=True)) for t in classes] for p in clusters]
    if len(clusters) > len(classes):
        count = [list(column) for column in zip(*count, strict=True)]
    width = len(count[0])
    return max(
        sum(row[column] for row, column in zip(count, columns, strict=True))
        for columns in itertools.permutations(range(width), len(count))
    )


def share(values: list[bool]) -> float:
    return sum(values) / len(values) if values else math.nan


def old_new(matching: Matching, truth: list[int], predicted: list[int], known: int) -> tuple[float, float]:
    right = [(t, matching.get(p) == t) for t, p in zip(truth, predicted, strict=True)]
    return share([r for t, r in right if t < known]), share([r for t, r in right if t >= known])


def four_errors(matching: Matching, truth: list[int], predicted: list[int], known: int) -> tuple[float, ...]:
    """The appendix's four kinds, as shares of the Old (first two) and New (last two) images."""
    true_old, false_new, false_old, true_new = [], [], [], []
    for t, p in zip(truth, predicted, strict=True):
        guess = matching.get(p)
        says_new = guess is None or guess >= known  # a cluster without a class is a discovered one
        if t < known:
            true_old.append(guess != t and not says_new)
            false_new.append(guess != t and says_new)
        else:
            false_old.append(guess != t and not says_new)
            true_new.append(guess != t and says_new)
    return share(true_old), share(false_new), share(false_old), share(true_new)


def balanced(matching: Matching, truth: list[int], predicted: list[int]) -> float:
    by_class = []
    for label in sorted(set(truth)):
        by_class.append(share([matching.get(p) == t for t, p in zip(truth, predicted, strict=True) if t == label]))
    return sum(by_class) / len(by_class)


def same(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return all(
        math.isclose(x, y, abs_tol=1e-12) or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True)
    )


def unique(values: list[tuple[float, ...]]) -> bool:
    return all(same(values[0], value) for value in values)


def problem(seed: int, most: int) -> tuple[list[int], list[int], int]:
    """Truth, predictions and M: every class occurs; as many clusters as classes, more or fewer; any noise."""
    rng = np.random.default_rng(seed)
    classes, clusters = int(rng.integers(1, most + 1)), int(rng.integers(1, most + 1))
    n = int(rng.integers(classes, 40))
    truth = np.concatenate([np.arange(classes), rng.integers(classes, size=n - classes)])
    rng.shuffle(truth)
    noisy = rng.random(n) < rng.random()
    predicted = np.where(noisy, rng.integers(clusters, size=n), truth % clusters)
    predicted = rng.permutation(clusters)[predicted]
    return truth.tolist(), predicted.tolist(), int(rng.integers(0, classes + 1))


@pytest.mark.parametrize("seed", range(60))
def test_all_is_the_best_over_every_matching(seed: int):
    truth, predicted, known = problem(seed, most=6)
    accuracy = evaluate.clustering_accuracy(np.array(truth), np.array(predicted), known)
    assert accuracy.all == brute_force_hits(truth, predicted) / len(truth)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=25), st.integers(0, 6))
def test_all_is_the_best_over_every_matching_of_any_pairs(pairs: list[tuple[int, int]], known: int):
    truth, predicted = [t for t, _ in pairs], [p for _, p in pairs]
    accuracy = evaluate.clustering_accuracy(truth, predicted, known)
    assert accuracy.all == brute_force_hits(truth, predicted) / len(truth)
    # whichever of the best matchings was taken, Old and New are those of one of them
    _, best = best_matchings(truth, predicted) if len(set(truth)) * len(set(predicted)) <= 16 else (0, [])
    assert not best or any(same((accuracy.old, accuracy.new), old_new(m, truth, predicted, known)) for m in best)


def test_old_and_new_under_the_one_matching():
    compared = 0
    for seed in range(150):
        truth, predicted, known = problem(seed, most=5)
        most, best = best_matchings(truth, predicted)
        splits = [old_new(matching, truth, predicted, known) for matching in best]
        accuracy = evaluate.clustering_accuracy(np.array(truth), np.array(predicted), known)
        assert accuracy.all == most / len(truth)
        if unique(splits):
            compared += 1
            assert same((accuracy.old, accuracy.new), splits[0]), (seed, accuracy, splits[0])
    assert compared > 75


def test_error_kinds_under_the_one_matching():
    compared = 0
    for seed in range(150):
        truth, predicted, known = problem(seed, most=5)
        kinds = [four_errors(matching, truth, predicted, known) for matching in best_matchings(truth, predicted)[1]]
        errors = evaluate.error_kinds(np.array(truth), np.array(predicted), known)
        got = (errors.true_old, errors.false_new, errors.false_old, errors.true_new)
        if unique(kinds):
            compared += 1
            assert same(got, kinds[0]), (seed, errors, kinds[0])
        else:
            assert any(same(got, kind) for kind in kinds), (seed, errors)
    assert compared > 50


def test_balanced_accuracy_under_the_one_matching():
    compared = 0
    for seed in range(150):
        truth, predicted, _ = problem(seed, most=5)
        values = [(balanced(matching, truth, predicted),) for matching in best_matchings(truth, predicted)[1]]
        if unique(values):
            compared += 1
            got = evaluate.balanced_accuracy(np.array(truth), np.array(predicted))
            assert same((got,), values[0]), (seed, got, values[0])
    assert compared > 75


# Accuracy.


def test_scores_are_plain_numbers_that_json_can_hold():
    """numpy's floats, and nan, would not survive the way into evaluation.json."""
    found = evaluate.score(np.array([0, 1]), np.array([1, 0]), 2).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["accuracy"] == {"all": 1.0, "old": 1.0, "new": None}


@pytest.mark.parametrize("seed", range(12))
def test_names_of_clusters_do_not_matter(seed: int):
    truth, predicted, known = problem(seed, most=5)
    renamed = np.random.default_rng(seed).permutation(50)[predicted]
    _, best = best_matchings(truth, predicted)
    one = evaluate.clustering_accuracy(truth, predicted, known)
    two = evaluate.clustering_accuracy(truth, renamed, known)
    assert one.all == two.all
    assert evaluate.clustering_accuracy(truth, np.array(predicted, dtype=np.int32), known).all == one.all
    if unique([old_new(matching, truth, predicted, known) for matching in best]):
        assert same((one.old, one.new), (two.old, two.new))


def test_order_of_images_does_not_matter():
    truth, predicted = np.array([0, 0, 0, 1, 1, 2, 2, 2]), np.array([4, 4, 1, 1, 1, 0, 0, 4])
    order = np.random.default_rng(0).permutation(8)
    assert evaluate.clustering_accuracy(truth, predicted, 1) == evaluate.clustering_accuracy(
        truth[order], predicted[order], 1
    )


@pytest.mark.parametrize(("classes", "known"), [(1, 1), (2, 1), (6, 4), (200, 100)])
def test_perfect_clusters_score_one(classes: int, known: int):
    rng = np.random.default_rng(classes)
    truth = np.concatenate([np.arange(classes), rng.integers(classes, size=4000)])
    predicted = rng.permutation(classes)[truth]
    accuracy = evaluate.clustering_accuracy(truth, predicted, known)
    assert accuracy.all == accuracy.old == 1.0
    assert accuracy.new == 1.0 if known < classes else math.isnan(accuracy.new)
    errors = evaluate.error_kinds(truth, predicted, known)
    assert errors.true_old == errors.false_new == 0.0
    assert evaluate.balanced_accuracy(truth, predicted) == 1.0


def test_empty_subsets_are_nan():
    empty = np.array([], dtype=np.int64)
    for nothing in (empty, []):
        accuracy = evaluate.clustering_accuracy(nothing, nothing, 3)
        assert all(math.isnan(value) for value in dataclasses.astuple(accuracy))
    only_new = evaluate.clustering_accuracy([2, 3, 3], [0, 1, 1], 2)
    assert math.isnan(only_new.old)
    assert only_new.new == only_new.all == 1.0
    only_old = evaluate.clustering_accuracy([0, 1, 1], [0, 1, 0], 2)
    assert math.isnan(only_old.new)
    assert only_old.old == only_old.all == 2 / 3


def test_surplus_clusters_are_wrong():
    """Class 0 is split into two clusters: only the larger one counts."""
    accuracy = evaluate.clustering_accuracy([0] * 5 + [1] * 4, [0, 0, 0, 2, 2, 1, 1, 1, 1], 1)
    assert accuracy == evaluate.Accuracy(all=7 / 9, old=3 / 5, new=1.0)


def test_classes_without_a_cluster_are_wrong():
    accuracy = evaluate.clustering_accuracy([0] * 3 + [1] * 2 + [2] * 1, [0] * 6, 2)
    assert accuracy == evaluate.Accuracy(all=3 / 6, old=3 / 5, new=0.0)


def test_ids_may_have_gaps():
    accuracy = evaluate.clustering_accuracy([0, 0, 7, 7, 90], [1000, 1000, 3, 3, 55], 5)
    assert accuracy == evaluate.Accuracy(all=1.0, old=1.0, new=1.0)


def test_one_matching_is_not_a_matching_for_each_subset():
    """The legacy score matches Old and New images apart, so that one cluster can be right twice."""
    truth, predicted, known = [0] * 5 + [1] * 3, [0] * 8, 1
    legacy = {}
    for name, kept in (("old", [t < known for t in truth]), ("new", [t >= known for t in truth])):
        t = list(itertools.compress(truth, kept))
        p = list(itertools.compress(predicted, kept))
        legacy[name] = brute_force_hits(t, p) / len(t)
    assert legacy == {"old": 1.0, "new": 1.0}
    accuracy = evaluate.clustering_accuracy(truth, predicted, known)
    assert accuracy == evaluate.Accuracy(all=5 / 8, old=1.0, new=0.0)


def test_inputs_are_not_modified():
    truth, predicted = np.array([0, 1, 2, 2]), np.array([2, 2, 1, 0])
    for array in (truth, predicted):
        array.flags.writeable = False
    evaluate.clustering_accuracy(truth, predicted, 1)
    evaluate.error_kinds(truth, predicted, 1)
    evaluate.balanced_accuracy(truth, predicted)


SCORES = [
    lambda truth, predicted: evaluate.clustering_accuracy(truth, predicted, 1),
    lambda truth, predicted: evaluate.error_kinds(truth, predicted, 1),
    lambda truth, predicted: evaluate.balanced_accuracy(truth, predicted),
]


@pytest.mark.parametrize("score", SCORES, ids=["clustering_accuracy", "error_kinds", "balanced_accuracy"])
def test_wrong_input_is_refused(score):
    with pytest.raises(ValueError, match=r"truth|predicted"):
        score([0, 1, 1], [0, 1])
    with pytest.raises(ValueError, match=r"truth|predicted"):
        score([], [0])
    with pytest.raises(ValueError, match="truth"):
        score([0, -1], [0, 1])
    with pytest.raises(ValueError, match="predicted"):
        score([0, 1], [0, -1])


# Kinds of error.


def test_error_kinds_by_hand():
    """Classes 0, 1 known and 2, 3 new; cluster k is class k, each with six images of its own."""
    truth = [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6
    predicted = list(truth)
    extra = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 0), (3, 0), (3, 1), (3, 1), (2, 3)]  # (truth, predicted)
    truth += [t for t, _ in extra]
    predicted += [p for _, p in extra]
    errors = evaluate.error_kinds(truth, predicted, 2)
    assert [field.name for field in dataclasses.fields(errors)] == ["true_old", "false_new", "false_old", "true_new"]
    assert same(dataclasses.astuple(errors), (1 / 16, 3 / 16, 4 / 17, 1 / 17))


def test_surplus_cluster_is_a_new_prediction():
    """Two classes, three clusters: the third, with two Old and one New image, is no known class."""
    truth, predicted = [0] * 6 + [1] * 5, [0, 0, 0, 0, 2, 2, 1, 1, 1, 1, 2]
    errors = evaluate.error_kinds(truth, predicted, 1)
    assert same(dataclasses.astuple(errors), (0.0, 2 / 6, 0.0, 1 / 5))


@pytest.mark.parametrize("seed", range(20))
def test_error_kinds_complete_the_accuracy(seed: int):
    truth, predicted, known = problem(seed, most=6)
    accuracy = evaluate.clustering_accuracy(truth, predicted, known)
    errors = evaluate.error_kinds(truth, predicted, known)
    old, new = accuracy.old + errors.true_old + errors.false_new, accuracy.new + errors.false_old + errors.true_new
    assert math.isclose(old, 1.0, abs_tol=1e-12) if min(truth) < known else math.isnan(old)
    assert math.isclose(new, 1.0, abs_tol=1e-12) if max(truth) >= known else math.isnan(new)


def test_error_kinds_of_an_empty_subset_are_nan():
    errors = evaluate.error_kinds([0, 1, 1], [0, 1, 0], 2)
    assert (errors.true_old, errors.false_new) == (1 / 3, 0.0)
    assert math.isnan(errors.false_old)
    assert math.isnan(errors.true_new)


# Balanced accuracy.


def test_balanced_accuracy_weighs_classes_alike():
    """Nine of nine and zero of one: 0.9 of the images, half of the classes."""
    truth, predicted = [0] * 9 + [1], [0] * 10
    assert evaluate.clustering_accuracy(truth, predicted, 1).all == 0.9
    assert evaluate.balanced_accuracy(truth, predicted) == 0.5
    assert math.isnan(evaluate.balanced_accuracy([], []))


def test_balanced_accuracy_counts_only_classes_that_occur():
    assert evaluate.balanced_accuracy([0, 0, 7, 7], [3, 3, 1, 1]) == 1.0
    assert evaluate.balanced_accuracy([2, 2, 2, 9, 9], [0, 0, 4, 5, 5]) == pytest.approx((2 / 3 + 1) / 2, abs=1e-12)


# Novelty.


def auroc(novelty: list[float], is_new: list[bool]) -> float:
    """The share of (new, old) pairs in which the new image has the higher novelty; a tie is half a pair."""
    pairs = wins = 0.0
    for a, a_is_new in zip(novelty, is_new, strict=True):
        for b, b_is_new in zip(novelty, is_new, strict=True):
            if a_is_new and not b_is_new:
                pairs += 1
                wins += 1.0 if a > b else 0.5 if a == b else 0.0
    return wins / pairs if pairs else math.nan


@pytest.mark.parametrize("seed", range(40))
def test_novelty_auroc(seed: int):
    """Against all pairs, and against scikit-learn's area under the curve."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    is_new = rng.random(n) < rng.random()
    novelty = rng.random(n) if seed % 2 else rng.integers(0, 5, n) / 4  # every second case is full of ties
    value = evaluate.novelty_auroc(novelty, is_new)
    assert same((value,), (auroc(novelty.tolist(), is_new.tolist()),))
    assert same((evaluate.novelty_auroc(novelty.tolist(), is_new.tolist()),), (value,))
    if 0 < is_new.sum() < n:
        assert value == pytest.approx(roc_auc_score(is_new, novelty), abs=1e-12)
    assert type(value) is float


@pytest.mark.filterwarnings("error")
def test_novelty_auroc_extremes():
    is_new = np.array([False, False, True, True])
    assert evaluate.novelty_auroc(np.array([0.1, 0.2, 0.3, 0.4]), is_new) == 1.0
    assert evaluate.novelty_auroc(np.array([0.4, 0.3, 0.2, 0.1]), is_new) == 0.0
    assert evaluate.novelty_auroc(np.full(4, 0.7), is_new) == 0.5
    for absent in ([True, True], [False, False], []):
        assert math.isnan(evaluate.novelty_auroc(np.full(len(absent), 0.5), np.array(absent, dtype=bool)))


def test_novelty_auroc_depends_on_the_order_only():
    rng = np.random.default_rng(1)
    novelty, is_new = rng.random(200), rng.random(200) < 0.4
    value = evaluate.novelty_auroc(novelty, is_new)
    assert evaluate.novelty_auroc(np.exp(5 * novelty), is_new) == value
    assert math.isclose(evaluate.novelty_auroc(1 - novelty, is_new), 1 - value, abs_tol=1e-12)
    assert math.isclose(evaluate.novelty_auroc(novelty, ~is_new), 1 - value, abs_tol=1e-12)


# The known classes by their names.


def test_named_needs_no_matching_and_no_truth_of_new_images():
    """Two of three Old images have their own class's number; a permutation of clusters, right for All, is wrong here."""
    truth, predicted = [0, 0, 1, 2, 3], [0, 0, 3, 1, 1]
    assert evaluate.score(truth, predicted, 2).named == pytest.approx(2 / 3)
    assert evaluate.score([0, 0, 1, 3, 2], predicted, 2).named == pytest.approx(2 / 3)  # other truths of New images
    swapped = evaluate.score([0, 0, 1, 1], [1, 1, 0, 0], 2)
    assert swapped.accuracy.all == 1.0 and swapped.named == 0.0
    assert (
        math.isnan(evaluate.score([2, 3], [2, 3], 2).named)
        and evaluate.score([2, 3], [2, 3], 2).to_json()["named"] is None
    )
