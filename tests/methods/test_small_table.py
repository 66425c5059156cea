"""RankStats+, XCon, OpenCon, InfoSieve, CiPR, DCCL, GPC and SPTNet: totals against slow forms, hooks, no waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracles
import oracles_contrast
import oracles_memory
import pytest
import torch
from little import KNOWN, TOKENS, WIDTH, K, at, batch, config, context, made, random_labels
from test_waiting import Watch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.data.sampler import Draws
from debgcd.methods import METHODS
from debgcd.methods.base import Batch
from debgcd.methods.dccl import ClusterSampler

IMAGES = 6
SMALL: dict[str, dict[str, Any]] = {
    "infosieve": {"infosieve": {"bits": 4, "hidden": 5}},
    "xcon": {"experts": {"count": 3}},
    "dccl": {"dccl": {"each": 2, "smallest": 2}},
}


def tokens(seed: int = 0) -> Tensor:
    return torch.randn(2 * IMAGES, TOKENS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def prepared(name: str, seed: int, **more: Any) -> tuple[Any, Any, Batch, list[int], list[int]]:
    """Network and method in double precision, a batch, the labelled images and their labels."""
    heads = {"rankstats": {}, "opencon": {"projection_width": 4}}
    values = (
        {"heads": heads.get(name, {"projection_width": 4, "projection_prototypes": 0})} | SMALL.get(name, {}) | more
    )
    network, method = made(config(method=name, **values), IMAGES)
    network.double()
    label = random_labels(IMAGES, seed)
    labelled = [i for i, y in enumerate(label.tolist()) if y >= 0]
    return network, method, batch(label, tokens(seed)), labelled, [int(label[i]) for i in labelled]


def two(rows: list[int]) -> list[int]:
    """Rows of both views of these images."""
    return rows + [i + IMAGES for i in rows]


def pick(rows: list[list[float]], which: list[int]) -> list[list[float]]:
    return [rows[i] for i in which]


def has_gradients(network: Any, loss: Any) -> None:
    loss.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.trained().values())


def representation(z: list[list[float]], labelled: list[int], y: list[int]) -> float:
    supervised = oracles.supervised_contrastive(pick(z, two(labelled)), y)
    return 0.65 * oracles.info_nce(z) + 0.35 * supervised


@pytest.mark.parametrize("seed", range(4))
def test_the_total_of_rankstats(seed: int) -> None:
    network, method, some, labelled, y = prepared("rankstats", seed, rankstats={"top": 2})
    output = network(some.tokens)
    cosines, feature = output["classifier"].tolist(), output.feature.tolist()
    free = [i for i in range(IMAGES) if i not in labelled]
    same = oracles_contrast.same_ranks(pick(feature, free), 2)
    expected = oracles.supervised(pick(cosines, labelled), y, 0.1)
    expected += oracles_contrast.pairwise_agreement(pick(cosines, two(free)), same)
    known = [row[:KNOWN] for row in cosines]
    weight = 50 * np.exp(-5 * (1 - 0.5 / 0.75) ** 2)
    expected += weight * (oracles_contrast.view_consistency(known) + oracles_contrast.view_consistency(cosines))
    found = method.loss(network, some, at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)


@pytest.mark.parametrize("seed", range(4))
def test_the_total_of_xcon(seed: int) -> None:
    network, method, some, labelled, y = prepared("xcon", seed)
    part = [i % 3 for i in range(IMAGES)]
    network.get_buffer("memory.part").copy_(torch.tensor(part))
    output = network(some.tokens)
    own = [output["experts"][i, part[i % IMAGES]].tolist() for i in range(2 * IMAGES)]
    within = 0.65 * oracles_contrast.info_nce_within(own, part)
    parts = [part[i] for i in labelled]
    within += 0.35 * oracles_contrast.supervised_contrastive_within(pick(own, two(labelled)), y, parts)
    expected = representation(output["projection"].tolist(), labelled, y) + 0.1 * within
    found = method.loss(network, some, at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)


def test_the_parts_of_xcon_are_clusters_of_the_features() -> None:
    network, method, *_ = prepared("xcon", 0)
    features = torch.eye(WIDTH)[torch.tensor([0, 1, 2, 0, 1, 2])].double()
    with torch.no_grad():
        method.begin(context(network, lambda: features, random_labels(IMAGES)))
    part = network.get_buffer("memory.part").tolist()
    assert part[:3] == part[3:] and len(set(part)) == 3


@pytest.mark.parametrize("seed", range(4))
def test_the_total_of_opencon_and_where_its_prototypes_go(seed: int) -> None:
    network, method, some, labelled, y = prepared("opencon", seed)
    with torch.no_grad():
        method.begin(context(network, lambda: torch.empty(0), random_labels(IMAGES)))
    weight = network.get_buffer("heads.classifier.weight").clone()
    z = network(some.tokens)["projection"]
    cosines = (z[:IMAGES] @ weight.T).tolist()
    label = [y[labelled.index(i)] if i in labelled else -1 for i in range(IMAGES)]
    free = [i for i in range(IMAGES) if i not in labelled]
    new = oracles_contrast.looks_new(cosines, label, KNOWN, 0.7)
    guess = [label[i] if label[i] >= 0 else oracles.first_argmax(cosines[i]) for i in range(IMAGES)]
    rows = z.tolist()
    expected = oracles.info_nce(pick(rows, two(free)), 0.4)
    expected += 0.2 * oracles.supervised_contrastive(pick(rows, two(labelled)), y, 0.1)
    expected += 0.05 * oracles_contrast.contrastive_among(rows, guess, new, 0.7)  # half of the ramp of half of the run
    prior = [0.5] * KNOWN + [1.0] * (K - KNOWN)
    prior = [value / sum(prior) for value in prior]
    expected += 0.05 * oracles_contrast.divergence(pick(cosines, free), prior)
    found = method.loss(network, some, at(0.25))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)
    moves = [i in labelled or guess[i] >= KNOWN for i in range(IMAGES)]
    moved = oracles_contrast.follow(weight.tolist(), rows[:IMAGES], guess, moves, 0.9)
    assert torch.equal(network.get_buffer("heads.classifier.weight"), weight)  # not before the step
    method.stepped(network, at(0.25))
    found_rows = network.get_buffer("heads.classifier.weight").tolist()
    assert found_rows == [pytest.approx(row, abs=1e-9) for row in moved]


@pytest.mark.parametrize("seed", range(4))
def test_the_total_of_infosieve(seed: int) -> None:
    network, method, some, labelled, y = prepared("infosieve", seed)
    guess = [i % K for i in range(IMAGES)]
    network.get_buffer("memory.guess").copy_(torch.tensor(guess))
    z, code, mask, category = network(some.tokens)["projection"].split([4, 4, 4, KNOWN], 1)
    weight = network.get_buffer("heads.projection.weight")

    def contrasts(alone: Tensor, together: Tensor, relative: bool) -> float:
        apart, near = (oracles_memory.nearness(rows.tolist(), relative) for rows in (alone, together))
        square = [[near[i][j] for j in two(labelled)] for i in two(labelled)]
        supervised = oracles_memory.near_contrastive(square, y) + oracles_memory.near_contrastive(near, guess)
        return 0.65 * oracles_memory.smoothed_nce(apart, 0.5) + 0.35 * supervised / 2

    expected = contrasts(z, z, False) + contrasts(normalize(code, dim=1), code * weight, True)
    expected += 0.01 * oracles_memory.code_condition(code.tolist())
    expected += 0.01 * oracles_memory.categories_of_codes(pick(category.tolist(), two(labelled)), y + y)
    expected += 0.1 * oracles_memory.code_length(mask.tolist(), weight.tolist())
    expected += 0.01 * oracles_memory.mask_condition(mask.tolist())
    found = method.loss(network, some, at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)


@pytest.mark.parametrize("seed", range(4))
def test_the_total_of_cipr(seed: int) -> None:
    network, method, some, labelled, y = prepared("cipr", seed)
    cluster = [i % 2 for i in range(IMAGES)]
    network.get_buffer("memory.cluster").copy_(torch.tensor(cluster))
    z = network(some.tokens)["projection"].tolist()
    expected = oracles.supervised_contrastive(pick(z, two(labelled)), y, 0.07)
    expected += oracles.supervised_contrastive(z, cluster, 0.12)
    found = method.loss(network, some, at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)


@pytest.mark.parametrize("name", ["dccl", "gpc"])
@pytest.mark.parametrize("seed", range(3))
def test_the_totals_of_dccl_and_gpc(seed: int, name: str) -> None:
    network, method, some, labelled, y = prepared(name, seed)
    own = [0, 1, 2, 1, 0, 2] if name == "gpc" else [0, 1, -1, 1, 0, -1]
    rng = torch.Generator().manual_seed(seed)
    centres = normalize(torch.randn(3, WIDTH, generator=rng, dtype=torch.float64), dim=1)
    names = ("means", "own") if name == "gpc" else ("centres", "cluster")
    network.get_buffer(f"memory.{names[0]}")[:3] = centres
    network.get_buffer(f"memory.{names[1]}").copy_(torch.tensor(own))
    used = 3 if name == "gpc" else 2
    network.get_buffer("memory.count").fill_(used)
    temperature = [0.5, 1.0, 2.0] if name == "gpc" else [0.05] * 3
    if name == "gpc":
        network.get_buffer("memory.temperatures")[:3] = torch.tensor(temperature).double()
    output = network(some.tokens)
    unit = normalize(output.feature, dim=1).tolist()
    weight = 1.0 if name == "gpc" else 0.4
    expected = representation(output["projection"].tolist(), labelled, y)
    expected += weight * oracles_memory.centre_contrast(unit, centres.tolist(), used, own + own, temperature)
    found = method.loss(network, some, at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)
    if name == "dccl":  # the half of the batch that was drawn by clusters moves the centres
        moves = [cluster >= 0 for cluster in own[3:]]
        after = oracles_contrast.follow(centres.tolist(), unit[3:IMAGES], [max(c, 0) for c in own[3:]], moves, 0.1)
        method.stepped(network, at(0.5))
        assert network.get_buffer("memory.centres")[:3].tolist() == [pytest.approx(row, abs=1e-9) for row in after]


def test_half_of_dccls_batch_holds_clusters() -> None:
    cluster = np.array([-1, 0, 0, 0, 1, 1, 1, -1])
    sampler = ClusterSampler(np.ones(8), 12, 0, cluster, each=3)
    for step in range(20):
        whole = sampler.draws(step)
        for group in (whole.image[6:9], whole.image[9:]):
            assert len(set(cluster[group])) == 1 and cluster[group[0]] >= 0
        parts = [sampler.draws(step, rank, 2) for rank in (0, 1)]
        assert np.array_equal(np.concatenate([part.image for part in parts]), whole.image)
        assert np.array_equal(np.concatenate([part.draw for part in parts]), whole.draw)
    nothing = ClusterSampler(np.ones(8), 12, 0, np.full(8, -1), each=3)
    assert len(nothing.draws(0).image) == 12


def test_gpc_finds_as_many_categories_as_there_are_gaussians() -> None:
    """Six tight clouds, three of them known, from a first guess of four."""
    rng = torch.Generator().manual_seed(0)
    truth = torch.arange(240) % 6
    features = 8 * torch.eye(WIDTH)[truth] + 0.3 * torch.randn(240, WIDTH, generator=rng)
    label = torch.where((truth < KNOWN) & (torch.arange(240) % 4 < 2), truth, -1)
    network, method = made(config(method="gpc", k=4, heads={"projection_width": 4}, gpc={"chance": 0.0}), 240)
    where = context(network, lambda: features, label)
    with torch.no_grad():
        for step in range(8):
            method.epoch(where, at(step / 10))
        assert method.categories(network) == 6
        method.settle(where)
    assert network.heads["classifier"].weight.shape == (6, WIDTH)
    said = network.from_feature(features, method.answers)["classifier"].argmax(1)
    assert len(set(zip(said.tolist(), truth.tolist(), strict=True))) == 6 and (said == truth)[truth < KNOWN].all()


@pytest.mark.parametrize("name", ["rankstats", "xcon", "opencon", "infosieve", "cipr", "dccl", "gpc"])
def test_a_step_of_these_never_waits(name: str) -> None:
    network, method, *_ = prepared(name, 0)
    network.to("meta")
    numbers = np.arange(IMAGES)
    with Watch() as watch:
        seen = torch.empty(2 * IMAGES, TOKENS, device="meta", dtype=torch.float64)
        some = Batch.of(seen, Draws(numbers, numbers), random_labels(IMAGES).numpy(), "meta")
        found = method.loss(network, some, at(0.5))
        found.total.backward()
        method.stepped(network, at(0.5))
    assert watch.uploads == 1


def test_every_method_says_what_it_is() -> None:
    for name, method in METHODS.items():
        about = method.about
        assert 2007 <= about.year <= 2026 and about.title and about.venue and len(about.idea) < 90, name
        assert method.first is None or method.first in METHODS
