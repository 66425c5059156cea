"""Prompts before the trunk: of pixels, and in every block of a ViT; and PromptCAL from the first step to a prediction."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from tiny import DEPTH, NATIVE, PATCH, WIDTH, hub_model, images, load

from debgcd import config as configuration
from debgcd.config.schedules import Progress
from debgcd.data.sampler import Draws
from debgcd.methods import METHODS
from debgcd.methods.base import Batch, Sizes
from debgcd.model.optimiser import set_learning_rate
from debgcd.model.prompts import PixelPrompts, Prompted, PromptedViT
from debgcd.train.plan import first_stage
from debgcd.train.setup import build

sys.path.append(str(Path(__file__).parents[1] / "train"))
from forks import at_call, debgcd, result

SUPERVISED, COUNT = 2, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prompted")
    hub_model("vit", place)
    return place


def test_prompts_of_pixels_stay_in_frames_and_border(folder: Path) -> None:
    plain, prompts = load(folder), PixelPrompts(NATIVE, PATCH, frame=1, border=5, start=0.0, seed=0)
    backbone, pixels = Prompted(load(folder), prompts), images()
    torch.testing.assert_close(backbone.tail(backbone.tokens(pixels)), plain.tail(plain.tokens(pixels)))
    with torch.no_grad():
        prompts.patches.fill_(1.0)
        prompts.around.fill_(10.0)
    found = prompts()
    for y in range(NATIVE):
        for x in range(NATIVE):
            frame = any(place % PATCH in (0, PATCH - 1) for place in (x, y))
            border = any(place < 5 or place >= NATIVE - 5 for place in (x, y))
            assert found[0, y, x] == 1.0 * frame + 10.0 * border
    tokens = backbone.tokens(pixels)
    tokens[0, 3] = 0  # the first image gets none
    said, without, with_prompts = (
        backbone.tail(tokens),
        plain.tail(plain.tokens(pixels)),
        plain.tail(plain.tokens(pixels + found)),
    )
    torch.testing.assert_close(said[0], without[0])
    torch.testing.assert_close(said[1], with_prompts[1])
    said.sum().backward()
    assert prompts.patches.grad is not None and prompts.patches.grad.any()


def test_prompts_of_pixels_start_as_random_normal_numbers_of_the_seed() -> None:
    prompts = [PixelPrompts(96, 16, 1, 30, start=1.0, seed=seed) for seed in (0, 0, 1)]
    for part in (prompts[0].patches, prompts[0].around):
        numbers = sorted(part.detach().flatten().tolist())
        middle = NormalDist().inv_cdf
        for share in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
            assert numbers[int(share * len(numbers))] == pytest.approx(middle(share), abs=0.1)
    assert not torch.equal(prompts[0].patches, prompts[0].around)
    assert torch.equal(prompts[0](), prompts[1]()) and not torch.equal(prompts[0](), prompts[2]())


def test_prompts_in_every_block_are_replaced_by_those_of_the_next(folder: Path) -> None:
    backbone, model, pixels = PromptedViT(load(folder), COUNT, SUPERVISED, seed=0), hub_model("vit"), images()
    prompts = backbone.prompts.get_parameter("tokens")
    assert prompts.shape == (DEPTH, COUNT, WIDTH)
    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == DEPTH)
    rows = model.embeddings(pixels, interpolate_pos_encoding=True)
    patches = rows[:, 1:]
    cls = rows[:, :1]
    for i, block in enumerate(blocks):
        out = block(torch.cat([cls, prompts[i].expand(2, -1, -1), patches], 1))
        out = out[0] if isinstance(out, tuple) else out
        cls, said, patches = out[:, :1], out[:, 1 : 1 + COUNT], out[:, 1 + COUNT :]
    expected = torch.cat([model.layernorm(cls)[:, 0], model.layernorm(said)[:, :SUPERVISED].mean(1)], 1)
    found = backbone.tail(backbone.tokens(pixels))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    found.sum().backward()
    assert prompts.grad is not None and all(prompts.grad[i].any() for i in range(DEPTH))


@pytest.fixture
def sptnet(folder: Path) -> tuple[Any, Any, Any]:
    """Network with prompts, SPTNet, and SimGCD with the same heads."""
    chosen = {"k": 5, "seed": 1, "backbone": {"tuned_blocks": 1}, "heads": {"hidden": 6, "projection_width": 4}}
    methods = []
    for name in ("sptnet", "simgcd"):
        config = configuration.override(configuration.compose("paper", method=name), chosen, "test")
        methods.append(METHODS[name](config, Sizes(WIDTH, 5, 3, 4)))
    prompts = PixelPrompts(NATIVE, PATCH, frame=1, border=2, start=1.0, seed=0)
    return build(methods[0], Prompted(load(folder), prompts)), *methods


def turns(steps_per_epoch: int, epochs: int, period: int = 20) -> list[bool]:
    """Whether the prompts learn, step by step: a switch that every 20th step of an epoch flips before it runs."""
    found = []
    for _ in range(epochs):
        prompts_learn = True
        for step in range(1, steps_per_epoch + 1):
            if step % period == 0:
                prompts_learn = not prompts_learn
            found.append(prompts_learn)
    return found


@pytest.mark.parametrize(("images", "share"), [(5994, 0.57), (8144, 0.62), (6667, 0.62)])
def test_the_prompts_share_of_the_steps_is_that_of_the_public_code(images: int, share: float, sptnet: Any) -> None:
    """On CUB, Cars and Aircraft, with batches of 128."""
    method, steps = sptnet[1], images // 128
    expected = turns(steps, 3)
    found = [method.options.prompts.learn(Progress(step, 3 * steps, steps)) for step in range(3 * steps)]
    assert found == expected
    assert sum(expected) / len(expected) == pytest.approx(share, abs=0.006)


@pytest.mark.parametrize("steps_per_epoch", [1, 3, 19])
def test_the_network_learns_too_where_an_epoch_is_shorter_than_a_turn(steps_per_epoch: int, sptnet: Any) -> None:
    learn = sptnet[1].options.prompts.learn
    found = [learn(Progress(step, 100, steps_per_epoch)) for step in range(100)]
    assert found == turns(100, 1)


def test_each_turn_has_its_views_and_what_learns(sptnet: tuple[Any, Any, Any], folder: Path) -> None:
    """Prompts learn from two crops that both have them, the network from one crop without and with them."""
    network, method, simgcd = sptnet
    pixels = torch.randn(8, 3, NATIVE, NATIVE, generator=torch.Generator().manual_seed(5))  # two views of four images
    numbers, label = np.arange(4), np.array([0, -1, 2, -1])
    batch = Batch.of(network.backbone.tokens(pixels), Draws(numbers, numbers), label, "cpu")
    plain, prompts = load(folder), network.backbone.prompts()
    names = list(network.trained())
    own = {name for name in names if name.endswith((".patches", ".around"))}
    assert len(own) == 2
    for step, prompts_learn in enumerate(turns(46, 2)):
        if step not in (0, 18, 19, 38, 39, 45, 46, 64, 65, 91):  # around every switch
            continue
        views = [pixels[:4] + prompts, pixels[4:] + prompts] if prompts_learn else [pixels[:4], pixels[:4] + prompts]
        feature = torch.cat([plain.tail(plain.tokens(part)) for part in views])
        said = network.from_feature(feature, network.learning)
        progress = Progress(step, 92, 46)
        expected = simgcd.loss(lambda tokens, said=said: said, batch, progress).total
        torch.testing.assert_close(method.loss(network, batch, progress).total, expected, rtol=1e-4, atol=1e-5)
        learns = {name for name, parameter in network.trained().items() if parameter.requires_grad}
        assert learns == (own if prompts_learn else set(names) - own), step


@pytest.mark.parametrize("steps", [46_000, 1500, 700])
def test_the_prompts_rate_rises_for_a_thousand_steps_and_falls_to_zero_by_step(steps: int, sptnet: Any) -> None:
    network, method, _ = sptnet
    optimiser, schedule = method.optimiser(network, method.config.schedule), method.config.schedule
    assert schedule.by == "epoch" and schedule.weight_decay > 0
    prompts = {id(p) for p in network.backbone.prompts.parameters()}
    for step in (0, 1, 500, 699, 999, 1000, 1001, 1200, 1499, 25_000, 45_999):
        if step >= steps:
            continue
        rate = 25 * (step + 1) / 1000
        if step >= 1000:
            rate = 25 * (1 + math.cos(math.pi * (step - 1000) / (steps - 1000))) / 2
        network_rate = set_learning_rate(optimiser, schedule, 128, Progress(step, steps, 46, "epoch"))
        assert 0.005 <= network_rate <= 0.05
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                own = id(parameter) in prompts
                assert group["lr"] == pytest.approx(rate if own else network_rate, rel=1e-9, abs=1e-12)
                assert not own or group["weight_decay"] == 0
    held = [id(p) for group in optimiser.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) and set(held) == {id(p) for p in network.trained().values()}


def test_its_own_entropy_weight_does_not_reach_the_first_stage() -> None:
    """ξ on CIFAR-100: 4 in SimGCD's scripts, 1 in SPTNet's."""
    for benchmark, first, second in (("cifar100", 4.0, 1.0), ("cub", 2.0, 2.0), ("cars", 1.0, 1.0)):
        config = configuration.compose("paper", benchmark, method="sptnet")
        method: Any = METHODS["sptnet"](config, Sizes(WIDTH, 5, 3, 4))
        stage: Any = first_stage(config, "simgcd").options
        assert (stage.baseline.entropy_weight, method.options.baseline.entropy_weight) == (first, second)


def test_a_patch_is_the_vits_own(folder: Path) -> None:
    config = configuration.override(
        configuration.compose("paper", method="sptnet"), {"views": {"size": NATIVE}}, "test"
    )
    prompts = METHODS["sptnet"].prompted(load(folder), config).prompts
    assert torch.equal(
        prompts.get_buffer("in_frame"), PixelPrompts(NATIVE, PATCH, 1, 30, 1.0, 0).get_buffer("in_frame")
    )


@pytest.mark.parametrize(("size", "border"), [(224, 30), (112, 15), (160, 21)])
def test_the_border_is_as_wide_as_published_for_224_pixels(folder: Path, size: int, border: int) -> None:
    values = {"views": {"size": size, "resize": size}}
    config = configuration.override(configuration.compose("paper", method="sptnet"), values, "test")
    found = METHODS["sptnet"].prompted(load(folder), config).prompts.get_buffer("at_border")
    assert found.bool().logical_not().sum() == (size - 2 * border) ** 2 and not found[border, border]


FAST = {
    "promptcal.memory": 24,
    "promptcal.negatives": 12,
    "promptcal.neighbours": 2,
    "promptcal.quantile": 0.2,
    "promptcal.first_share": 0.5,
}


@pytest.fixture
def words(folder: Path, arguments: Callable[..., list[str]], tmp_path: Path) -> Callable[..., list[str]]:
    def for_run(source: Path, run: Path, *more: object) -> list[str]:
        common = ("--method", "promptcal", "--backbone", folder, "--cache", tmp_path / "cache")
        found = arguments(source, run, *common, *more, **{key.replace(".", "__"): value for key, value in FAST.items()})
        return [str(folder) if word == "lite0" else word for word in found]

    return for_run


def test_promptcal_resumes_to_the_same_bytes_in_both_stages(
    words: Callable[..., list[str]], shared_csv: Path, tmp_path: Path, command: Any
) -> None:
    whole = tmp_path / "whole"
    assert debgcd(words(shared_csv, whole), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    second = [line["step"] for line in lines if "cls_neighbours" in line]
    assert second == list(range(7, 13))
    assert (
        next(line for line in lines if line["step"] == 9 and "loss" in line)["cls_neighbours"] > 0
    )  # the memory is filled
    for number in (5, 8):
        run = tmp_path / str(number)
        assert (
            debgcd(words(shared_csv, run), tmp_path / "log", at_call("debgcd.train.loop.step", number, after=True)) < 0
        )
        assert debgcd(["resume", run], tmp_path / "log") == 0, (tmp_path / "log").read_text()
        assert result(run) == result(whole)
    assert command("predict", whole, whole / "manifest.csv", "-o", tmp_path / "out.csv").code == 0
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        asked = {row["path"]: row for row in csv.DictReader(file)}
    with open(whole / "predictions.csv", encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert written and all(0 <= float(row["novelty"]) <= 1 and row["looks_new"] for row in written)
    assert all(asked[row["path"]]["id"] == row["id"] for row in written)
    again = tmp_path / "again"
    assert debgcd([*words(shared_csv, again), "--start", whole], tmp_path / "log") == 0, (tmp_path / "log").read_text()
    steps = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
    assert all("cls_neighbours" in line for line in steps if "loss" in line)  # the first stage is left out


def test_truth_does_not_reach_promptcal(words: Callable[..., list[str]], shared_csv: Path, tmp_path: Path) -> None:
    with open(shared_csv, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    permuted = [{**row, "truth": rows[(7 * i + 5) % len(rows)]["truth"]} for i, row in enumerate(rows)]
    ends = []
    for name, form in (("given", rows), ("permuted", permuted)):
        with open(tmp_path / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(form[0]))
            writer.writeheader()
            writer.writerows(form)
        assert debgcd(words(tmp_path / f"{name}.csv", tmp_path / name), tmp_path / "log") == 0
        ends.append(result(tmp_path / name))
    assert ends[0] == ends[1]


def test_promptcal_refuses_what_is_no_vit(shared_folder: Path, tmp_path: Path, train: Any) -> None:
    said = train(shared_folder, tmp_path / "run", "--method", "promptcal")
    assert said.code == 2 and "promptcal needs a ViT, and lite0 is none" in said.complaint
