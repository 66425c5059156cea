"""Pixels and steps that are auto: chosen from the images, their number and the quality, and written as numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from debgcd import config as configuration
from debgcd.data.image.decode import Unusable, short_side
from debgcd.train import plan
from debgcd.train.cost import RELATIVE_WORK, Cost, alternatives, describe
from debgcd.train.plan import Plan, resolve_auto

Command = Callable[..., Any]
PHOTOGRAPH, DIGIT = (90, 70), (8, 30)  # width, height


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[int, int]], Path]:
    """A file with an image of this size."""
    folder = tmp_path_factory.mktemp("sizes")

    def make(size: tuple[int, int]) -> Path:
        path = folder / f"{size[0]}x{size[1]}.png"
        if not path.exists():
            Image.fromarray(np.zeros((size[1], size[0], 3), np.uint8)).save(path)
        return path

    return make


def settled(paths: list[Path], level: str | None = None, backbone: str | None = None, **views: Any) -> tuple[Any, ...]:
    """Size, resize and steps of a run with these images."""
    # without a hub; tests/train/test_best_quality.py has one
    backbone = "lite2" if level == "best" and backbone is None else backbone
    config = configuration.compose("small", None, backbone, quality=level)
    config = configuration.override(config, {"views": views, "run": {"device": "cpu"}}, "test")
    found = resolve_auto(config, paths)
    assert configuration.override(found, {}, "test") == found  # numbers that config.yaml may hold
    return found.views.size, found.views.resize, found.schedule.steps


@pytest.mark.parametrize(
    ("level", "size", "count", "expected"),
    [
        ("fast", PHOTOGRAPH, 2000, (96, 110, 150)),
        ("balanced", PHOTOGRAPH, 2000, (160, 183, 300)),
        (None, PHOTOGRAPH, 2000, (160, 183, 300)),
        ("best", PHOTOGRAPH, 2000, (160, 183, 600)),
        ("fast", DIGIT, 2000, (96, 110, 150)),
        ("balanced", DIGIT, 2000, (96, 110, 300)),
        ("best", DIGIT, 2000, (96, 110, 600)),
        ("balanced", (23, 500), 100, (96, 110, 60)),
        ("balanced", (24, 500), 100, (160, 183, 60)),
        ("balanced", PHOTOGRAPH, 20_000, (160, 183, 3000)),
        ("balanced", PHOTOGRAPH, 20_001, (128, 146, 3000)),
        ("best", PHOTOGRAPH, 50_000, (160, 183, 6000)),
        ("fast", PHOTOGRAPH, 50_000, (96, 110, 1500)),
    ],
)
def test_the_rule(image: Any, level: str, size: tuple[int, int], count: int, expected: tuple[int, int, int]) -> None:
    assert settled([image(size)] * count, level) == expected


def test_a_gpu_takes_all_steps_and_pixels(image: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "pick_device", lambda name: type("Device", (), {"type": "cuda"}))
    assert settled([image(PHOTOGRAPH)] * 30_000) == (160, 183, 4500)


def test_the_median_decides_and_few_headers_are_read(image: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [image(DIGIT)] * 400 + [image(PHOTOGRAPH)] * 600
    assert settled(paths)[0] == 160 and settled(paths[:700])[0] == 96
    read: list[Path] = []
    monkeypatch.setattr(plan, "short_side", lambda path: read.append(path) or 100)
    settled(paths)
    assert len(read) == plan.HEADERS_READ and read[0] == paths[0] and read[-1] == paths[-1]


def test_what_is_given_stays(image: Any) -> None:
    paths = [image(PHOTOGRAPH)] * 10
    assert settled(paths, size=112)[:2] == (112, 128)
    assert settled(paths, resize=200)[:2] == (160, 200)
    assert settled(paths, size=4096)[:2] == (4096, 4096)


@pytest.mark.parametrize("level", ["fast", "balanced", "best"])
@pytest.mark.parametrize("backbone", ["dino", "dinov2", "facebook/dino-vits16", "weights/dino.pth"])
def test_a_vit_sees_whole_patches(image: Any, level: str, backbone: str) -> None:
    size, resize, _ = settled([image(DIGIT)] * 10, level, backbone)
    assert (size, resize) == (224, 256) and not any(size % patch for patch in (8, 14, 16, 32))


def test_the_header_says_the_short_side(image: Any, tmp_path: Path) -> None:
    assert (short_side(image(PHOTOGRAPH)), short_side(image(DIGIT))) == (70, 8)
    broken = tmp_path / "broken.png"
    broken.write_bytes(image(DIGIT).read_bytes()[:12])
    for path in (broken, tmp_path / "missing.png", tmp_path):
        with pytest.raises(Unusable):
            short_side(path)
    assert settled([broken])[0] == 160  # what is broken by now is said when it is decoded


def test_levels_scale_with_pixels_steps_and_network(image: Any) -> None:
    def levels(asked: configuration.Config) -> dict[Any, Any]:
        manifest = SimpleNamespace(training_paths=paths)
        return alternatives(Plan(asked, resolve_auto(asked, paths), None, manifest), cost)  # type: ignore[arg-type]

    paths, asked = [image(PHOTOGRAPH)] * 2000, configuration.compose("small")
    cost = Cost(view=0.01, step=0.5, kept=18_000, drawn=0.0, steps=300)
    found = levels(asked)
    assert found["balanced"].seconds == pytest.approx(180 + 150) == pytest.approx(cost.seconds)
    assert found["fast"].seconds == pytest.approx(0.36 * (180 + 75))
    assert found["best"].seconds == pytest.approx(RELATIVE_WORK["lite2"] * (180 + 300))
    assert describe("balanced", found).startswith("quality: balanced, 160 px, lite0, 300 steps, about ")
    assert "; best: 160 px, lite2, 600 steps, about " in describe("balanced", found)
    own = replace(asked, backbone=replace(asked.backbone, name="lite1"))  # a backbone of the user's own stays
    assert {level.backbone for level in levels(own).values()} == {"lite1"}
    given = configuration.override(asked, {"views": {"size": 32}, "schedule": {"steps": 3}}, "test")
    assert levels(given) == {}  # nothing was chosen


def test_a_run_with_auto_is_the_run_with_its_numbers(
    train: Command, command: Command, shared_folder: Path, tmp_path: Path
) -> None:
    """Measuring the time before the run changes nothing in it, and nothing is left to decide in config.yaml."""
    told = train(
        shared_folder, tmp_path / "auto", schedule__steps="auto", schedule__steps_times=0.1, views__resize="auto"
    )
    assert told.code == 0 and "quality: balanced, 32 px, lite0, 6 steps, about " in told.err
    written = yaml.safe_load((tmp_path / "auto" / "config.yaml").read_text())
    assert (written["views"]["size"], written["views"]["resize"], written["schedule"]["steps"]) == (32, 37, 6)
    numbers = {"schedule__steps": 6, "schedule__steps_times": 0.1, "views__resize": 37}
    told = train(shared_folder, tmp_path / "numbers", **numbers)
    assert told.code == 0 and "quality: " not in told.err
    for file in ("config.yaml", "predictions.csv", "model/model.safetensors"):
        assert (tmp_path / "auto" / file).read_bytes() == (tmp_path / "numbers" / file).read_bytes()
    assert command("predict", tmp_path / "auto", shared_folder, "-o", tmp_path / "out.csv").code == 0


def test_check_says_what_each_quality_costs(command: Command, shared_folder: Path) -> None:
    words = ("check", shared_folder, "--k", 3, "--quality", "fast", "--bank", "off", "--set", "views.size=32")
    plan = json.loads(command(*words, "--json").out)["plan"]
    assert plan["quality"] == "fast" and plan["steps"] == plan["levels"]["fast"]["steps"] == 30
    assert {name: level["steps"] for name, level in plan["levels"].items()} == {"fast": 30, "balanced": 60, "best": 120}
    assert plan["seconds"] == pytest.approx(plan["levels"]["fast"]["seconds"])
    assert "  quality: fast, 32 px, lite0, 30 steps, about " in command(*words).out
