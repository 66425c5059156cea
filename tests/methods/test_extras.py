"""BIA and EAGC as options: they change the gradient as they say, survive a kill, and are refused where nothing fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import at_call, debgcd, result
from little import TOKENS, at, batch, config, context, made, random_labels
from torch import Tensor

from debgcd import losses
from debgcd.methods import extras

IMAGES = 6


def gradients(method_name: str, **values: float) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    views = {"mugcd": 2}.get(method_name, 2)
    network, method = made(config(method=method_name, extras=values), IMAGES)
    network.double()
    features = torch.randn(IMAGES, 8, generator=torch.Generator().manual_seed(5)).double()
    with torch.no_grad():
        extras.begin(method, context(network, lambda: features, random_labels(IMAGES)))
    seen = torch.randn(views * IMAGES, TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = extras.loss_of(method, network, batch(random_labels(IMAGES), seen), at(0.5))
    loss.total.backward()
    return (
        network,
        {name: p.grad.clone() for name, p in network.trained().items() if p.grad is not None},
        dict(loss.terms),
    )


@pytest.mark.parametrize("name", ["simgcd", "debgcd", "mugcd", "orca"])
def test_eagc_changes_what_reaches_the_tail_and_nothing_else(name: str) -> None:
    _, plain, _ = gradients(name)
    _, changed, _ = gradients(name, eagc_align=0.7, eagc_project=0.5)
    for parameter in plain:
        same = torch.equal(plain[parameter], changed[parameter])
        assert same == parameter.startswith("heads."), parameter


def test_the_mean_energy_follows_the_labelled_images_of_the_batch() -> None:
    network, _, _ = gradients("simgcd", eagc_align=0.7, eagc_project=0.5)
    subspace = network.get_buffer("memory.extras.subspace")
    label = random_labels(IMAGES)
    known = torch.randn(IMAGES, 8, generator=torch.Generator().manual_seed(5)).double()[label >= 0]
    seen = torch.randn(2 * IMAGES, TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    now = network(seen).feature[label.repeat(2) >= 0]
    expected = 0.95 * losses.energy(known, subspace).mean() + 0.05 * losses.energy(now, subspace).mean()
    assert network.get_buffer("memory.extras.mean_energy").item() == pytest.approx(expected.item())


def test_bia_adds_minus_the_nuclear_norm_of_the_unlabelled_features() -> None:
    network, plain, terms = gradients("simgcd")
    _, changed, more = gradients("simgcd", bia_weight=0.3)
    assert "nuclear_norm" not in terms
    seen = torch.randn(2 * IMAGES, TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    network.zero_grad()
    feature = network(seen).feature[batch(random_labels(IMAGES), seen).free]
    norm = losses.nuclear_norm(feature)
    assert more["nuclear_norm"].item() == pytest.approx(norm.item())
    (-0.3 * norm).backward()
    for name, parameter in network.trained().items():
        extra = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(changed[name], plain[name] + extra)


def test_a_run_with_both_resumes_to_the_same_bytes(
    shared_folder: Path, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    values = {"extras__bia_weight": 0.1, "extras__eagc_align": 0.7, "extras__eagc_project": 0.5}

    def words(run: Path) -> list[str]:
        common = ("--method", "simgcd", "--bank", "on", "--cache", tmp_path / "cache")
        return arguments(shared_folder, run, *common, **values)

    whole, run = tmp_path / "whole", tmp_path / "run"
    assert debgcd(words(whole), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert debgcd(words(run), tmp_path / "log", at_call("debgcd.train.loop.step", 5, after=True)) < 0
    assert debgcd(["resume", run], tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert result(run) == result(whole)


def test_extras_are_refused_where_no_classifier_is_trained(shared_folder: Path, tmp_path: Path, train: Any) -> None:
    said = train(shared_folder, tmp_path / "run", "--method", "gcd", extras__bia_weight=0.1)
    assert said.code == 2 and "extras are for methods that train a classifier, and gcd does not" in said.complaint


def test_methods_are_listed_with_the_papers_figures(command: Any) -> None:
    said = command("methods")
    assert said.code == 0
    rows = {line.split()[0]: line for line in said.out.splitlines() if line.strip()}
    assert "64.4" in rows["debgcd"] and "37.0" in rows["uno"] and "a ViT" in rows["promptcal"]
    assert "first gcd" in rows["mugcd"] and " K" not in rows["gpc"].partition("ICCV")[2][:12]


def test_a_wrong_method_is_refused_with_the_nearest_name(shared_folder: Path, tmp_path: Path, command: Any) -> None:
    said = command("train", shared_folder, "-o", tmp_path / "run", "--method", "infosive", "--preset", "small")
    assert said.code == 2 and "did you mean 'infosieve'" in said.complaint
