"""A full disk: foreseen before a run begins, and where it comes anyway, named with the amounts."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from debgcd import config as configuration
from debgcd.data.sources import read_manifest
from debgcd.model.load import load_backbone
from debgcd.system.files import write_text
from debgcd.train.disk_space import run_bytes
from debgcd.train.plan import Plan

Train = Callable[..., Any]


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": size}))


def size_of(run: Path) -> int:
    names = ("state.safetensors", "model.safetensors")
    return sum(path.stat().st_size for path in run.rglob("*") if path.name in names)


@pytest.mark.parametrize("method", ["debgcd", "mugcd", "kmeans"])
def test_what_a_run_needs_is_about_what_it_writes(train: Train, shared_csv: Path, tmp_path: Path, method: str) -> None:
    run = tmp_path / "run"
    assert train(shared_csv, run, "--method", method).code == 0
    config = replace(configuration.load(run / "config.yaml"), start=None)  # as it was before its first stage
    name, tuned = config.backbone.name, config.backbone.tuned_blocks
    assert name is not None and tuned is not None
    backbone = load_backbone(name, tuned_blocks=tuned, image_size=config.views.size, cache=tmp_path, precision="fp32")
    needed, written = run_bytes(Plan(config, config, backbone, read_manifest(shared_csv))), size_of(run)
    one = (run / "checkpoints").glob("step-*/state.safetensors")
    largest = max(path.stat().st_size for path in one)
    stages = 2 if method == "mugcd" else 1  # taken to be equally large
    assert written <= needed <= written + stages * largest + 100_000  # while one is written, the oldest is still there


def test_a_run_that_does_not_fit_does_not_begin(
    train: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, cache = tmp_path / "run", tmp_path / "cache"
    free(monkeypatch, 100_000)
    said = train(shared_folder, run, "--bank", "on", "--cache", cache)
    assert said.code == 3
    assert "debgcd: the run needs " in said.complaint and "only 100 kB is free; free some space, or " in said.complaint
    assert (
        f"in {run} for checkpoints and model and " in said.complaint
        and f"in {cache} for the view bank" in said.complaint
    )
    assert not (run / "config.yaml").exists() and not (run / "checkpoints").exists()
    monkeypatch.undo()
    assert train(shared_folder, run, "--bank", "on", "--cache", cache).code == 0  # the same directory will do


def test_a_bank_that_is_there_needs_no_room(
    train: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = train(shared_folder, tmp_path / "first", "--bank", "on", "--cache", cache, "--method", "kmeans")
    assert first.code == 0
    (bank,) = (cache / "banks").glob("*/records")
    assert bank.stat().st_size > 1000
    monkeypatch.setattr("debgcd.train.plan.bank_bytes", lambda *_: 10**9)
    free(monkeypatch, 10**9)  # enough for each of bank and checkpoints, not for both
    said = train(shared_folder, tmp_path / "second", "--bank", "on", "--cache", cache, "--method", "kmeans")
    assert said.code == 0, said.err


def test_a_full_device_is_named_with_the_amounts() -> None:
    with pytest.raises(OSError, match=r"No space left on device \(5 kB needed, .* free\): '/dev/full'") as error:
        write_text(Path("/dev/full"), "x" * 5000)
    assert error.value.errno == errno.ENOSPC


@pytest.mark.parametrize("name", ["state.safetensors", "model.safetensors"])
def test_a_disk_that_is_full_in_the_middle_of_a_run(
    train: Train, command: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What the system says of a write names no file. Nor does it go on where there is still no room."""
    original = Path.write_bytes

    def write_bytes(path: Path, content: bytes) -> int:
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(path, content)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    run = tmp_path / "run"
    said = train(shared_folder, run)
    place = run / "checkpoints" / "step-00000003" / name if name.startswith("state") else run / "model"
    assert said.code == 3
    assert (
        f"cannot use {place}: No space left on device (" in said.complaint
        and " free); free some space" in said.complaint
    )
    assert ("needed" in said.complaint) == name.startswith("state")
    assert said.complaint.endswith(f"; to continue: debgcd resume {run}")
    monkeypatch.undo()
    missing = 10_000
    monkeypatch.setattr(
        "debgcd.train.disk_space.run_bytes", lambda *_: size_of(run) + missing
    )  # what is there needs no room
    free(monkeypatch, missing // 2)
    said = command("resume", run)
    assert said.code == 3 and f"the run needs 10 kB in {run} for checkpoints and model" in said.complaint, (
        said.complaint
    )
