"""Model folders and checkpoints, damaged and edited; the hashes are set right again where the tensors are the target."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import GIGABYTE, damaged, edited, fuzz, peak_in_a_child, survives
from hypothesis import given

from debgcd import config as configuration
from debgcd.methods import create
from debgcd.methods.base import Sizes
from debgcd.model.load import load_backbone
from debgcd.model.network import Network
from debgcd.run import model_folder as models
from debgcd.run.categories import categories
from debgcd.run.model_folder import load_model, save_model
from debgcd.train import checkpoint

pytestmark = pytest.mark.tries("damaged and hostile models", "refused")

CHANGES = {"k": 4, "backbone": {"name": "lite0", "tuned_blocks": 0}, "views": {"size": 32, "resize": 36}}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, configuration.Config]:
    backbone = load_backbone("lite0", tuned_blocks=0, image_size=32, cache=tmp_path_factory.mktemp("cache"))
    config = configuration.override(configuration.compose("small", method="sskmeans"), CHANGES, "here")
    sha256 = {"backbone": {"sha256": backbone.identity.sha256}}
    config = configuration.override(config, sha256, "here")
    return Network(backbone, create(config, Sizes(backbone.width, 4, 2, 9)).heads()), config


@pytest.fixture(scope="module")
def folder(network: tuple[Network, configuration.Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid model, and a valid checkpoint of the same network."""
    place = tmp_path_factory.mktemp("fuzz")
    found, config = network
    save_model(place / "model", found.state(), config, categories(["1", "cat"], 4), 9, [1, "cat"])
    checkpoint.save(place / "checkpoints", 5, found, None, 1, "digest")
    return place


@pytest.fixture
def load(
    network: tuple[Network, configuration.Config], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, bytes], None]:
    """load(file, content): read a copy of the model in which this file has this content."""
    monkeypatch.setattr(models, "load_backbone", lambda *names, **options: network[0].backbone)  # once, not each time
    place = Path(shutil.copytree(folder / "model", tmp_path / "model"))

    def read(name: str, content: bytes) -> None:
        original = (folder / "model" / name).read_bytes()
        (place / name).write_bytes(content)
        if name == "model.safetensors":
            _rehash(place / "config.json", content)
        survives(lambda: load_model(place, backbone=None, cache=tmp_path, device="cpu"))
        (place / name).write_bytes(original)

    return read


def _rehash(facts: Path, content: bytes) -> None:
    found = json.loads(facts.read_text())
    facts.write_text(json.dumps(found | {"sha256": hashlib.sha256(content).hexdigest()}))


def test_the_model_itself_is_valid(load: Callable[..., None], folder: Path, tmp_path: Path) -> None:
    found = load_model(folder / "model", backbone=None, cache=tmp_path, device="cpu")
    assert found.labels == (1, "cat") and isinstance(found.network.heads["classifier"].weight, torch.Tensor)


@pytest.mark.parametrize("name", ["config.json", "categories.json", "labels.json", "model.safetensors"])
def test_damaged_files_of_a_model(load: Callable[[str, bytes], None], folder: Path, name: str) -> None:
    original = (folder / "model" / name).read_bytes()
    head = original[:600] if name == "model.safetensors" else original  # its header, where there is something to damage

    @fuzz
    @given(content=damaged([head]))
    def check(content: bytes) -> None:
        load(name, content + original[len(head) :])

    check()


@pytest.mark.parametrize("name", ["config.json", "categories.json", "labels.json"])
def test_other_values_in_a_model(load: Callable[[str, bytes], None], folder: Path, name: str) -> None:
    @fuzz
    @given(content=edited(json.loads((folder / "model" / name).read_text())))
    def check(content: Any) -> None:
        load(name, json.dumps(content).encode())

    check()


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_damaged_checkpoints(
    network: tuple[Network, configuration.Config], folder: Path, tmp_path: Path, name: str
) -> None:
    place = Path(shutil.copytree(folder / "checkpoints", tmp_path / "checkpoints")) / "step-00000005"
    original = (place / name).read_bytes()
    head = original[:600]

    @fuzz
    @given(content=damaged([head]))
    def check(content: bytes) -> None:
        content += original[len(head) :]
        (place / name).write_bytes(content)
        if name == "state.safetensors":
            _rehash(place / "state.json", content)
        survives(lambda: checkpoint.resume(tmp_path / "checkpoints", network[0], None, "digest"))

    check()


def test_other_values_in_a_checkpoint(
    network: tuple[Network, configuration.Config], folder: Path, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(folder / "checkpoints", tmp_path / "checkpoints")) / "step-00000005"

    @fuzz
    @given(content=edited(json.loads((place / "state.json").read_text())))
    def check(content: Any) -> None:
        (place / "state.json").write_text(json.dumps(content))
        survives(lambda: checkpoint.resume(tmp_path / "checkpoints", network[0], None, "digest"))

    check()


def test_a_configuration_of_any_size_takes_no_gigabyte(load: Callable[[str, bytes], None], folder: Path) -> None:
    facts = json.loads((folder / "model" / "config.json").read_text())

    def work() -> None:
        for key in configuration.leaves(facts["config"]):
            for value in (10**6, 10**9, 65536, 4096):
                changed = json.loads(json.dumps(facts))
                section = changed["config"]
                *path, last = key.split(".")
                for part in path:
                    section = section[part]
                section[last] = value
                load("config.json", json.dumps(changed).encode())
        for method in ("debgcd", "simgcd", "uno", "gcd", "orca", "mugcd"):
            heads = {"hidden": 65536, "projection_width": 65536, "detector_width": 65536, "count": 64}
            other = configuration.to_dict(
                configuration.override(configuration.compose("small", method=method), CHANGES, "x")
            )
            other["backbone"] = facts["config"]["backbone"]
            other["heads"] |= {name: value for name, value in heads.items() if name in other["heads"]}
            load("config.json", json.dumps(facts | {"config": other}).encode())

    assert peak_in_a_child(work) < GIGABYTE
