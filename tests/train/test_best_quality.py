"""`--quality best` takes a ViT of the hub where that can be had, and else says why lite2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import reached
from huggingface_hub import constants
from tiny import hub_model

from debgcd import config as configuration
from debgcd.data.sources import read_manifest
from debgcd.model.load import BEST, BEST_BUILT_IN, best_backbone
from debgcd.run.directory import open_run
from debgcd.train.cost import alternatives, expected_cost
from debgcd.train.plan import VIT_SIZE, make_plan


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address at which nothing listens."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{revision}/{filename}")


def test_a_run_takes_the_model_of_the_hub(
    train: Any, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_model("dinov2", tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").write_text('{"image_mean": [0.4, 0.4, 0.4]}')
    asked = configuration.override(
        configuration.compose("small", quality="best"), {"k": 3, "run": {"cache": str(tmp_path / "cache")}}, "test"
    )
    manifest = read_manifest(shared_folder)
    with reached(monkeypatch) as hub:
        hub.files[BEST] = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
        plan = make_plan(asked, manifest)
        commit = hub.commit(BEST)
    assert (plan.config.backbone.name, plan.config.backbone.revision) == (BEST, commit)
    assert plan.config.views.crop == VIT_SIZE
    assert tuple(plan.backbone.pixel_mean.flatten()) == pytest.approx((102.0,) * 3)  # the model's own
    levels = alternatives(plan, expected_cost(plan))
    assert [levels[name].backbone for name in ("fast", "balanced", "best")] == ["lite0", "lite0", BEST]
    assert levels["best"].image_size == VIT_SIZE and levels["best"].seconds > levels["balanced"].seconds > 0
    # what the cache has needs no hub
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert make_plan(asked, manifest).config.backbone == plan.config.backbone


def test_without_a_hub_a_sentence_says_so_and_the_run_goes_on(
    no_hub: None, command: Any, shared_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    said = command(
        *("train", shared_folder, "-o", run, "--k", 3, "--quality", "best", "--epochs", 0, "--no-report"),
        *("--cache", tmp_path / "cache", "--workers", 0),
    )
    assert said.code == 0, said.err
    assert f"quality: best takes {BEST_BUILT_IN}, because {BEST} is neither cached nor reachable" in said.err
    assert open_run(run).config.backbone.name == BEST_BUILT_IN
    assert open_run(run).config.views.crop == 160
    assert "quality: best, 160 px, lite2, 0 steps, about " in said.err


def test_without_transformers_a_sentence_says_how_to_get_it(
    no_hub: None, command: Any, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    name, line = best_backbone(tmp_path)
    assert name == BEST_BUILT_IN and line.endswith("; install it with: pip install 'debgcd[vit]'")
    said = command("train", shared_folder, "-o", tmp_path / "run", "--k", 3, "--backbone", "dinov2", "--no-report")
    assert said.code == 2
    assert said.complaint == (
        "debgcd: backbone facebook/dinov2-with-registers-base needs the package transformers; "
        "install it with: pip install 'debgcd[vit]'"
    )
