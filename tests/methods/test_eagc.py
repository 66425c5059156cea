"""EAGC around a method: it changes the gradient as it says, survives a kill, and is refused where nothing fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import at_call, debgcd, result
from little import TOKENS, at, batch, config, context, made, random_labels
from safetensors.torch import load_file
from torch import Tensor

from debgcd import losses
from debgcd.methods import METHODS

IMAGES = 6


def gradients(method_name: str, **values: float) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    views = 2
    network, method = made(config(method=method_name, extras=values), IMAGES)
    network.double()
    features = torch.randn(IMAGES, 8, generator=torch.Generator().manual_seed(5)).double()
    with torch.no_grad():
        method.before_training(context(network, lambda: features, random_labels(IMAGES)))
    seen = torch.randn(views * IMAGES, TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = method.loss(network, batch(random_labels(IMAGES), seen), at(0.5))
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


@pytest.mark.parametrize(("name", "views", "asked"), [("simgcd", 2, 2), ("mugcd", 2, 1), ("uno", 4, 4)])
def test_eagcs_gradient_of_each_row(name: str, views: int, asked: int) -> None:
    """By hand: labelled rows are pulled to their image's reference, of the others a part of the gradient is taken out."""
    network, method = made(config(method=name, extras={"eagc_align": 0.7, "eagc_project": 0.5}), IMAGES)
    network.double()
    label = random_labels(IMAGES)
    before = torch.randn(IMAGES, 8, generator=torch.Generator().manual_seed(5)).double()
    with torch.no_grad():
        method.before_training(context(network, lambda: before, label))
    reference = ridge(before.numpy(), label.tolist())
    known = before[label >= 0].numpy()
    r = known.T @ known / len(known)
    subspace = r @ np.linalg.inv(r + np.eye(8) / 4)
    seen = torch.randn(views * IMAGES, TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    some = batch(label, seen)
    features: list[Tensor] = []

    def keep(module: Any, given: Any, output: Any) -> None:
        if output.feature.requires_grad:
            output.feature.retain_grad()
            features.append(output.feature)

    handle = network.register_forward_hook(keep)
    METHODS[name].loss(method, network, some, at(0.5)).total.backward()  # without EAGC
    handle.remove()
    (feature,) = features
    z, g = feature.detach().numpy(), feature.grad.numpy().copy()
    rows = asked * IMAGES
    assert len(z) == rows
    labelled = [i for i in range(rows) if label[i % IMAGES] >= 0]
    energy = [row @ subspace @ row / (row @ row) for row in z]
    mean = 0.95 * np.mean([row @ subspace @ row / (row @ row) for row in known]) + 0.05 * np.mean(
        [energy[i] for i in labelled]
    )
    for i in range(rows):
        if i in labelled:
            g[i] += 0.7 * (z[i] - reference[i % IMAGES]) / (len(labelled) * 8)
        else:
            g[i] -= 0.5 * min(max(1 - energy[i] / mean, 0), 1) * g[i] @ subspace
    network.zero_grad()
    first = IMAGES if name == "mugcd" else 0  # μGCD's student sees the second views
    network(seen[first : first + rows]).feature.backward(torch.from_numpy(g))
    expected = {key: p.grad.clone() for key, p in network.trained().items() if key.startswith("tail.")}
    network.zero_grad()
    method.loss(network, some, at(0.5)).total.backward()
    for key, gradient in expected.items():
        torch.testing.assert_close(network.trained()[key].grad, gradient, rtol=1e-6, atol=1e-9)


def ridge(features: Any, label: list[int]) -> Any:
    """From the features of labelled images to the mean of their class, with a tenth of the mean diagonal added."""
    known = np.array([row for row, y in zip(features, label, strict=True) if y >= 0])
    y = [y for y in label if y >= 0]
    target = np.array([np.mean([row for row, other in zip(known, y, strict=True) if other == mine], 0) for mine in y])
    gram = known.T @ known
    weights = np.linalg.inv(gram + 0.1 * np.trace(gram) / len(gram) * np.eye(len(gram))) @ known.T @ target
    return features @ weights


def test_the_mean_energy_follows_the_labelled_images_of_the_batch() -> None:
    network, _, _ = gradients("simgcd", eagc_align=0.7, eagc_project=0.5)
    subspace = network.get_buffer("memory.extras.subspace")
    label = random_labels(IMAGES)
    known = torch.randn(IMAGES, 8, generator=torch.Generator().manual_seed(5)).double()[label >= 0]
    seen = torch.randn(2 * IMAGES, TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    now = network(seen).feature[label.repeat(2) >= 0]
    expected = 0.95 * losses.energy(known, subspace).mean() + 0.05 * losses.energy(now, subspace).mean()
    assert network.get_buffer("memory.extras.mean_energy").item() == pytest.approx(expected.item())


def test_a_run_resumes_to_the_same_bytes(
    shared_folder: Path, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    values = {"extras__eagc_align": 0.7, "extras__eagc_project": 0.5}

    def words(run: Path) -> list[str]:
        common = ("--method", "simgcd", "--bank", "on", "--cache", tmp_path / "cache")
        return arguments(shared_folder, run, *common, **values)

    whole, run = tmp_path / "whole", tmp_path / "run"
    assert debgcd(words(whole), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert debgcd(words(run), tmp_path / "log", at_call("debgcd.train.loop.step", 5, after=True)) < 0
    assert debgcd(["resume", run], tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert result(run) == result(whole)


def test_of_a_method_with_two_stages_only_the_second_has_it(shared_folder: Path, tmp_path: Path, train: Any) -> None:
    run = tmp_path / "run"
    said = train(shared_folder, run, "--method", "mugcd", extras__eagc_align=0.7, schedule__steps=2)
    assert said.code == 0, said.err
    for folder, expected in ((run, True), (run / "first", False)):
        (tensors,) = [load_file(file) for file in folder.glob("checkpoints/*/*.safetensors")]
        assert ("memory.extras.reference" in tensors) == expected, folder


def test_it_is_refused_where_no_classifier_is_trained(shared_folder: Path, tmp_path: Path, train: Any) -> None:
    said = train(shared_folder, tmp_path / "run", "--method", "gcd", extras__eagc_align=0.7)
    assert said.code == 2 and "extras are for methods that train a classifier, and gcd does not" in said.complaint


def test_methods_are_listed_with_the_papers_figures(command: Any) -> None:
    said = command("methods")
    assert said.code == 0
    rows = {line.split()[0]: line for line in said.out.splitlines() if line.strip()}
    assert "64.4" in rows["debgcd"] and "37.0" in rows["uno"] and "a ViT" in rows["promptcal"]
    for name, method in METHODS.items():
        about = method.about
        assert str(about.year) in rows[name] and about.venue in rows[name] and about.idea in rows[name]
    assert "package infomap" in rows["dccl"]
    assert "first stage gcd" in rows["mugcd"] and " K" not in rows["gpc"].partition("ICCV")[2][:12]


def test_a_wrong_method_is_refused_with_the_nearest_name(shared_folder: Path, tmp_path: Path, command: Any) -> None:
    said = command("train", shared_folder, "-o", tmp_path / "run", "--method", "infosive", "--preset", "small")
    assert said.code == 2 and "did you mean 'infosieve'" in said.complaint
