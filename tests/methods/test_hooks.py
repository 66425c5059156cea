"""A method that uses every hook, in one file: it trains, is killed and resumed to the same bytes, and predicts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from forks import at_call, debgcd, result
from numpy.typing import NDArray
from safetensors.torch import load_file
from tiers import tiered
from torch import nn

from debgcd import losses, methods
from debgcd.config.schedules import Progress
from debgcd.config.schema import Options, ScheduleConfig, option
from debgcd.data.sampler import Sampler
from debgcd.data.views import PLAIN, SMALL, STRONG, Kinds
from debgcd.methods.base import About, Batch, Context, Loss, Method
from debgcd.model.backbone import TrunkSplit
from debgcd.model.heads import Prototypes
from debgcd.model.network import Network

STEPS = 12


@dataclass(frozen=True)
class ToyOptions(Options):
    pull: float = option(1.0, "weight of what is remembered", 0, 10)


class Toy(Method):
    """Cross-entropy, and pseudo-labels from the last epoch; heads and tail learn in turns, from images drawn anew."""

    Options: ClassVar[type[Options]] = ToyOptions
    views: ClassVar[Kinds] = (PLAIN, STRONG, SMALL)
    cut: ClassVar[TrunkSplit] = TrunkSplit(tuned=2)
    about = About("Toy", 2026, "this file", "uses every hook")
    answers = ("answer",)

    def heads(self) -> nn.ModuleDict:
        return nn.ModuleDict({"answer": Prototypes(self.sizes.width, self.sizes.k)})

    def memory(self, network: Network) -> nn.Module:
        memory = nn.Module()
        memory.register_buffer("guess", torch.full((self.sizes.images,), -1))  # the category of each image
        memory.register_buffer("seen", torch.zeros(self.sizes.images))  # how often it was drawn
        return memory

    def sampler(self, label: NDArray[np.int64], batch: int, network: Network) -> Sampler:
        guess = network.get_buffer("memory.guess").numpy()
        return Sampler(1.0 + (guess == guess[0]), batch, self.config.seed)

    def before_epoch(self, context: Context, progress: Progress) -> None:
        said = context.network.from_feature(context.features(), self.answers)["answer"]
        context.network.get_buffer("memory.guess").copy_(torch.where(context.label < 0, said.argmax(1), context.label))

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        for name, parameter in network.trained().items():
            parameter.requires_grad_(name.startswith("tail." if progress.step % 2 else "heads."))
        said, seen = network(batch.tokens)["answer"], network.get_buffer("memory.seen")
        seen.index_add_(0, batch.image, torch.ones(len(batch.image)))
        guess = network.get_buffer("memory.guess")[batch.image].repeat(3)
        noise = batch.uniform("toy").mean()
        supervised = losses.supervised(said[batch.labelled], batch.y.repeat(3))
        total = supervised + self.options.pull * (1 + noise) * losses.supervised(said, guess)
        return Loss(total, {"supervised": supervised, "noise": noise}, hard_label=guess)

    def after_step(self, network: Network, progress: Progress) -> None:
        network.get_buffer("memory.seen").mul_(0.9)


class AdamToy(Toy):
    """The same with another optimiser."""

    def optimiser(self, network: Network, schedule: ScheduleConfig) -> torch.optim.Adam:
        tail, heads = (
            [p for name, p in network.trained().items() if name.startswith(part)] for part in ("tail.", "heads.")
        )
        return torch.optim.Adam([{"params": tail, "share": 0.01}, {"params": heads}], schedule.lr)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each: where the class is."""
    monkeypatch.setitem(methods._PLACES, "toy", "toy.Toy")
    monkeypatch.setitem(methods._PLACES, "adam", "toy.AdamToy")
    monkeypatch.setitem(sys.modules, "debgcd.methods.toy", sys.modules[__name__])


@pytest.fixture
def words(shared_csv: Path, arguments: Callable[..., list[str]], tmp_path: Path) -> Callable[..., list[str]]:
    def for_run(run: Path, *more: object, method: str = "toy", **settings: object) -> list[str]:
        return arguments(shared_csv, run, "--method", method, "--cache", tmp_path / "cache", *more, **settings)

    return for_run


@pytest.mark.parametrize(("bank", "number"), tiered([("on", 4), ("off", 8)], product(["on", "off"], [1, 4, 8, 12])))
def test_killed_and_resumed_it_ends_in_the_same_bytes(
    tmp_path: Path, words: Callable[..., list[str]], bank: str, number: int
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert debgcd(words(whole, "--bank", bank), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    hook = at_call("debgcd.train.loop.step", number, after=True)
    assert debgcd(words(run, "--bank", bank), tmp_path / "log", hook) < 0
    assert debgcd(["resume", run, "--no-report"], tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert result(run) == result(whole)
    last = f"checkpoints/step-{STEPS:08d}/state.safetensors"
    mine, theirs = load_file(run / last), load_file(whole / last)
    assert {"memory.guess", "memory.seen"} <= set(mine)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_the_state_of_any_optimiser_is_in_checkpoints(
    tmp_path: Path, words: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert debgcd(words(whole, method="adam"), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    hook = at_call("debgcd.train.loop.step", 5, after=True)
    often = words(run, "--set", "run.checkpoint_every=2", method="adam")
    assert debgcd(often, tmp_path / "log", hook) < 0
    monkeypatch.setattr(AdamToy, "optimiser", Method.optimiser)
    refused = command("resume", run, "--no-report")
    assert refused.code == 3 and "was written with the optimiser Adam, and the method now has SGD" in refused.complaint
    monkeypatch.undo()
    monkeypatch.setitem(methods._PLACES, "adam", "toy.AdamToy")
    monkeypatch.setitem(sys.modules, "debgcd.methods.toy", sys.modules[__name__])
    assert debgcd(["resume", run, "--no-report"], tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert result(run) == result(whole)
    states = [load_file(folder / f"checkpoints/step-{STEPS:08d}/state.safetensors") for folder in (run, whole)]
    assert {f"{key}.heads.answer.weight" for key in ("step", "exp_avg", "exp_avg_sq")} <= set(states[0])
    assert set(states[0]) == set(states[1])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_each_hook_does_what_it_says(tmp_path: Path, words: Callable[..., list[str]], command: Any) -> None:
    run = tmp_path / "run"
    more = ("--set", "run.checkpoint_every=1", "--set", "backbone.tuned_blocks=null")  # so that `cut` decides
    assert command(*words(run, "--bank", "on", "--set", "pull=0.5"), *more).code == 0
    state = [load_file(run / f"checkpoints/step-{step:08d}/state.safetensors") for step in (STEPS - 1, STEPS)]
    changed = {name for name in state[0] if not torch.equal(state[0][name], state[1][name])}
    assert {name.partition(".")[0] for name in changed if not name.startswith("mom")} == {"tail", "memory"}  # in turns
    model = load_file(run / "model" / "model.safetensors")
    assert not any(name.startswith("memory") for name in model) and "heads.answer.weight" in model
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len({line["noise"] for line in lines if "noise" in line}) == STEPS
    (facts,) = (json.loads(path.read_text())["facts"] for path in (tmp_path / "cache" / "banks").glob("*/facts.json"))
    assert len(facts["kinds"]) == 3 and facts["tail_blocks"] == 2
    assert command("evaluate", run).code == 0
    assert command("predict", run, run / "manifest.csv", "-o", tmp_path / "out.csv").code == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 31  # 24 images, six of the test split, a head


def test_with_k_open_what_is_not_used_is_dropped(tmp_path: Path, words: Callable[..., list[str]], command: Any) -> None:
    said = command(*words(tmp_path / "run", "--k", "20", prune="true"))
    assert said.code == 0 and "of 20 are in use" in said.err


def test_where_it_starts_can_be_another_run(tmp_path: Path, words: Callable[..., list[str]], command: Any) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert command(*words(first)).code == 0
    said = command(*words(second, "--start", first, schedule__lr=0))
    assert said.code == 0 and "start: heads taken over: answer, settled; new: none" in said.err
    one, two = (load_file(run / "model" / "model.safetensors") for run in (first, second))
    assert all(torch.equal(one[name], two[name]) for name in one)  # a rate of zero leaves it where it began
    (second / "predictions.csv").unlink()
    for place in (second / "checkpoints").iterdir():
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    assert command("resume", second, "--no-report").code == 0  # from the start again
    (first / "model" / "model.safetensors").write_bytes(b"")
    said = command(*words(tmp_path / "third", "--start", first))
    assert said.code == 3 and "cannot be read" in said.complaint
