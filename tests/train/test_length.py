"""How long a run is, how fast it learns, what it changes and what it leaves alone."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tiers import tiered
from torch import nn

from debgcd import config as configuration
from debgcd.config.schedules import Progress, RunLength, run_length
from debgcd.config.schema import ScheduleConfig
from debgcd.data.sampler import Draws
from debgcd.methods import create
from debgcd.methods.base import Batch, Sizes
from debgcd.model.backbone import Backbone, Identity
from debgcd.model.heads import reset_heads
from debgcd.model.network import Network
from debgcd.model.optimiser import SGD, set_learning_rate, sgd
from debgcd.train import loop
from debgcd.train.setup import Setup

Train = Callable[..., Any]


@pytest.mark.parametrize(
    ("images", "batch", "expected"),
    [
        (1000, 128, RunLength(128, 7, 70)),
        (128, 128, RunLength(128, 1, 10)),
        (127, 128, RunLength(127, 1, 10)),  # never larger than the data
        (129, 128, RunLength(128, 1, 10)),
        (1, 128, RunLength(1, 1, 10)),  # at least one step an epoch
        (5994, 128, RunLength(128, 46, 460)),  # CUB
    ],
)
def test_length_in_epochs(images: int, batch: int, expected: RunLength) -> None:
    assert run_length(ScheduleConfig(epochs=10, batch=batch), images) == expected


def test_length_in_steps() -> None:
    assert run_length(ScheduleConfig(epochs=10, steps=3, batch=8), 24) == RunLength(8, 3, 3)
    assert run_length(ScheduleConfig(epochs=10, steps=0, batch=8), 24).steps == 0
    assert run_length(ScheduleConfig(epochs=10, batch=8), 24, trains=False).steps == 0


def test_epochs_on_the_command_line_override_steps(train: Train, shared_folder: Path, tmp_path: Path) -> None:
    steps = ["--set", "schedule.steps=null"]  # without what conftest sets for speed
    said = train(shared_folder, tmp_path / "run", "--method", "simgcd", "--epochs", 2, *steps, schedule__batch=1000)
    assert said.code == 0, said.err
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["schedule"]
    assert (written["epochs"], written["steps"]) == (2, None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1.0, 2.0]  # a batch larger than the data: one step an epoch


def test_epochs_replace_the_steps_of_a_preset(command: Train, shared_folder: Path) -> None:
    small = ("--set", "views.size=32", "--set", "views.resize=36", "--bank", "off", "--set", "heads.hidden=16")
    for more, steps in [((), 60), (("--set", "schedule.steps=7"), 7), (("--epochs", 5), 5)]:
        said = command("check", shared_folder, "--preset", "small", "--k", 3, "--json", *small, *more)
        plan = json.loads(said.out)["plan"]
        assert (plan["steps"], plan["batch"]) == (steps, 24)


def test_check_tells_both_stages(command: Train, shared_folder: Path, tmp_path: Path) -> None:
    """Steps, time and bank of a first stage; of SPTNet only that one can have a bank."""
    small = ("--k", 3, "--set", "views.size=32", "--set", "views.resize=36")
    plans = {}
    for method in ("simgcd", "sptnet", "mugcd"):
        words = ("check", shared_folder, "--method", method, "--epochs", 4, *small, "--cache", tmp_path / "cache")
        plans[method] = json.loads(command(*words, "--json").out)["plan"]
    assert [plan["steps"] for plan in plans.values()] == [4, 4, 4]
    assert [plan["first"] for plan in plans.values()] == [None, ["simgcd", 4], ["gcd", 4]]
    assert plans["sptnet"]["bank_bytes"] == plans["simgcd"]["bank_bytes"] > 0
    words = ("check", shared_folder, "--method", "sptnet", *small, "--cache", tmp_path / "cache")
    assert " 4 steps of 24 images each, after 60 steps of simgcd\n" in command(*words).out
    assert json.loads(command(*words, "--bank", "off", "--json").out)["plan"]["bank_bytes"] == 0


def test_the_learning_rate_is_a_cosine_to_its_end_share() -> None:
    schedule = ScheduleConfig(lr=0.1, lr_end=0.001, tail_lr=0.25, batch=64)
    network = tiny_network("debgcd")
    optimiser = sgd(network, schedule)
    top = 0.1 * 64 / 128
    rates = []
    for step in range(200):
        rate = set_learning_rate(optimiser, schedule, 64, Progress(step, 200, 10))
        expected = top * 0.001 + (top - top * 0.001) * (1 + math.cos(math.pi * step / 200)) / 2
        assert rate == pytest.approx(expected, rel=1e-12)
        rates.append(rate)
    assert rates[0] == pytest.approx(top) and rates == sorted(rates, reverse=True)
    assert set_learning_rate(optimiser, schedule, 64, Progress(200, 200, 10)) == pytest.approx(top * 0.001)


def test_by_epoch_the_rate_is_that_of_torchs_scheduler_stepped_once_per_epoch() -> None:
    """What the public code does: CosineAnnealingLR(T_max=epochs, eta_min=lr * 1e-3)."""
    schedule = ScheduleConfig(by="epoch", lr=0.1, lr_end=0.001, batch=128)
    optimiser = sgd(tiny_network("debgcd"), schedule)
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=200, eta_min=0.1 * 1e-3)
    for epoch in range(200):
        for step in range(3):
            ours = set_learning_rate(optimiser, schedule, 128, Progress(3 * epoch + step, 600, 3, "epoch"))
            assert ours == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9)
        theirs.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("method", "benchmark", "epochs", "milestones", "top"),
    [
        ("orca", "cifar100", 200, [140, 180], 0.1),
        ("orca", "imagenet100", 90, [30, 60], 0.1),
        ("opencon", "cub", 200, [100, 150], 0.02),
        ("opencon", "imagenet100", 120, [60, 90], 0.01),
        ("rankstats", "cars", 200, [170], 0.1),
    ],
)
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_rate_that_falls_in_steps_is_that_of_torchs_scheduler(
    method: str, benchmark: str, epochs: int, milestones: list[int], top: float, preset: str
) -> None:
    """What the public scripts of these methods do: MultiStepLR with a tenth at each milestone."""
    schedule = configuration.compose(preset, benchmark, method=method).schedule
    assert schedule.epochs == epochs
    optimiser = sgd(tiny_network("debgcd"), schedule)
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=top)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(theirs, milestones=milestones, gamma=0.1)
    for epoch in range(epochs):
        for step in range(3):
            progress = Progress(3 * epoch + step, 3 * epochs, 3, schedule.by)
            ours = set_learning_rate(optimiser, schedule, schedule.batch, progress)
            assert ours == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9), epoch
        theirs.step()
        scheduler.step()


def test_unos_rate_ends_where_its_public_command_ends() -> None:
    schedule = configuration.compose("paper", method="uno").schedule
    optimiser = sgd(tiny_network("debgcd"), schedule)
    rates = [set_learning_rate(optimiser, schedule, 512, Progress(step, 1000, 1)) for step in (0, 1000)]
    assert rates == pytest.approx([0.4, 0.001], rel=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_our_sgd_is_torchs_to_the_bit(momentum: float, decay: float) -> None:
    """Ten steps with a new rate each; the second parameter has no gradient in some of them, the third never has one."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(4, 3, generator=generator) for _ in range(3)]
    ours, theirs = ([torch.nn.Parameter(x.clone()) for x in start] for _ in range(2))
    own = SGD([{"params": ours, "weight_decay": decay}], 0.1, momentum)
    other = torch.optim.SGD([{"params": theirs, "weight_decay": decay}], lr=0.1, momentum=momentum)
    for step in range(10):
        own.zero_grad()
        other.zero_grad()
        for i, parameters in enumerate(zip(ours, theirs, strict=True)):
            gradient = torch.randn(4, 3, generator=generator)
            for parameter in parameters if i == 0 or (i == 1 and step % 3) else ():
                parameter.grad = gradient.clone()
        for optimiser in (own, other):
            optimiser.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimiser.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(ours[2], start[2]) and not torch.equal(ours[1], start[1])


def test_an_epoch_that_is_cut_short_counts_as_one() -> None:
    assert [Progress(step, 7, 3, "epoch").epoch for step in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert Progress(6, 7, 3, "epoch").share == 2 / 3 and Progress(6, 7, 3).share == 6 / 7


def test_the_learning_rate_follows_the_real_batch(train: Train, shared_folder: Path, tmp_path: Path) -> None:
    train(
        shared_folder, tmp_path / "run", schedule__batch=1000, schedule__steps=2, schedule__lr=0.3, schedule__lr_end=0
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    top = 0.3 * 24 / 128  # 24 images, though a batch of 1000 was asked for
    assert [line["lr"] for line in lines] == pytest.approx([top, top / 2])


def test_groups_of_the_optimiser() -> None:
    schedule = ScheduleConfig(weight_decay=0.01, tail_lr=0.1, lr=1.28, momentum=0.7)
    network = tiny_network("debgcd")
    optimiser = sgd(network, schedule)
    set_learning_rate(optimiser, schedule, 100, Progress(0, 10, 1))
    tail = {id(parameter) for parameter in network.backbone.tuned.parameters()}
    heads = {id(parameter) for parameter in network.heads.parameters()}
    found = set()
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            found.add(id(parameter))
            assert group["weight_decay"] == (0.01 if parameter.ndim > 1 else 0.0)
            assert group["lr"] == pytest.approx(0.1 if id(parameter) in tail else 1.0)
            assert group["momentum"] == 0.7
    assert found == tail | heads
    everywhere = sgd(network, replace(schedule, decay_all=True))  # as GCD's public code: one group for all
    assert {group["weight_decay"] for group in everywhere.param_groups} == {0.01}
    assert {parameter.ndim for parameter in network.heads.parameters()} == {1, 2}


def test_only_tail_and_heads_change(
    train: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, seen = loop.fit, []

    def watched(run: Any, setup: Setup) -> dict[str, Any]:
        before = {name: value.clone() for name, value in setup.network.state_dict().items()}
        last = original(run, setup)
        seen.append((setup.network, before))
        return last

    monkeypatch.setattr("debgcd.train.train.fit", watched)
    assert train(shared_folder, tmp_path / "run").code == 0
    ((network, before),) = seen
    trained = {f"backbone.tuned.{name}" for name, _ in network.backbone.tuned.named_parameters()}
    trained |= {f"heads.{name}" for name, _ in network.heads.named_parameters()}
    parameters = dict(network.named_parameters())
    assert trained < set(parameters)
    for name, parameter in parameters.items():
        assert parameter.requires_grad == (name in trained), name
        assert (parameter.grad is None) == (name not in trained), name
        assert torch.equal(parameter, before[name]) == (name not in trained), name
    # batch statistics are buffers, not parameters: they stay those of the published network
    statistics = [name for name in before if "running_" in name]
    assert statistics and all(torch.equal(before[name], network.state_dict()[name]) for name in statistics)


TINY = [(1, "debgcd", "paper"), (2, "debgcd", "small"), (1, "simgcd", "released")]


@pytest.mark.parametrize(
    ("batch", "method", "preset"),
    tiered(TINY, itertools.product([1, 2], ["debgcd", "simgcd"], ["paper", "released", "small"])),
)
def test_a_run_of_tiny_batches(
    train: Train, shared_folder: Path, tmp_path: Path, batch: int, method: str, preset: str
) -> None:
    """With one image a batch every batch is labelled only or unlabelled only."""
    run, more = tmp_path / "run", ("--method", method, "--preset", preset, "--bank", "on")
    said = train(shared_folder, run, *more, schedule__batch=batch, schedule__steps=8, schedule__lr=0.01)
    assert said.code == 0, said.err
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 8 and all(math.isfinite(line["loss"]) for line in lines)


@pytest.mark.parametrize("label", [[0, 1, 1, 0], [-1, -1, -1, -1], [-1, 1, -1, -1]])
@pytest.mark.parametrize("method", ["debgcd", "simgcd"])
@pytest.mark.parametrize("preset", ["paper", "released", "small"])
@pytest.mark.parametrize("progress", [0.0, 1.0])
def test_a_batch_of_one_kind_gives_finite_gradients(
    label: list[int], method: str, preset: str, progress: float
) -> None:
    network = tiny_network(method, preset)
    tokens, numbers = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), np.arange(4)
    batch = Batch.of(tokens, Draws(numbers, numbers), np.array(label), "cpu")
    found = created(method, preset).loss(network, batch, Progress(round(10 * progress), 10, 1))
    found.total.backward()
    assert found.total.isfinite()
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    assert all(parameter.grad is not None for parameter in network.backbone.tuned.parameters())


class TinyBackbone(Backbone):
    """A trunk that does nothing and a tail of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.identity, self.width, self.standardise = Identity("tiny", None, "0"), 6, False
        self.tail_blocks = 1
        self.tuned = nn.ModuleList([nn.Linear(6, 6)])
        nn.init.eye_(self.tuned[0].weight)

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels

    def tail(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tuned[0](tokens)


def created(method: str, preset: str = "paper") -> Any:
    heads = {"hidden": 8, "projection_width": 4} | ({"detector_width": 4} if method == "debgcd" else {})
    config = configuration.override(configuration.compose(preset, method=method), {"k": 4, "heads": heads}, "test")
    return create(config, Sizes(6, 4, known=2, images=4))


def tiny_network(method: str, preset: str = "paper") -> Network:
    backbone = TinyBackbone()
    made = created(method, preset)
    network = Network(backbone, made.heads())
    reset_heads(network.heads, 0)
    network.memory = made.memory(network)
    return network
