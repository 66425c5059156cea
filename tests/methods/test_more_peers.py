"""RankStats+, XCon, OpenCon, PromptCAL, InfoSieve, CiPR, DCCL and GPC: totals against slow forms, hooks, no waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracles
import oracles_contrast
import oracles_memory
import pytest
import torch
from little import KNOWN, TOKENS, WIDTH, K, Little, at, batch, config, context, made, random_labels
from test_waiting import Watch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd import config as configuration
from debgcd.cluster.kmeans import Clustering
from debgcd.config.schedules import Progress
from debgcd.data.sampler import Draws, uniform
from debgcd.methods import METHODS, xcon
from debgcd.methods.base import Batch, Sizes
from debgcd.methods.dccl import ClusterSampler
from debgcd.train.setup import build

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
    expected = oracles.supervised([row[:KNOWN] for row in pick(cosines, labelled)], y, 0.1)  # only known classes
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


@pytest.mark.parametrize("preset", ["paper", "released", "small"])
def test_the_parts_of_xcon_take_scikit_learns_default_effort(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """KMeans(n_clusters=8) in the public code: ten random restarts of 300 iterations, whatever the final clustering takes."""
    asked: dict[str, Any] = {}

    def kmeans(points: Tensor, label: Tensor, k: int, **more: Any) -> Clustering:
        asked.update(more, k=k, labelled=int((label >= 0).sum()))
        return slow_kmeans(points, label, k, **more)

    slow_kmeans = xcon.kmeans
    monkeypatch.setattr(xcon, "kmeans", kmeans)
    base = configuration.compose(preset, method="xcon")
    network, method = made(configuration.override(base, {"k": K, "heads": {"projection_prototypes": 0}}, "test"), 20)
    features = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        method.before_training(context(network, lambda: features, random_labels(20)))
    effort = {name: asked[name] for name in ("restarts", "iterations", "k", "labelled")}
    assert effort == {"restarts": 10, "iterations": 300, "k": 8, "labelled": 0}


def test_the_parts_of_xcon_are_clusters_of_the_features() -> None:
    network, method, *_ = prepared("xcon", 0)
    features = torch.eye(WIDTH)[torch.tensor([0, 1, 2, 0, 1, 2])].double()
    with torch.no_grad():
        method.before_training(context(network, lambda: features, random_labels(IMAGES)))
    part = network.get_buffer("memory.part").tolist()
    assert part[:3] == part[3:] and len(set(part)) == 3


@pytest.mark.parametrize("seed", range(4))
def test_the_total_of_opencon_and_where_its_prototypes_go(seed: int) -> None:
    network, method, some, labelled, y = prepared("opencon", seed)
    with torch.no_grad():
        method.before_training(context(network, lambda: torch.empty(0), random_labels(IMAGES)))
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
    method.after_step(network, at(0.25))
    found_rows = network.get_buffer("heads.classifier.weight").tolist()
    assert found_rows == [pytest.approx(row, abs=1e-9) for row in moved]


@pytest.mark.parametrize("seed", range(4))
def test_the_total_of_infosieve(seed: int) -> None:
    network, method, some, labelled, y = prepared("infosieve", seed)
    guess = [i % K for i in range(IMAGES)]
    network.get_buffer("memory.guess").copy_(torch.tensor(guess))
    network.get_buffer("heads.projection.age").fill_(3.0)
    network.get_buffer("heads.projection.weight").copy_(1.5 ** -torch.arange(4))
    sieve, weight = network.heads["projection"], network.get_buffer("heads.projection.weight")
    generator = torch.Generator().manual_seed(seed)
    for head in (sieve.code, sieve.mask, sieve.category):  # as after training: at first all of their outputs are near 0
        for parameter in head.parameters():
            parameter.data.normal_(generator=generator)
    z = network(some.tokens)["projection"][:, :4]
    code = (3 * sieve.code(z)).tanh()
    mask = ((sieve.mask(z) + 0.25).tanh() + 1) / 2
    category = sieve.category(torch.stack([mask[:, i] * code[:, i] / 1.5**i for i in range(4)], 1))

    def contrasts(alone: Tensor, together: Tensor, relative: bool) -> float:
        apart, near = (oracles_memory.nearness(rows.tolist(), relative) for rows in (alone, together))
        among_labelled = oracles_memory.nearness(pick(together.tolist(), two(labelled)), relative)
        supervised = oracles_memory.near_contrastive(among_labelled, y) + oracles_memory.near_contrastive(near, guess)
        return 0.65 * oracles_memory.smoothed_nce(apart, 0.5) + 0.35 * supervised / 2

    expected = contrasts(z, z, False) + contrasts(normalize(code, dim=1), code * weight, True)
    expected += 0.01 * oracles_memory.code_condition(code.tolist())
    expected += 0.01 * oracles_memory.categories_of_codes(pick(category.tolist(), two(labelled)), y + y)
    expected += 0.1 * oracles_memory.code_length(mask.tolist(), [1.0, 0.5, 0.25, 0.125])  # these never change
    expected += 0.01 * oracles_memory.mask_condition(mask.tolist())
    found = method.loss(network, some, at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)


def test_infosieve_before_an_epoch() -> None:
    """Steepness 0.1 (e + 1), the weight of bit i (2 − e/E)^−i, and pseudo-labels that know the labels."""
    network, method, *_ = prepared("infosieve", 0)
    truth = torch.tensor([0, 1, 2, 0, 1, 2])
    features = torch.eye(WIDTH)[truth].double() + 0.01 * torch.arange(IMAGES)[:, None]
    label = torch.tensor([0, 1, 2, -1, -1, -1])
    for epoch in (0, 100, 199):
        with torch.no_grad():
            method.before_epoch(context(network, lambda: features, label), Progress(10 * epoch, 2000, 10))
        assert network.get_buffer("heads.projection.age").item() == pytest.approx(0.1 * (epoch + 1))
        weight = [(2 - epoch / 200) ** -i for i in range(4)]
        assert network.get_buffer("heads.projection.weight").tolist() == pytest.approx(weight)
        assert network.get_buffer("memory.guess").tolist()[:3] == [0, 1, 2]


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_the_first_stage_of_promptcal(share: float) -> None:
    network, method, some, labelled, y = prepared("promptcal", 0, promptcal={"first_share": 0.9})
    output = network(some.tokens)
    cls, prompts = (representation(output[name].tolist(), labelled, y) for name in ("cls", "prompts"))
    assert method.loss(network, some, at(share)).total.item() == pytest.approx(cls + 0.35 * prompts, rel=1e-8)
    with torch.no_grad():
        for parameter in network.trained().values():
            parameter.add_(0.1)
    method.after_step(network, at(share))
    for own, parameter in zip(network.memory.teacher.buffers(), network.trained().values(), strict=True):
        assert torch.equal(own, parameter)


@pytest.mark.parametrize("filled", [0, 20, 40])
@pytest.mark.parametrize("seed", range(3))
def test_the_second_stage_of_promptcal(seed: int, filled: int) -> None:
    """The teacher's other views are asked about in the graph; a link that labels forbid is a negative."""
    chosen = {"first_share": 0.5, "memory": 40, "negatives": 8, "neighbours": 3, "quantile": 0.2}
    network, method, some, labelled, y = prepared("promptcal", seed, promptcal=chosen)
    rng = torch.Generator().manual_seed(seed)
    half, memory = WIDTH // 2, network.memory
    with torch.no_grad():
        for own in memory.teacher.buffers():
            own.add_(0.1 * torch.randn(own.shape, generator=rng, dtype=torch.float64))
    remembered = normalize(torch.randn(filled, 2, half, generator=rng, dtype=torch.float64), dim=2)
    their_label = torch.randint(-1, KNOWN, (filled,), generator=rng)
    memory.queue.add(remembered, their_label)
    student, teacher = network(some.tokens), memory.teacher(network, some.tokens, ("cls", "prompts"))
    label = [y[labelled.index(i)] if i in labelled else -1 for i in range(IMAGES)] * 2
    chance = uniform(0, "promptcal", np.arange(IMAGES)[:, None], np.arange(40)).astype(np.float32)
    progress = Progress(1010, 2000, 10)  # one of the two epochs in which the weight grows to 0.6
    expected = 0.0
    for part, (name, weight) in enumerate((("cls", 1.0), ("prompts", 0.35))):
        z, own = (normalize(x.feature[:, part * half : (part + 1) * half], dim=1).tolist() for x in (student, teacher))
        other_view = own[IMAGES:] + own[:IMAGES]
        others = remembered[:, part].tolist()
        linked = oracles_memory.agreed(other_view + others, 2 * IMAGES, 3, 0.2)
        positive = [list(row) for row in linked]
        candidate = [
            [bool(chance[i % IMAGES, j] < 8 / filled) or linked[i][j] for j in range(filled)] for i in range(12)
        ]
        for i, mine in enumerate(label):
            for j, theirs in enumerate(their_label.tolist()):
                if mine >= 0 and theirs >= 0:
                    positive[i][j] = mine == theirs
        said, taught = student[name].tolist(), teacher[name].tolist()
        nce = oracles_memory.cross_contrast(said, taught, list(range(IMAGES)) * 2, 1.0)
        rows = two(labelled)
        supervised = oracles_memory.cross_contrast(pick(said, rows), pick(taught, rows), y + y, 0.07)
        near = oracles_memory.neighbour_contrast(z, other_view, others, positive, candidate, 0.07)
        expected += weight * (0.65 * (0.7 * nce + 0.3 * near) + 0.35 * supervised)
    found = method.loss(network, some, progress)
    assert found.total.item() == pytest.approx(expected, rel=1e-7)
    places = (filled + np.arange(2 * IMAGES)) % 40
    assert memory.queue.label[places].tolist() == label
    own = normalize(teacher.feature.unflatten(1, (2, half)), dim=2)
    torch.testing.assert_close(memory.queue.rows[places].double(), own, rtol=1e-5, atol=1e-6)
    has_gradients(network, found)


def test_promptcals_teacher_begins_as_the_network_that_it_starts_from() -> None:
    network, method, *_ = prepared("promptcal", 0)
    with torch.no_grad():
        for parameter in network.trained().values():
            parameter.add_(1.0)  # as `--start` fills it
        method.before_training(context(network, lambda: torch.empty(0), random_labels(IMAGES)))
    for own, parameter in zip(network.memory.teacher.buffers(), network.trained().values(), strict=True):
        assert torch.equal(own, parameter)


@pytest.mark.parametrize("seed", range(4))
def test_the_total_of_cipr(seed: int) -> None:
    network, method, some, labelled, y = prepared("cipr", seed)
    cluster = [i % 2 for i in range(IMAGES)]
    network.get_buffer("memory.cluster").copy_(torch.tensor(cluster))
    z = network(some.tokens)["projection"].tolist()
    expected = oracles.supervised_contrastive(pick(z, two(labelled)), y, 0.07)
    expected += 0.12 / 0.07 * oracles.supervised_contrastive(z, cluster, 0.12)
    found = method.loss(network, some, at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)


@pytest.mark.parametrize("seed", range(3))
def test_the_total_of_gpc(seed: int) -> None:
    network, method, some, labelled, y = prepared("gpc", seed)
    own, temperature = [0, 1, 2, 1, 0, 2], [0.5, 1.0, 2.0]
    centres = random_centres(seed)
    network.get_buffer("memory.means")[:3] = centres
    network.get_buffer("memory.own").copy_(torch.tensor(own))
    network.get_buffer("memory.count").fill_(3)
    network.get_buffer("memory.temperatures")[:3] = torch.tensor(temperature).double()
    output = network(some.tokens)
    unit = normalize(output.feature, dim=1).tolist()
    expected = representation(output["projection"].tolist(), labelled, y)
    expected += oracles_memory.centre_contrast(unit, centres.tolist(), 3, own + own, temperature)
    found = method.loss(network, some, at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)


@pytest.mark.parametrize(("seed", "share", "weight"), [(0, 0.0, 0.04), (1, 0.25, 0.22), (2, 0.5, 0.4), (3, 0.9, 0.4)])
def test_the_total_of_dccl_and_where_its_centres_go(seed: int, share: float, weight: float) -> None:
    """L_rep of the first half of the images, the clusters of the second half, which move the centres."""
    network, method, some, labelled, y = prepared("dccl", seed)
    own, centres, half = [0, 1, -1, 1, 0, -1], random_centres(seed), [3, 4, 5]
    network.get_buffer("memory.centres")[:3] = centres
    network.get_buffer("memory.cluster").copy_(torch.tensor(own))
    network.get_buffer("memory.count").fill_(2)
    output = network(some.tokens)
    unit, z = normalize(output.feature, dim=1).tolist(), output["projection"].tolist()
    early = [i for i in labelled if i < 3]
    supervised = oracles.supervised_contrastive(pick(z, two(early)), y[: len(early)])
    expected = 0.65 * oracles.info_nce(pick(z, two([0, 1, 2]))) + 0.35 * supervised
    clusters = [own[i] for i in half] * 2
    contrast = oracles_memory.centre_contrast(pick(unit, two(half)), centres.tolist(), 2, clusters, [0.05] * 3)
    expected += weight * contrast
    found = method.loss(network, some, at(share))
    assert found.total.item() == pytest.approx(expected, rel=1e-8)
    has_gradients(network, found)
    moves = [cluster >= 0 for cluster in clusters]
    whose = [max(cluster, 0) for cluster in clusters]
    after = oracles_contrast.follow(centres.tolist(), pick(unit, two(half)), whose, moves, 0.1)
    method.after_step(network, at(share))
    assert network.get_buffer("memory.centres")[:3].tolist() == [pytest.approx(row, abs=1e-9) for row in after]


def random_centres(seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(3, WIDTH, generator=rng, dtype=torch.float64), dim=1)


def test_gpc_keeps_its_categories_where_most_axes_are_noise() -> None:
    """Clusters and decisions are made on the same axes: on all of them k-means finds handfuls, which would be merged away."""
    rng = torch.Generator().manual_seed(0)
    truth = torch.arange(480) % 6
    features = torch.cat([5 * torch.eye(6)[truth], torch.zeros(480, WIDTH - 6)], 1)
    wide = torch.cat([features, torch.zeros(480, 400)], 1) + torch.randn(480, WIDTH + 400, generator=rng)
    label = torch.where((truth < KNOWN) & (torch.arange(480) % 12 < 6), truth, -1)
    chosen = config(method="gpc", k=6, heads={"projection_width": 4}, gpc={"axes": 6, "chance": 0.0})
    method = METHODS["gpc"](chosen, Sizes(WIDTH + 400, 6, KNOWN, 480))
    network = build(method, Wide())
    with torch.no_grad():
        for step in range(8):
            method.before_epoch(context(network, lambda: wide, label), at(step / 10))
    assert int(network.get_buffer("memory.count")) == 6


class Wide(Little):
    """A backbone whose feature is wider; only its width is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.width = WIDTH + 400


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
        method.before_epoch(where, at(0.0))
        assert (
            int(network.get_buffer("memory.count")) == K and (network.get_buffer("memory.own") == -1).all()
        )  # it warms up
        for step in range(1, 8):
            method.before_epoch(where, at(step / 10))
        assert int(network.get_buffer("memory.count")) == 6
        method.finalise(where)
    assert network.heads["classifier"].weight.shape == (6, WIDTH)
    said = network.from_feature(features, method.answers)["classifier"].argmax(1)
    assert len(set(zip(said.tolist(), truth.tolist(), strict=True))) == 6 and (said == truth)[truth < KNOWN].all()


def test_gpc_splits_by_chance_too() -> None:
    rng = torch.Generator().manual_seed(0)
    features = torch.eye(WIDTH)[torch.arange(120) % K] + 0.1 * torch.randn(120, WIDTH, generator=rng)
    found = {}
    for chance in (0.0, 1.0):
        chosen = config(method="gpc", heads={"projection_width": 4}, gpc={"chance": chance})
        network, method = made(chosen, 120)
        with torch.no_grad():
            method.before_epoch(context(network, lambda: features, torch.full((120,), -1)), at(0.1))
        found[chance] = int(network.get_buffer("memory.count"))
    assert found[0.0] == K and found[1.0] != K


@pytest.mark.parametrize("name", ["rankstats", "xcon", "opencon", "infosieve", "cipr", "dccl", "gpc", "promptcal"])
def test_a_step_of_these_never_waits(name: str) -> None:
    stage = {"promptcal": {"first_share": 0.1, "memory": 40}} if name == "promptcal" else {}  # then in its second stage
    network, method, *_ = prepared(name, 0, **stage)
    network.to("meta")
    numbers = np.arange(IMAGES)
    with Watch() as watch:
        seen = torch.empty(2 * IMAGES, TOKENS, device="meta", dtype=torch.float64)
        some = Batch.of(seen, Draws(numbers, numbers), random_labels(IMAGES).numpy(), "meta")
        found = method.loss(network, some, at(0.5))
        found.total.backward()
        method.after_step(network, at(0.5))
    assert watch.uploads == (3 if name == "promptcal" else 1)  # also its random numbers, for each half of the feature


def test_every_method_says_what_it_is() -> None:
    for name, method in METHODS.items():
        about = method.about
        assert 2007 <= about.year <= 2026 and about.title and about.venue and len(about.idea) < 90, name
        assert method.first is None or method.first in METHODS


def clouds(count: int, scale: float, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """20 points around each of so many directions, and the number of each point's cloud, in turns."""
    truth = torch.arange(20 * count) % count
    rng = torch.Generator().manual_seed(1)
    return scale * torch.eye(WIDTH)[truth] + noise * torch.randn(20 * count, WIDTH, generator=rng), truth


def test_dccl_before_an_epoch() -> None:
    """Clusters are the clouds, and centres the means of unit-length features, of unit length; the others are not in use.

    The last image resembles the first cloud a little (cosine 0.3): it is in no cluster.
    """
    features, truth = clouds(4, 3.0)
    features = torch.cat([features, 3 * torch.eye(WIDTH)[4:5] + torch.eye(WIDTH)[:1]])
    truth = torch.cat([truth, torch.tensor([-1])])
    chosen = config(method="dccl", heads={"projection_width": 4, "projection_prototypes": 0})
    method = METHODS["dccl"](chosen, Sizes(WIDTH, K, KNOWN, len(truth)))
    network = build(method, Little())
    label = torch.where((truth < KNOWN) & (torch.arange(len(truth)) < 40), truth, -1)
    with torch.no_grad():
        method.before_epoch(context(network, lambda: features, label), at(0.0))
    cluster, centres = network.get_buffer("memory.cluster"), network.get_buffer("memory.centres")
    assert int(network.get_buffer("memory.count")) == 4 and cluster[-1] == -1
    assert len(set(zip(cluster.tolist(), truth.tolist(), strict=True))) == 5
    for i in range(4):
        mean = sum(row / row.norm() for row in features[cluster == i]) / 20
        torch.testing.assert_close(centres[i], mean / mean.norm())
    assert len(centres) > 4 and not centres[4:].any()


@pytest.mark.parametrize("level", [None, 0, 1, 9])
def test_cipr_before_an_epoch(level: int | None) -> None:
    """Clusters of the asked level, by default 1, or of the last one; here that has the clouds, and level 0 parts of them."""
    features, truth = clouds(4, 3.0, 0.5)
    chosen = config(method="cipr", cipr={} if level is None else {"level": level}, heads={"projection_width": 4})
    method = METHODS["cipr"](chosen, Sizes(WIDTH, K, KNOWN, len(truth)))
    network = build(method, Little())
    with torch.no_grad():
        method.before_epoch(context(network, lambda: features, torch.full_like(truth, -1)), at(0.0))
    cluster = network.get_buffer("memory.cluster").tolist()
    assert len(set(zip(cluster, truth.tolist(), strict=True))) == len(set(cluster))
    assert len(set(cluster)) > 4 if level == 0 else len(set(cluster)) == 4


def test_labels_join_ciprs_clusters() -> None:
    """Two of the four clouds have the same label."""
    features, truth = clouds(4, 3.0, 0.5)
    method = METHODS["cipr"](config(method="cipr", heads={"projection_width": 4}), Sizes(WIDTH, K, KNOWN, len(truth)))
    network = build(method, Little())
    with torch.no_grad():
        method.before_epoch(context(network, lambda: features, torch.where(truth < 2, 0, -1)), at(0.0))
    cluster = network.get_buffer("memory.cluster").tolist()
    assert cluster[:4] == [0, 0, 1, 2]  # one image of each cloud
    assert len(set(zip(cluster, truth.clamp_min(1).tolist(), strict=True))) == len(set(cluster))


@pytest.mark.parametrize("groups", [1, 2])
def test_every_prototype_of_opencon_has_a_direction(groups: int) -> None:
    """Also of a category that is nearest to no image, because features are equal."""
    features = torch.eye(WIDTH)[torch.arange(IMAGES) % groups]
    network, method = made(config("small", method="opencon", heads={"projection_width": 4}), IMAGES)
    with torch.no_grad():
        method.before_training(context(network, lambda: features, random_labels(IMAGES)))
    weight = network.heads["classifier"].weight
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(K))
    assert len(weight.unique(dim=0)) == K


def test_ciprs_first_categories_are_the_known_classes() -> None:
    """Six clouds, the known ones not first in the order of the images; one known class has no label left."""
    rng = torch.Generator().manual_seed(0)
    truth = (5 - torch.arange(180)) % 6
    features = 6 * torch.eye(WIDTH)[truth] + 0.5 * torch.randn(180, WIDTH, generator=rng)
    for labelled in (range(KNOWN), range(KNOWN - 1)):
        label = torch.where((truth < len(labelled)) & (torch.rand(180, generator=rng) < 0.5), truth, -1)
        method = METHODS["cipr"](config(method="cipr", k=6, heads={"projection_width": 4}), Sizes(WIDTH, 6, KNOWN, 180))
        network = build(method, Little())
        with torch.no_grad():
            method.finalise(context(network, lambda: features, label))
        said = network.from_feature(features, method.answers)["classifier"].argmax(1)
        assert (said == label)[label >= 0].all() and len(set(said.tolist())) == 6
