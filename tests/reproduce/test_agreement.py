"""`debgcd doctor`: what a machine has, and whether its device computes what a CPU computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiers import soak, tiered
from tiny import NATIVE, hub_model
from torch import Tensor

from debgcd.config.schema import Config
from debgcd.reproduce import agreement
from debgcd.reproduce.agreement import Line, compare

Command = Callable[..., Any]
CPU = torch.device("cpu")
# error of the device's tokens, and whether that is rounding
CHANGES = [(1e-6, True), (1e-2, False), (1.0, False), (float("nan"), False)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small views and a tiny ViT, in single precision alone."""
    hub_model("vit", tmp_path / "vit")
    whole = agreement._config

    def small(preset: str, vit: str) -> Config:
        config = whole(preset, str(tmp_path / "vit"))
        return replace(config, views=replace(config.views, size=NATIVE, resize=NATIVE + 4))

    monkeypatch.setattr(agreement, "save_random_vit", lambda *_: None)
    monkeypatch.setattr(agreement, "_config", small)
    monkeypatch.setattr(agreement, "PRECISIONS", ("fp32",))


def on_the_device(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Change the backbone of every step but the reference's, which is the first of two."""
    load, count = agreement.load_backbone, 0

    def loaded(*args: Any, **more: Any) -> Any:
        nonlocal count
        backbone, count = load(*args, **more), count + 1
        if count % 2 == 0:
            change(backbone)
        return backbone

    monkeypatch.setattr(agreement, "load_backbone", loaded)


def test_a_cpu_agrees_with_itself_to_the_last_bit(quick: None) -> None:
    told: list[Line] = []
    found = compare(CPU, told.append)
    assert [line.preset for line in found] == ["paper", "released", "small"] and told == found
    assert all(set(line.apart.values()) == {0.0} and line.within for line in found)


@pytest.mark.parametrize(("error", "within"), tiered([(1e-6, True), (1e-2, False)], CHANGES))
def test_a_device_that_computes_something_else_is_found(
    quick: None, monkeypatch: pytest.MonkeyPatch, error: float, within: bool, command: Command
) -> None:
    def spoil(backbone: Any) -> None:
        trunk = backbone.trunk

        def spoilt(images: Tensor) -> Tensor:
            tokens = trunk(images)
            return tokens + error * tokens.std() * torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0))

        backbone.trunk = spoilt

    on_the_device(monkeypatch, spoil)
    said = command("doctor", "--compare", "--device", "cpu")
    assert said.code == (0 if within else 3)
    if not within:
        assert "cpu does not compute what the CPU computes: paper in fp32, released in fp32, small in fp32" in said.err
    rows = [line.split() for line in said.out.splitlines() if line.startswith(("paper", "released", "small"))]
    assert len(rows) == 3 and {row[-1] for row in rows} == {"yes" if within else "no"}


def test_an_operation_that_the_device_lacks_is_named(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(images: Tensor) -> Tensor:
        raise NotImplementedError("The operator 'aten::some' is not implemented for this device\nmore")

    on_the_device(monkeypatch, lambda backbone: setattr(backbone, "trunk", lacks))
    for line in compare(CPU):
        assert not line.within and line.apart == {}
        assert line.failure == "The operator 'aten::some' is not implemented for this device"


@soak
def test_bfloat16_is_within_its_limits_on_a_cpu(command: Command) -> None:
    """At full size: six steps of a ViT-S/16 and of lite0."""
    said = command("doctor", "--compare", "--device", "cpu")
    assert said.code == 0, said.out
    rows = [line.split() for line in said.out.splitlines() if " bf16 " in line or " fp32 " in line]
    assert len(rows) == 6
    for row in rows:
        assert float(row[3]) == 0 if row[2] == "fp32" else 1e-4 < float(row[3]) < 0.3


def test_doctor_says_what_the_machine_has(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    (cache / "banks" / "some").mkdir(parents=True)
    (cache / "banks" / "some" / "records").write_bytes(bytes(3_000_000))
    monkeypatch.setattr("debgcd.model.backbone.gains_from_bf16", lambda device: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "simplejpeg" else object())
    said = command("doctor", "--cache", cache, "--device", "cpu")
    assert said.code == 0 and f"torch {torch.__version__}" in said.out
    assert f"{cache}: banks 3 MB" in said.out and "bfloat16 would not be faster" in said.out
    installed = {line.split()[0]: line.split()[1] for line in said.out.splitlines() if line[:4] in ("jpeg", "onnx")}
    assert installed == {"jpeg": "no", "onnx": "yes"}
    assert "faster: the extra jpeg" in said.out and "faster: a processor with bfloat16" in said.out


def test_a_device_that_is_not_there(command: Command) -> None:
    said = command("doctor", "--device", "xpu:7")
    assert said.code == 2 and "cannot be used here" in said.complaint
