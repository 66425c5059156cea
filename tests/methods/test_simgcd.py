"""SimGCD: the teacher's schedule, the warm start."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from little import KNOWN, WIDTH, K, at, batch, config, context, made, method_of, random_labels, random_output, says
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.config import schedules
from debgcd.config.schedules import Progress
from debgcd.methods import METHODS


def temperature(progress: float, **gcd: object) -> float:
    method = method_of(config(method="simgcd", baseline=gcd))
    return float(
        method.loss(says(random_output(4)), batch(random_labels(4)), at(progress)).terms["teacher_temperature"]
    )


def test_the_teachers_temperature_is_the_papers() -> None:
    """0.07 -> 0.04 in the first 30 of 200 epochs along half a cosine."""
    for epoch in range(0, 200, 5):
        warmed_up = min(1.0, epoch / 30)
        expected = 0.04 + (0.07 - 0.04) * (1 + math.cos(math.pi * warmed_up)) / 2
        assert temperature(epoch / 200) == pytest.approx(expected, abs=1e-12)
    assert temperature(0.0) == 0.07
    assert temperature(0.15) == temperature(1.0) == pytest.approx(0.04)
    assert temperature(0.0375) > 0.0625  # a cosine begins slower than the line


def test_the_teachers_temperature_of_the_public_code_is_a_line() -> None:
    assert temperature(0.0375, teacher_shape="linear") == pytest.approx(0.0625)
    assert temperature(0.15, teacher_shape="linear") == temperature(0.9, teacher_shape="linear") == pytest.approx(0.04)


def test_by_epoch_the_teachers_temperature_is_a_linspace_over_thirty_epochs() -> None:
    """The public code: np.linspace(.07, .04, 30), then .04, so that .04 is reached at epoch index 29."""
    method = method_of(config(method="simgcd", baseline={"teacher_shape": "linear"}))
    expected = np.concatenate([np.linspace(0.07, 0.04, 30), np.full(170, 0.04)])
    for epoch in [*range(35), 199]:
        for step in (0, 45):
            here = Progress(46 * epoch + step, 46 * 200, 46, "epoch")
            loss = method.loss(says(random_output(4)), batch(random_labels(4)), here)
            assert loss.terms["teacher_temperature"] == pytest.approx(expected[epoch], abs=1e-15)


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 5, 7, 10, 20, 50, 200])
def test_short_runs_warm_up_as_linspace_does(epochs: int) -> None:
    warm = round(0.15 * epochs)
    expected = np.concatenate([np.linspace(0.07, 0.04, warm), np.full(epochs - warm, 0.04)])
    found = [schedules.linear(0.07, 0.04, Progress(e, epochs, 1, "epoch").of_warmup(0.15)) for e in range(epochs)]
    assert found == pytest.approx(expected.tolist(), abs=1e-15)


def test_a_ramp_by_epoch_ends_after_its_last_epoch() -> None:
    """RankStats' and OpenCon's public code: epoch / epochs of the ramp."""
    for epoch in (0, 1, 99, 100, 150):
        for step in (0, 45):
            assert Progress(46 * epoch + step, 46 * 200, 46, "epoch").of_ramp(0.5) == pytest.approx(epoch / 100)
    assert Progress(3, 12, 3).of_ramp(0.5) == 0.5 and Progress(3, 12, 3).of_ramp(0.0) == 1.0


def test_without_a_warm_up_the_teacher_begins_at_the_end() -> None:
    assert temperature(0.0, teacher_warmup=0.0) == pytest.approx(0.04)


def test_schedules() -> None:
    assert [schedules.linear(1, 3, x) for x in (0, 0.25, 1, 2)] == [1, 1.5, 3, 3]
    assert [schedules.cosine(1, 3, x) for x in (0, 0.5, 1, 2)] == pytest.approx([1, 2, 3, 3])
    curve = ((0.2, 0.1), (0.6, 0.5), (1.0, 0.5))
    for progress, value in ((0, 0.1), (0.2, 0.1), (0.4, 0.3), (0.6, 0.5), (0.8, 0.5), (1, 0.5), (2, 0.5)):
        assert schedules.piecewise(curve, progress) == pytest.approx(value)
    assert schedules.piecewise(curve[::-1], 0.4) == pytest.approx(0.3)  # in any order
    steps = ((0, 0), (0, 1), (0.5, 1), (0.5, 0))  # points above each other are a jump, not a division by zero
    assert [schedules.piecewise(steps, x) for x in (0, 0.25, 0.5, 0.75)] == [0, 1, 1, 0]


def clustered() -> tuple[Tensor, Tensor, Tensor]:
    """Features in K tight groups, their groups, and labels for half of the known ones."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(10 * K) % K
    features = 4 * torch.randn(K, WIDTH, generator=generator)[truth]
    features = features + 0.1 * torch.randn(10 * K, WIDTH, generator=generator)
    return features, truth, torch.where((truth < KNOWN) & (torch.arange(10 * K) % 2 == 0), truth, -1)


@pytest.mark.parametrize("name", ["simgcd", "debgcd"])
def test_a_warm_start_puts_prototypes_on_the_centres_of_semi_supervised_k_means(name: str) -> None:
    network, method = made(config(method=name, heads={"warm_start": True}))
    features, truth, label = clustered()
    detector = {n: p.clone() for n, p in network.heads.named_parameters() if n.startswith("detector")}
    with torch.no_grad():
        method.before_training(context(network, lambda: features, label))
    weight = network.heads["classifier"].weight.detach()
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(K))
    units = normalize(features, dim=1)
    groups = {k: normalize(units[truth == k].mean(0), dim=0) for k in range(K)}
    for k in range(KNOWN):
        torch.testing.assert_close(weight[k], groups[k])  # known classes under their own numbers
    new = {min(range(K), key=lambda k, i=i: float((weight[i] - groups[k]).norm())) for i in range(KNOWN, K)}
    assert new == set(range(KNOWN, K))
    if name == "debgcd":
        assert torch.equal(network.heads["debiased"].weight, network.heads["classifier"].weight)
        assert all(torch.equal(p, dict(network.heads.named_parameters())[n]) for n, p in detector.items())


def refuse() -> Tensor:
    raise AssertionError("features were computed for nothing")


def test_features_are_computed_for_a_warm_start_alone() -> None:
    network, method = made(config(method="simgcd", heads={"warm_start": False}))
    before = network.heads["classifier"].weight.clone()
    method.before_training(context(network, refuse, random_labels(4)))
    assert torch.equal(network.heads["classifier"].weight, before)


@pytest.mark.parametrize("name", ["simgcd", "debgcd"])
def test_what_gradients_train_is_left_alone_before_an_evaluation(name: str) -> None:
    network, method = made(config(method=name, heads={"warm_start": True}))
    before = {key: value.clone() for key, value in network.state().items()}
    method.finalise(context(network, refuse, random_labels(4)))
    assert all(torch.equal(value, before[key]) for key, value in network.state().items())


def test_tuned_blocks_of_the_methods() -> None:
    """The paper tunes two blocks for DebGCD and compares with the SimGCD that tunes one."""
    blocks = {name: method.cut.tuned for name, method in METHODS.items()}
    two, none = ("debgcd", "detector", "infosieve"), ("kmeans", "sskmeans", "pim")
    assert blocks == dict.fromkeys(METHODS, 1) | dict.fromkeys(two, 2) | dict.fromkeys(none, 0)


def test_probabilities() -> None:
    logits = random_output(3)["classifier"].detach()
    p = method_of(config(method="simgcd")).probabilities(logits)
    torch.testing.assert_close(p.sum(1), torch.ones(6, dtype=p.dtype))
    torch.testing.assert_close(p.log() - p.log()[:, :1], (logits - logits[:, :1]) / 0.1)  # Eq. 1 with τ_s = 0.1
