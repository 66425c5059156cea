"""The k-means baseline: clusters from all images, known classes matched by their labelled images."""

from __future__ import annotations

import itertools

import pytest
import torch
from little import KNOWN, WIDTH, K, at, batch, config, context, made, method_of, random_labels, random_output, says
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd.errors import UsageError
from debgcd.methods.shared import known_first
from debgcd.model.network import Output


def clustered() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(12 * K) % K
    features = 4 * torch.randn(K, WIDTH, generator=generator)[truth]
    return features + 0.1 * torch.randn(12 * K, WIDTH, generator=generator), truth


def fitted(features: Tensor, label: Tensor, seed: int = 0) -> tuple[nn.ModuleDict, Tensor]:
    """Heads after k-means, and the category of each feature."""
    network, method = made(config(method="kmeans", seed=seed))
    with torch.no_grad():
        method.finalise(context(network, lambda: features, label))
        return network.heads, network.heads["classifier"](features).argmax(1)


@pytest.mark.parametrize("seed", range(4))
def test_known_classes_get_their_own_numbers(seed: int) -> None:
    features, truth = clustered()
    label = torch.where((truth < KNOWN) & (torch.arange(len(truth)) % 3 == 0), truth, -1)
    _, category = fitted(features, label, seed)
    assert torch.equal(category[truth < KNOWN], truth[truth < KNOWN])
    for k in range(KNOWN, K):
        assert len(category[truth == k].unique()) == 1
    assert set(category[truth >= KNOWN].tolist()) == set(range(KNOWN, K))


def test_labels_name_the_clusters_and_do_not_make_them() -> None:
    """Other labels permute the centres, nothing else: the baseline of the paper's tables is plain k-means."""
    features, truth = clustered()
    one, _ = fitted(features, torch.where(truth < KNOWN, truth, -1))
    two, _ = fitted(features, torch.where(truth < KNOWN, (truth + 1) % KNOWN, -1))
    a, b = one["classifier"].weight, two["classifier"].weight
    assert torch.equal(a[[2, 0, 1]], b[:KNOWN])
    assert torch.equal(a[KNOWN:], b[KNOWN:])
    wrong, _ = fitted(
        features, torch.where(torch.arange(len(truth)) % 2 == 0, torch.arange(len(truth)) // 4 % KNOWN, -1)
    )
    assert {tuple(row) for row in wrong["classifier"].weight.tolist()} == {tuple(row) for row in a.tolist()}


def test_a_category_is_the_nearest_centre() -> None:
    features, truth = clustered()
    heads, category = fitted(features, torch.where(truth < KNOWN, truth, -1))
    centres = heads["classifier"].weight
    for feature, found in zip(normalize(features, dim=1), category.tolist(), strict=True):
        distances = [float((feature - centre).norm()) for centre in centres]
        assert distances.index(min(distances)) == found


@pytest.mark.parametrize("seed", range(10))
def test_the_matching_is_the_best_of_all(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    k, known = 5, 3
    assignment = torch.randint(k, (40,), generator=generator)
    label = torch.randint(-1, known, (40,), generator=generator)

    def hits(order: tuple[int, ...] | list[int]) -> int:
        return sum(int(((assignment == order[i]) & (label == i)).sum()) for i in range(known))

    order = known_first(assignment, label, k, known).tolist()
    assert sorted(order) == list(range(k))
    assert hits(order) == max(hits(permutation) for permutation in itertools.permutations(range(k)))
    assert order[known:] == sorted(order[known:])


def test_as_many_known_classes_as_clusters() -> None:
    order = known_first(torch.tensor([2, 2, 0, 1, 1]), torch.tensor([0, 0, 1, 2, -1]), 3, 3)
    assert order.tolist() == [2, 0, 1]


def test_there_is_nothing_to_train_and_no_novelty() -> None:
    network, method = made(config(method="kmeans"))
    assert set(network.heads) == {"classifier"}
    assert not list(network.heads.parameters())
    assert not method.trains
    with pytest.raises(TypeError, match="nothing to train"):
        method.loss(says(random_output(2)), batch(random_labels(2)), at(0.0))


def test_probabilities_add_up_and_the_nearest_is_the_largest() -> None:
    features, truth = clustered()
    heads, category = fitted(features, torch.where(truth < KNOWN, truth, -1))
    said = Output(features, {"classifier": heads["classifier"](features)})
    p = method_of(config(method="kmeans")).scores(said)["gcd"]
    torch.testing.assert_close(p.sum(1), torch.ones(len(p)))
    assert torch.equal(p.argmax(1), category)


def test_a_method_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match=r"no method 'deb' \(did you mean 'debgcd'\?\)"):
        method_of(config(method="deb"))


@pytest.mark.parametrize("method", ["kmeans", "sskmeans", "gcd", "simgcd", "debgcd"])
def test_clustering_reports_its_progress(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    features, truth = clustered()
    label = torch.where(truth < KNOWN, truth, -1)
    warm = {"heads": {"warm_start": True}} if method in ("simgcd", "debgcd") else {}
    network, made_method = made(config(method=method, **warm))
    with torch.no_grad():
        made_method.before_training(context(network, lambda: features, label))
        made_method.finalise(context(network, lambda: features, label))
    assert capsys.readouterr().err.startswith("clustering: ")
