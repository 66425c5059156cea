"""GCD and semi-supervised k-means: the contrastive loss, then categories and novelty from clustering the features."""

from __future__ import annotations

import oracles
import pytest
import torch
from little import (
    KNOWN,
    TOKENS,
    WIDTH,
    K,
    at,
    batch,
    config,
    context,
    made,
    method_of,
    random_labels,
    random_output,
    says,
)
from torch import Tensor
from torch.nn.functional import normalize

from debgcd import config as configuration
from debgcd.losses import novelty
from debgcd.methods import create
from debgcd.methods.base import Sizes
from debgcd.model.heads import PrototypeProjection, reset
from debgcd.model.network import Network

CLUSTERING = ["sskmeans", "gcd"]


def clustered(noise: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """Features in K groups, their groups, and labels for half of the known ones."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(12 * K) % K
    features = 4 * torch.randn(K, WIDTH, generator=generator)[truth]
    features = features + noise * torch.randn(12 * K, WIDTH, generator=generator)
    return features, truth, torch.where((truth < KNOWN) & (torch.arange(12 * K) % 2 == 0), truth, -1)


def settled(name: str, features: Tensor, label: Tensor, seed: int = 0) -> Network:
    network, method = made(config(method=name, seed=seed))
    with torch.no_grad():
        method.before_training(context(network, lambda: features, label))
        method.finalise(context(network, lambda: features, label))
    return network


def test_the_loss_of_gcd_is_the_contrastive_one_alone() -> None:
    """0.65 · InfoNCE at temperature 1 over all rows + 0.35 · supervised contrast at 0.07 over the labelled ones."""
    for seed in range(3):
        output, label = random_output(12, seed), random_labels(12, seed)
        loss = method_of(config(method="gcd")).loss(says(output), batch(label), at(0.5))
        labelled = [i for i, y in enumerate(label.tolist() * 2) if y >= 0]
        z = output["projection"].tolist()
        expected = 0.65 * oracles.info_nce(z, 1.0)
        expected += 0.35 * oracles.supervised_contrastive(
            [z[i] for i in labelled], [y for y in label.tolist() if y >= 0], 0.07
        )
        assert loss.total.item() == pytest.approx(expected, rel=1e-10)
        assert set(loss.terms) == {"info_nce", "supervised_contrastive"} and loss.hard_label is None
        simgcd = method_of(config(method="simgcd")).loss(says(output), batch(label), at(0.5))
        assert all(simgcd.terms[name].item() == term.item() for name, term in loss.terms.items())


def test_the_settings_of_gcds_loss() -> None:
    output, label = random_output(12), random_labels(12)
    chosen = {"supervised_weight": 0.0, "unlabelled_temperature": 0.3}
    loss = method_of(config(method="gcd", baseline=chosen)).loss(says(output), batch(label), at(0.5))
    assert loss.total.item() == pytest.approx(oracles.info_nce(output["projection"].tolist(), 0.3), rel=1e-10)


@pytest.mark.parametrize("label", [[-1, -1, -1], [0, 1, 1], [-1], [2]])
def test_batches_of_one_kind_reach_the_tail(label: list[int]) -> None:
    network, method = made(config(method="gcd"))
    tokens = torch.randn(2 * len(label), TOKENS, generator=torch.Generator().manual_seed(0))
    method.loss(network, batch(torch.tensor(label), tokens), at(0.5)).total.backward()
    for name, parameter in [*network.heads.named_parameters(), *network.backbone.tuned.named_parameters()]:
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_the_head_of_the_public_code_contrasts_cosines_to_many_prototypes() -> None:
    """DINO's head: an MLP, unit length, cosines to prototypes of unit length, and the vector of these at unit length."""
    head = PrototypeProjection(width=6, hidden=5, inner=4, depth=3, prototypes=9).double()
    reset(head, torch.Generator().manual_seed(0))
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = x
    for i, layer in enumerate(head.projection.layers):
        rows = torch.stack([layer.weight @ (torch.nn.functional.gelu(row) if i else row) + layer.bias for row in rows])
    for found, row in zip(head(x), rows, strict=True):
        cosines = torch.stack([row @ w / (row.norm() * w.norm()) for w in head.prototypes.weight])
        assert torch.allclose(found, cosines / cosines.norm(), atol=1e-12)
    public = configuration.compose("paper", method="gcd")
    whole = create(public, Sizes(768, 200, 100, images=5994)).heads()["projection"]
    assert isinstance(whole, PrototypeProjection) and whole.prototypes.weight.shape == (65536, 256)
    reset(whole, torch.Generator().manual_seed(0))
    assert float(whole.prototypes.weight.abs().max()) == pytest.approx(
        1 / 16, rel=1e-3
    )  # torch's linear layer: 256^-1/2
    for layer in whole.projection.layers:
        assert float(layer.weight.std()) == pytest.approx(0.02, rel=0.05) and not layer.bias.any()


def test_what_learns_and_what_is_settled() -> None:
    for name, learning in {"sskmeans": set(), "gcd": {"projection"}}.items():
        network, method = made(config(method=name))
        assert set(network.heads) == {"classifier", "detector"} | learning
        assert network.learning == learning
        assert method.trains == bool(learning)
    with pytest.raises(TypeError, match="nothing to train"):
        method_of(config(method="sskmeans")).loss(says(random_output(2)), batch(random_labels(2)), at(0.0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CLUSTERING)
def test_known_classes_keep_their_numbers_and_new_ones_are_found(name: str, seed: int) -> None:
    features, truth, label = clustered()
    network = settled(name, features, label, seed)
    category = network.heads["classifier"](features).argmax(1)
    assert torch.equal(category[truth < KNOWN], truth[truth < KNOWN])
    for k in range(KNOWN, K):
        assert len(category[truth == k].unique()) == 1
    assert set(category[truth >= KNOWN].tolist()) == set(range(KNOWN, K))
    s = novelty(network.heads["detector"](features))
    assert s[truth < KNOWN].max() < 0.9 < 0.99 < s[truth >= KNOWN].min()


@pytest.mark.parametrize("name", CLUSTERING)
def test_labels_hold_their_images(name: str) -> None:
    """Where clusters overlap, a centre is the mean of the labelled images of its class and of the free ones next to it."""
    features, _, label = clustered(noise=6.0)
    unit = normalize(features, dim=1)
    centres = settled(name, features, label).heads["classifier"].weight
    members: dict[int, list[Tensor]] = {k: [] for k in range(K)}
    moved = 0
    for point, y in zip(unit, label.tolist(), strict=True):
        nearest = min(range(K), key=lambda k, point=point: float((point - centres[k]).norm()))
        members[nearest if y < 0 else y].append(point)
        moved += y >= 0 and nearest != y
    assert moved  # otherwise plain k-means would do
    for k in range(K):
        torch.testing.assert_close(centres[k], torch.stack(members[k]).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["kmeans", *CLUSTERING])
def test_what_was_settled_before_leaves_no_trace(name: str) -> None:
    """So that an evaluation in the middle does not change the end."""
    features, _, label = clustered(noise=3.0)
    once = settled(name, features, label)
    network, method = made(config(method=name))
    projection = {key: value.clone() for key, value in network.state().items() if "projection" in key}
    with torch.no_grad():
        method.finalise(context(network, lambda: features.flip(1), label))
        method.finalise(context(network, lambda: features, label))
    assert all(torch.equal(value, once.state()[key]) for key, value in network.state().items())
    assert all(torch.equal(value, network.state()[key]) for key, value in projection.items())


def test_gcd_starts_its_projection_where_simgcd_does() -> None:
    one, two = made(config(method="gcd"))[0].state(), made(config(method="simgcd"))[0].state()
    names = [name for name in one if "projection" in name]
    assert len(names) == 6 and all(torch.equal(one[name], two[name]) for name in names)
