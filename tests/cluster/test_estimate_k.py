"""How many categories: found where they are plain to see, refused where nothing can be said."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster import consensus
from debgcd.cluster.estimate_k import estimate_k
from debgcd.cluster.prototypes import AXES, principal
from debgcd.errors import DataError, UsageError


def mixture(classes: int, known: int, size: int = 24, noise: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Gaussian classes in 16 dimensions; half of the images of the first `known` classes are labelled."""
    random = np.random.default_rng(seed)
    truth = np.repeat(np.arange(classes), size)
    points = random.normal(0, 2, (classes, 16))[truth] + random.normal(0, noise, (len(truth), 16))
    label = np.where((truth < known) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    order = random.permutation(len(truth))
    return torch.tensor(points[order], dtype=torch.float32), torch.tensor(label[order])


@pytest.mark.parametrize(("classes", "known"), [(12, 6), (20, 10)])
@pytest.mark.parametrize("seed", [0, 1])
def test_plain_classes_are_counted(classes: int, known: int, seed: int) -> None:
    found = estimate_k(*mixture(classes, known, seed=seed), seed=seed)
    assert abs(found.k - classes) <= max(2, 0.15 * classes)
    assert found.low <= classes <= found.high
    assert known <= found.low <= found.k <= found.high


@pytest.mark.parametrize("seed", [0, 1])
def test_from_two_known_classes_little_is_known_and_the_interval_says_so(seed: int) -> None:
    found = estimate_k(*mixture(8, 2, seed=seed), seed=seed)
    assert found.low <= 8 <= found.high
    assert found.high >= 2 * found.low


@pytest.mark.parametrize(("axes", "width"), [(None, 300), (128, 128), (5, 5)])
def test_brent_on_the_papers_features_reduces_nothing(
    axes: int | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vaze et al. cluster features of unit length with all their axes."""
    module, seen = sys.modules["debgcd.cluster.estimate_k"], []
    fit = module.kmeans
    monkeypatch.setattr(
        module, "kmeans", lambda points, *args, **more: seen.append(points) or fit(points, *args, **more)
    )
    features = torch.randn(400, 300, generator=torch.Generator().manual_seed(0)) + 3
    label = torch.where(torch.arange(400) % 2 == 0, torch.arange(400) % 3, -1)
    estimate_k(features, label, way="brent", most=6, axes=axes)
    assert {tuple(points.shape) for points in seen} == {(400, width)}
    torch.testing.assert_close(seen[0].norm(dim=1), torch.ones(400))
    if axes is None:
        torch.testing.assert_close(seen[0], features / features.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("way", ["ward", "brent"])
def test_each_way_scores_what_it_looked_at(way: str) -> None:
    features, label = mixture(10, 5)
    found = estimate_k(features, label, way=way, most=30)
    curve = dict(found.curves[way])
    assert found.answers == {way: found.k}
    assert curve[found.k] == max(curve.values())
    assert all(5 <= k <= 30 and 0 <= score <= 1 for k, score in curve.items())
    if way == "ward":
        assert sorted(curve) == list(range(5, 31)), "all cuts of one tree"
        assert curve[10] > 0.95
    else:
        assert len(curve) < 20, "a search looks at few"


def test_the_same_seed_gives_the_same_and_json_can_hold_it() -> None:
    features, label = mixture(10, 5, noise=2.0)
    first, second = (estimate_k(features, label, seed=4).to_json() for _ in range(2))
    first.pop("seconds"), second.pop("seconds")
    assert first == second
    assert json.loads(json.dumps(first))["level"] == 0.9


def test_the_order_of_images_does_not_matter_much() -> None:
    features, label = mixture(12, 6)
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(1))
    assert abs(estimate_k(features, label).k - estimate_k(features[order], label[order]).k) <= 1


def test_no_new_class_at_all() -> None:
    assert 10 <= estimate_k(*mixture(10, 10)).k <= 12


def test_one_known_class_says_how_little_is_known() -> None:
    found = estimate_k(*mixture(6, 1))
    assert (found.low, found.high) == (1, max(k for k, _ in found.curves["consensus"]))
    assert 1 <= found.k <= found.high


@pytest.mark.parametrize("most", [4, 5, 40])
@pytest.mark.parametrize("way", ["consensus", "ward", "brent"])
def test_progress_is_told_to_the_end(way: str, most: int) -> None:
    told: list[tuple[int, int]] = []
    estimate_k(*mixture(8, 4), way=way, most=most, on_progress=lambda done, total: told.append((done, total)))
    assert told == sorted(set(told)), "never twice the same"
    assert told[-1][0] == told[-1][1]
    if way == "ward" and most == 40:
        assert len(told) > 5, "on the way along the cuts as well"


@pytest.mark.parametrize("seed", range(3))
def test_every_cut_is_scored_by_the_best_matching(seed: int) -> None:
    """With all clusters and classes in the matching, and scikit-learn's tree instead of ours."""
    features, label = mixture(9, 4, size=12, noise=2.0, seed=seed)
    found = dict(estimate_k(features, label, way="ward", most=20).curves["ward"])
    points = normalize(principal(features, AXES), dim=1).double().numpy()
    for k in range(4, 21):
        cluster = AgglomerativeClustering(k, linkage="ward").fit(points).labels_
        table = np.array([[((cluster == i) & (label.numpy() == j)).sum() for j in range(4)] for i in range(k)])
        rows, columns = linear_sum_assignment(-table)
        assert found[k] == pytest.approx(table[rows, columns].sum() / (label >= 0).sum().item(), abs=1e-6)


@pytest.mark.parametrize(("known", "most"), [(3, 100), (30, 100), (60, 120)])
def test_a_large_set_is_thinned_to_what_a_tree_takes_and_keeps_two_of_each_class(
    known: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consensus, "SAMPLE", 100)
    label = torch.full((2000,), -1)
    label[: 4 * known] = torch.arange(4 * known) % known
    points = torch.arange(2000.0)[:, None]
    kept, own = consensus._thinned(points, label, np.random.default_rng(0))
    assert len(kept) == most
    assert torch.bincount(own[own >= 0], minlength=known).min() >= 2
    assert torch.equal(label[kept[:, 0].long()], own)


def test_copies_of_images_change_little() -> None:
    features, label = mixture(10, 5)
    single = estimate_k(features, label)
    double = estimate_k(torch.cat([features, features]), torch.cat([label, label]))
    assert abs(double.k - single.k) <= 3


def spoilt(value: float) -> tuple[Tensor, Tensor]:
    features, label = mixture(4, 2)
    features[3, 2] = value
    return features, label


@pytest.mark.parametrize(
    ("features", "label", "options", "error", "said"),
    [
        (*mixture(4, 2), {"most": 1}, UsageError, "2 classes are labelled already"),
        (*mixture(4, 2), {"most": 97}, UsageError, "only 96 images"),
        (*mixture(4, 2), {"way": "guess"}, UsageError, "no way 'guess'"),
        (mixture(4, 2)[0], torch.full((96,), -1), {}, DataError, "no image is labelled"),
        (*spoilt(float("nan")), {}, DataError, "not finite, first in row 3"),
        (*spoilt(float("inf")), {}, DataError, "not finite, first in row 3"),
        (torch.ones(96, 4), mixture(4, 2)[1], {}, DataError, "the same features"),
        (mixture(4, 2)[0], mixture(4, 2)[1] * 2, {}, ValueError, "no image has label 1"),
        (mixture(4, 2)[0], mixture(4, 2)[1][:5], {}, ValueError, "must be"),
    ],
)
def test_what_cannot_be_estimated(features: Tensor, label: Tensor, options: dict, error: type, said: str) -> None:
    label = torch.where(label < 0, -1, label)
    with pytest.raises(error, match=said):
        estimate_k(features, label, **options)


def test_one_labelled_image_a_class_is_refused_in_words() -> None:
    features, label = mixture(6, 3)
    for one in range(3):
        label[(label == one).nonzero()[1:, 0]] = -1
    with pytest.raises(DataError, match="label"):
        estimate_k(features, label)
