"""ORCA, UNO+ and μGCD: their totals against slow forms, their hooks, and that a step never waits for the device."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracles
import peer_oracles
import pytest
import torch
from little import KNOWN, TOKENS, K, at, batch, config, context, made, random_labels
from test_waiting import Watch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd import config as configuration
from debgcd.config.schedules import Progress
from debgcd.data.sampler import Draws, uniform
from debgcd.methods import METHODS
from debgcd.methods.base import Batch
from debgcd.methods.uno import UNOHeads
from debgcd.model.heads import classifiers
from debgcd.model.network import Teacher
from debgcd.train.plan import first_stage, resolve_auto

IMAGES = 6


def tokens(views: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(views * IMAGES, TOKENS, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_the_total_of_orca(seed: int) -> None:
    network, method = made(config(method="orca", orca={"pair_weight": 0.7, "entropy_weight": 0.3}), IMAGES)
    network.double()
    network.get_buffer("memory.margin").fill_(0.2)
    label, seen = random_labels(IMAGES, seed), tokens(2, seed)
    output = network(seen)
    cosines, feature = output["classifier"].tolist(), output.feature[:IMAGES].tolist()
    labelled = [i for i, y in enumerate(label.tolist()) if y >= 0]
    y = [int(label[i]) for i in labelled]
    draw = np.float32(uniform(0, "orca/partner", np.arange(IMAGES)))
    partner = peer_oracles.partners(feature, labelled, y, [float(draw[i]) for i in labelled])
    expected = peer_oracles.margin_supervised([cosines[i] for i in labelled], y, 0.2)
    expected += 0.7 * peer_oracles.pairwise(cosines, partner)
    expected -= 0.3 * oracles.mean_entropy(cosines[:IMAGES], 0.1)
    found = method.loss(network, batch(label, seen), at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-7)
    found.total.backward()
    assert all(parameter.grad is not None for parameter in network.trained().values())


@pytest.mark.parametrize("capped", [False, True])
def test_orcas_margin_is_the_uncertainty_at_the_start_of_the_epoch(capped: bool) -> None:
    network, method = made(config(method="orca"), IMAGES)
    prototypes = network.heads["classifier"].weight.detach()
    features = normalize(prototypes, dim=1)[torch.arange(IMAGES) % K]
    if capped:  # at right angles to all prototypes: any category is as likely as the next
        features = torch.linalg.svd(prototypes).Vh[K:][torch.arange(IMAGES) % 2]
    label = random_labels(IMAGES)
    with torch.no_grad():
        method.before_epoch(context(network, lambda: features, label), at(0.0))
    free = [i for i, y in enumerate(label.tolist()) if y < 0]
    cosines = (normalize(features, dim=1) @ normalize(prototypes, dim=1).T)[free]
    expected = peer_oracles.uncertainty([oracles.softmax([c / 0.1 for c in row]) for row in cosines.tolist()])
    margin = float(network.get_buffer("memory.margin"))
    assert margin == pytest.approx(min(expected, 0.5), rel=1e-5) and (expected > 0.5) == capped


@pytest.mark.parametrize("seed", range(5))
def test_the_total_of_uno(seed: int) -> None:
    """Six pairs: each large crop's assignment is the target of the other large crop and of both small ones."""
    chosen = config(method="uno", heads={"hidden": 6, "projection_width": 4, "count": 2, "over": 2})
    network, method = made(chosen, IMAGES)
    network.double()
    label, seen = random_labels(IMAGES, seed), tokens(4, seed)
    said = network(seen)["heads"].transpose(0, 1)
    expected = []
    for columns in ([*range(K)], [*range(KNOWN), *range(K, K + 2 * (K - KNOWN))]):
        for head in said[..., columns]:
            targets = []
            for view in (0, 1):
                large = head[view * IMAGES : (view + 1) * IMAGES].tolist()
                free = [i for i, y in enumerate(label.tolist()) if y < 0]
                assigned = iter(peer_oracles.sinkhorn([large[i] for i in free]))
                rows = [
                    [float(k == y) for k in range(len(columns))] if y >= 0 else next(assigned) for y in label.tolist()
                ]
                targets.append(rows)
            pairs = []
            for view, crop in ((0, 1), (1, 0), (0, 2), (0, 3), (1, 2), (1, 3)):
                logits = head[crop * IMAGES : (crop + 1) * IMAGES].tolist()
                pairs.append(peer_oracles.swapped([logits], [targets[view]])[0])
            expected.append(sum(pairs) / 6)
    found = method.loss(network, batch(label, seen), at(0.5))
    assert found.total.item() == pytest.approx(sum(expected) / 4, rel=1e-8)
    assert network.get_buffer("memory.sums").tolist() == pytest.approx(expected[:2], rel=1e-8)
    found.total.backward()
    assert all(parameter.grad is not None for parameter in network.trained().values())


def test_the_head_with_the_lowest_loss_answers() -> None:
    network, method = made(config(method="uno", heads={"hidden": 6, "count": 3}), IMAGES)
    heads = network.heads["heads"]
    assert isinstance(heads, UNOHeads)
    feature = torch.randn(4, network.backbone.width, generator=torch.Generator().manual_seed(0))
    where = context(network, lambda: feature, random_labels(4))
    # (step, the head with the lowest sum, the head that answers): an epoch of five steps, a second one, and a part of a third
    for step, lowest, best in ((0, 2, 2), (3, 0, 0), (4, 1, 1), (5, 2, 1), (8, 0, 1), (9, 2, 2), (10, 0, 2)):
        sums = network.get_buffer("memory.sums")
        sums.copy_(torch.tensor([2.0, 2.0, 2.0]))
        sums[lowest] = 1.0
        with torch.no_grad():
            method.after_step(network, Progress(step, 11, 5))
            answer = network.from_feature(feature, method.answers)["classifier"]
            torch.testing.assert_close(answer, heads(feature)[:, best, :K])
            prototypes = classifiers(network.heads)["classifier"].prototypes()
            assert torch.equal(prototypes[:KNOWN, : feature.shape[1]], normalize(heads.known.weight, dim=1))
    with torch.no_grad():
        method.before_epoch(where, at(0.0))
    assert not network.get_buffer("memory.sums").any() and int(network.get_buffer("heads.classifier.best")) == 2


def test_unos_prototypes_have_length_one_before_every_step() -> None:
    """As in the public code. Without it they grow, since no gradient shortens them, and turn ever less."""
    network, method = made(config(method="uno", heads={"hidden": 6, "count": 2}), IMAGES)
    heads = network.heads["heads"]
    assert isinstance(heads, UNOHeads)
    own = (heads.known, *heads.new)
    for _ in range(2):
        for head in own:
            torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(len(head.weight)))
        before = [normalize(head.weight.detach(), dim=1) for head in own]
        with torch.no_grad():
            for head in own:
                head.weight.mul_(3.0)
            method.after_step(network, at(0.5))
        for head, same in zip(own, before, strict=True):
            torch.testing.assert_close(head.weight, same)


@pytest.mark.parametrize(("name", "share"), [("orca", 0.2), ("opencon", 0.2), ("simgcd", 0.5), ("uno", 0.5)])
@pytest.mark.parametrize("preset", ["paper", "released", "small"])
def test_the_labelled_share_of_a_batch_is_that_of_the_public_code(preset: str, name: str, share: float) -> None:
    """ORCA and OpenCon: as many labelled images as their share of the data. The preset small has half for all."""
    chosen = configuration.override(configuration.compose(preset, method=name), {"k": K}, "test")
    label = np.where(np.arange(1000) % 5 == 0, 0, -1)
    network, method = made(chosen, len(label))
    sampler = method.sampler(label, 100, network)
    drawn = np.concatenate([sampler.draws(step).image for step in range(200)])
    assert (label[drawn] >= 0).mean() == pytest.approx(0.5 if preset == "small" else share, abs=0.01)


def test_unused_categories_of_uno_are_dropped() -> None:
    network, method = made(config(method="uno", heads={"hidden": 6, "count": 2}), IMAGES)
    before = network.get_parameter("heads.heads.new.0.weight").detach().clone()
    classifiers(network.heads)["classifier"].keep([*range(KNOWN), K - 1])
    left = network.get_parameter("heads.heads.new.0.weight")
    torch.testing.assert_close(left.detach(), before[-1:])
    smaller = METHODS["uno"](config(method="uno", k=K - 1, heads={"hidden": 6, "count": 2}), method.sizes)
    shapes = {name: tuple(value.shape) for name, value in network.heads.state_dict().items()}
    smaller.sizes = replace(method.sizes, k=K - 1)
    assert shapes == {name: tuple(value.shape) for name, value in smaller.heads().state_dict().items()}


def test_no_new_category_of_uno_may_be_left() -> None:
    network, method = made(config(method="uno", heads={"hidden": 6, "count": 2}), IMAGES)
    classifiers(network.heads)["classifier"].keep(list(range(KNOWN)))
    assert {len(network.get_parameter(f"heads.heads.new.{i}.weight")) for i in range(4)} == {0}
    feature = torch.randn(2, network.backbone.width)
    assert network.from_feature(feature, method.answers)["classifier"].shape == (2, KNOWN)


@pytest.mark.parametrize("seed", range(5))
def test_the_total_of_mugcd(seed: int) -> None:
    network, method = made(config(method="mugcd"), IMAGES)
    network.double()
    with torch.no_grad():  # so that teacher and student differ
        for parameter in network.trained().values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    label, seen = random_labels(IMAGES, seed), tokens(2, seed)
    assert isinstance(network.memory, Teacher)
    student = network(seen[IMAGES:])["classifier"].tolist()
    teacher = network.memory(network, seen[:IMAGES], ("classifier",))["classifier"].tolist()
    labelled = [i for i, y in enumerate(label.tolist()) if y >= 0]
    expected = 0.65 * (
        peer_oracles.teacher_distillation(student, teacher, 0.04) - oracles.mean_entropy(student, 0.1)
    ) + 0.35 * oracles.supervised([student[i] for i in labelled], [int(label[i]) for i in labelled], 0.1)
    found = method.loss(network, batch(label, seen), at(0.5))
    assert found.total.item() == pytest.approx(expected, rel=1e-9)
    found.total.backward()
    assert all(parameter.grad is not None for parameter in network.trained().values())


def test_the_teacher_begins_at_the_student_and_follows_it() -> None:
    network, method = made(config(method="mugcd", heads={"warm_start": True}), 40)
    features = torch.randn(40, network.backbone.width, generator=torch.Generator().manual_seed(0))
    label = torch.where(torch.arange(40) % 3 == 0, torch.arange(40) % KNOWN, -1)
    label[:KNOWN] = torch.arange(KNOWN)
    with torch.no_grad():
        method.before_training(context(network, lambda: features, label))
    own = list(network.memory.buffers())
    for buffer, parameter in zip(own, network.trained().values(), strict=True):
        assert torch.equal(buffer, parameter)
    start = [buffer.clone() for buffer in own]
    with torch.no_grad():
        for parameter in network.trained().values():
            parameter.add_(1.0)
    method.after_step(network, at(0.5))
    kept = peer_oracles.momentum(0.5, 0.7, 0.999)
    for buffer, before in zip(own, start, strict=True):
        torch.testing.assert_close(buffer, before + (1 - kept))
    assert math.isclose(kept, 0.849)


@pytest.mark.parametrize("method", ["orca", "uno", "mugcd"])
def test_a_step_never_waits(method: str) -> None:
    """On the meta device, which has no values to wait for; ORCA's random numbers are a second copy to it."""
    network, made_method = made(config(method=method), IMAGES)
    network.to("meta")
    views = len(made_method.views)
    numbers = np.arange(IMAGES)
    with Watch() as watch:
        seen = torch.empty(views * IMAGES, TOKENS, device="meta")
        some = Batch.of(seen, Draws(numbers, numbers), random_labels(IMAGES).numpy(), "meta")
        found = made_method.loss(network, some, at(0.5))
        found.total.backward()
        made_method.after_step(network, at(0.5))
    assert watch.uploads == (2 if method == "orca" else 1)


@pytest.mark.parametrize("name", ["mugcd", "sptnet"])
@pytest.mark.parametrize("preset", ["paper", "released", "small"])
def test_the_first_stage_keeps_its_own_published_values(preset: str, name: str) -> None:
    """What belongs to the run goes to both stages; rate, decay, warm-up and heads are each method's own."""
    first = METHODS[name].first
    assert first is not None
    benchmark = None if preset == "small" else "cifar100"
    given = {
        "k": 7,
        "seed": 3,
        "prune": True,
        "backbone": {"tuned_blocks": 3},
        "views": {"bank_views": 5},
        "extras": {"eagc_align": 0.7},
    }
    whole = configuration.override(configuration.compose(preset, benchmark, method=name), given, "test")
    found = configuration.leaves(configuration.to_dict(first_stage(whole, first)))
    own = configuration.leaves(configuration.to_dict(configuration.compose(preset, benchmark, method=first)))
    # prune stays false: no category is dropped between the stages
    run = {"k": 7, "seed": 3, "backbone.tuned_blocks": 3, "views.bank_views": 5}
    length = {"schedule.epochs": whole.options.first.epochs or 200}
    length |= {"schedule.steps": "auto"} if preset == "small" else {"schedule.steps": None}
    assert found == {**own, **run, **length}


@pytest.mark.parametrize(
    ("name", "images", "first", "second"),
    [("mugcd", 2000, 150, 150), ("mugcd", 10**4, 750, 750), ("sptnet", 2000, 300, 20), ("sptnet", 10**4, 1500, 100)],
)
@pytest.mark.parametrize(("quality", "times"), [(None, 1), ("fast", 0.5), ("best", 2)])
def test_two_stages_of_small_grow_with_the_data_and_the_quality(
    name: str, images: int, first: int, second: int, quality: str | None, times: float
) -> None:
    asked = configuration.compose("small", method=name, quality=quality)
    whole = resolve_auto(replace(asked, views=replace(asked.views, size=96)), [Path("x.png")] * images)
    kind = METHODS[name].first
    assert kind is not None
    assert whole.schedule.steps == times * second
    assert first_stage(whole, kind).schedule.steps == times * first
    assert first_stage(replace(whole, schedule=replace(whole.schedule, steps=None)), kind).schedule.steps is None


@pytest.mark.parametrize("bank", ["auto", "on", "off"])
def test_the_first_stage_has_the_bank_that_the_second_cannot_have(bank: str) -> None:
    decided = {"views": {"bank": "off"}, "first": {"bank": bank}, "run": {"image_cache": "on"}}
    whole = configuration.override(configuration.compose("small", method="sptnet"), decided, "test")
    found = first_stage(whole, "simgcd")
    assert found.views.bank == bank and found.run.image_cache == configuration.compose("small").run.image_cache
