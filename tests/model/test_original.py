"""The authors' own files give the features of the authors' own network, and no code in them is run."""

from __future__ import annotations

import argparse
import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from original_forward import original_forward
from tiny import NATIVE, PATCH, WIDTH, images, load, original_state
from torch import Tensor

from debgcd.errors import DataError

pytestmark = pytest.mark.usefixtures("one_thread", "no_network")


ORIGINALS = {
    "dino": {"scale": False},
    "dinov2": {"scale": True},
    "dinov2 with registers": {"scale": True, "registers": 4},
    "dinov2 giant": {"scale": True, "swiglu": True},
    "dinov2 giant with registers": {"scale": True, "registers": 4, "swiglu": True},
}


@pytest.mark.parametrize("layout", ORIGINALS)
def test_original_files(tmp_path: Path, layout: str) -> None:
    state = original_state(**ORIGINALS[layout])
    path = tmp_path / "weights.pth"
    torch.save(state, path)
    backbone = load(path, 2)
    with torch.no_grad():
        feature = backbone.tail(backbone.tokens(images()))
    torch.testing.assert_close(feature, original_forward(state, images(), PATCH), atol=1e-5, rtol=0)
    assert backbone.identity.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_original_registers_resize_positions_as_published(tmp_path: Path) -> None:
    """The models with registers resize by the exact size with antialiasing, in the paper's code as in the library."""
    state = original_state(scale=True, registers=4)
    torch.save(state, tmp_path / "weights.pth")
    for size in (NATIVE - PATCH, NATIVE + 2 * PATCH):
        backbone = load(tmp_path / "weights.pth", 1, size)
        with torch.no_grad():
            feature = backbone.tail(backbone.tokens(images(size)))
        torch.testing.assert_close(feature, original_forward(state, images(size), PATCH), atol=1e-5, rtol=0)


def wrapped(state: dict[str, Tensor], form: str) -> Any:
    if form == "dino full checkpoint":
        teacher = {f"backbone.{name}": t for name, t in state.items()} | {"head.mlp.0.weight": torch.ones(2)}
        student = {f"module.backbone.{name}": torch.zeros_like(t) for name, t in state.items()}
        return {"student": student, "teacher": teacher, "epoch": 100, "args": argparse.Namespace(arch="vit_base")}
    if form == "parallel":
        return {f"module.backbone.{name}": t for name, t in state.items()}
    # DINOv2's training keeps blocks in chunks, and each block its global number
    chunked = {
        f"backbone.{name.replace('blocks.', f'blocks.{int(name[7]) // 2}.')}"
        if name.startswith("blocks.")
        else f"backbone.{name}": t
        for name, t in state.items()
    }
    return {"teacher": chunked | {"dino_head.mlp.0.weight": torch.ones(2), "ibot_head.mlp.0.weight": torch.ones(2)}}


@pytest.mark.parametrize("form", ["dino full checkpoint", "parallel", "dinov2 training"])
def test_wrapped_original_files(tmp_path: Path, form: str) -> None:
    state = original_state(scale=form == "dinov2 training")
    torch.save(wrapped(state, form), tmp_path / "weights.pt")
    backbone = load(tmp_path / "weights.pt")
    with torch.no_grad():
        feature = backbone.tail(backbone.tokens(images()))
    torch.testing.assert_close(feature, original_forward(state, images(), PATCH), atol=1e-5, rtol=0)


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_pickled_code_is_refused_and_not_run(tmp_path: Path) -> None:
    marker, path = tmp_path / "executed", tmp_path / "weights.pth"
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists(), "the payload must be live for this test to mean anything"
    marker.unlink()
    torch.save(original_state(scale=False) | {"extra": Payload(marker)}, path)
    with pytest.raises(DataError, match="pickled objects"):
        load(path)
    path.write_bytes(pickle.dumps(Payload(marker), protocol=2))
    with pytest.raises(DataError, match="pickled objects"):
        load(path)
    assert not marker.exists()


def altered(state: dict[str, Any], change: str) -> Any:
    return {
        "missing": {k: v for k, v in state.items() if k != "blocks.1.mlp.fc2.bias"},
        "no embedding": {k: v for k, v in state.items() if k != "cls_token"},
        "unexpected": state | {"blocks.1.attn.gate": torch.ones(1)},
        "shape": state | {"blocks.1.mlp.fc2.weight": torch.ones(3, 3)},
        "two class tokens": state | {"pos_embed": torch.ones(1, 18, WIDTH)},
        "flat": state | {"patch_embed.proj.weight": torch.ones(3)},
        "scalar": state | {"blocks.1.attn.qkv.bias": torch.tensor(0.0)},
        "width": state | {"patch_embed.proj.weight": torch.ones(100, 3, PATCH, PATCH)},
        "no tensors": {"epoch": 3},
        "list": [torch.ones(1)],
    }[change]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("missing", r"missing: .*layers?\.1\.\S*bias"),
        ("no embedding", "no tensor cls_token"),
        ("unexpected", r"unexpected: blocks\.1\.attn\.gate"),
        ("shape", r"wrong shape: .*layers?\.1\."),
        ("two class tokens", "wrong shape: embeddings.position_embeddings"),
        ("flat", "do not fit"),
        ("scalar", "do not fit"),
        ("width", "multiple of 64"),
        ("no tensors", "not a state dict"),
        ("list", "not a state dict"),
    ],
)
def test_original_files_that_do_not_match(tmp_path: Path, change: str, says: str) -> None:
    torch.save(altered(original_state(scale=False), change), tmp_path / "weights.pth")
    with pytest.raises(DataError, match=says) as caught:
        load(tmp_path / "weights.pth")
    assert "weights.pth" in str(caught.value)


def test_broken_or_absent_original_file(tmp_path: Path) -> None:
    (tmp_path / "junk.pth").write_bytes(b"not a zip file")
    with pytest.raises(DataError, match="damaged"):
        load(tmp_path / "junk.pth")
    with pytest.raises(DataError, match="no file"):
        load(tmp_path / "absent.pth")
