"""Weights in the hub's format: from folders, from the hub's cache, and with the hub out of reach."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import NATIVE, hub_model, images, load, own_forward

from debgcd.errors import DataError
from debgcd.model.load import load_vit

pytestmark = pytest.mark.usefixtures("one_thread", "no_network")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_shards_are_one_model(tmp_path: Path) -> None:
    model = hub_model("vit", tmp_path, shard_size="300KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    backbone = load(tmp_path)
    torch.testing.assert_close(backbone.tail(backbone.tokens(images())), own_forward(model, images()))
    assert backbone.identity.sha256 == hashlib.sha256(b"".join(s.read_bytes() for s in shards)).hexdigest()
    shards[0].unlink()
    with pytest.raises(DataError, match=shards[0].name):
        load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", None, "no config.json"),
        ("config.json", "{", "config.json cannot be read"),
        ("config.json", "[]", "JSON object"),
        ("config.json", '{"model_type": "bert"}', "model_type bert; use .*vit, dinov2, dinov2_with_registers, dinov3"),
        ("config.json", '{"model_type": "vit", "hidden_size": "wide"}', "not valid|do not fit"),
        ("config.json", '{"model_type": "vit", "hidden_size": 64}', "do not (match|fit)"),
        ("config.json", '{"model_type": "vit", "num_channels": 1}', "RGB images"),
        ("model.safetensors", None, "no model.safetensors"),
        ("model.safetensors", "garbage", "model.safetensors cannot be read"),
        ("preprocessor_config.json", '{"image_mean": [0.5]}', "three numbers"),
        ("preprocessor_config.json", '{"image_std": null}', "three numbers"),
        ("preprocessor_config.json", '{"image_std": [0.2, 0, 0.2]}', "above zero"),
    ],
)
def test_folders_that_cannot_be_used(tmp_path: Path, file: str, content: str | None, says: str) -> None:
    hub_model("vit", tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=says) as caught:
        load(tmp_path, image_size=32)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_without_one_tensor_or_with_one_too_many(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    hub_model("dinov2", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["embeddings.mask_token"]  # no feature depends on it
    save_file(tensors, tmp_path / "model.safetensors")
    load(tmp_path)
    gone = tensors.pop("encoder.layer.1.norm1.bias")
    save_file(tensors | {"surplus": gone}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"missing: encoder\.layer\.1\.norm1\.bias; unexpected: surplus"):
        load(tmp_path)


def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    hub_model("vit", tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    index = {"weight_map": {"embeddings.cls_token": "../elsewhere.safetensors"}}
    (tmp_path / "a" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="next to it"):
        load(tmp_path / "a")


class Hub:
    """The library's own look into its cache; in place of the network, an answer or a failure."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> None:
        import huggingface_hub

        self.answer, self.requests = answer, []
        self.real = huggingface_hub.snapshot_download
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self)

    def __call__(self, name: str, **options: Any) -> str:
        if options.get("local_files_only"):
            return self.real(name, **options)
        self.requests.append((name, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def cached(cache: Path) -> Path:
    """A snapshot as the hub's client leaves it."""
    repository = cache / "hub" / "models--acme--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_a_model_already_here_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: str | None
) -> None:
    model = hub_model("vit", cached(tmp_path))
    hub = Hub(monkeypatch, ConnectionError())
    backbone = load_vit("acme/tiny", tuned_blocks=1, image_size=NATIVE, revision=revision, cache=tmp_path)
    torch.testing.assert_close(backbone.tail(backbone.tokens(images())), own_forward(model, images()))
    assert (backbone.identity.name, backbone.identity.revision) == ("acme/tiny", COMMIT)
    assert hub.requests == []


@pytest.mark.parametrize(("name", "kept"), [("facebook/dino-vitb16", False), ("acme/tiny", True)])
def test_the_hubs_dino_has_the_epsilon_of_dinos_own_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, kept: bool
) -> None:
    """The hub's configuration of DINO says 1e-12, its authors' code 1e-6; of any other model, the configuration counts."""
    hub_model("vit", tmp_path / "remote" / COMMIT, layer_norm_eps=1e-12)
    Hub(monkeypatch, tmp_path / "remote" / COMMIT)
    backbone = load_vit(name, tuned_blocks=1, image_size=NATIVE, cache=tmp_path / "cache")
    found = {module.eps for module in backbone.modules() if isinstance(module, torch.nn.LayerNorm)}
    assert found == {1e-12 if kept else 1e-6}
    pixels = 1e-3 * images()  # dark and even: small differences within a token, which the epsilon is beside
    expected = own_forward(hub_model("vit", layer_norm_eps=1e-12 if kept else 1e-6), pixels)
    torch.testing.assert_close(backbone.tail(backbone.tokens(pixels)), expected)


def test_a_model_is_fetched_without_anything_that_can_carry_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub_model("vit", tmp_path / "remote" / COMMIT)
    unfinished = cached(tmp_path / "cache")
    unfinished.mkdir(parents=True)
    (unfinished / "config.json").write_text("{}")
    hub = Hub(monkeypatch, tmp_path / "remote" / COMMIT)
    backbone = load_vit("acme/tiny", tuned_blocks=1, image_size=NATIVE, cache=tmp_path / "cache")
    assert backbone.identity.revision == COMMIT
    ((name, options),) = hub.requests
    assert (name, options["cache_dir"]) == ("acme/tiny", tmp_path / "cache" / "hub")
    assert options["allow_patterns"] == ["*.safetensors", "*.json"]


def test_a_model_neither_here_nor_reachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Hub(monkeypatch, ConnectionError("no route to host"))
    with pytest.raises(DataError, match=r"acme/tiny at revision v2 .*ConnectionError.*\.pth.*HF_ENDPOINT.*lite0"):
        load_vit("acme/tiny", tuned_blocks=1, image_size=NATIVE, revision="v2", cache=tmp_path)
