"""A finished run of 60 images and `debgcd review` on a copy of it, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_names import BAD, CLASS
from miniatures import draw
from quick import train_arguments
from served import Serve, Served

from debgcd.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images with hostile names; its first image's file is one that a test may replace."""
    folder = tmp_path_factory.mktemp("review")
    for i in range(10):
        draw(
            folder / "images" / "labelled" / (CLASS.replace("/", "-") if i % 2 else "dog") / f"{i}.png",
            "cat" if i % 2 else "dog",
            i,
        )
    for i in range(60):
        name = f"{BAD}.png" if i == 3 else f"u{i:02d}.png"
        draw(folder / "images" / "unlabelled" / name, ("cat", "dog", "owl")[i % 3], 100 + i)
    words = train_arguments(
        folder / "images", folder / "run", "--k", 4, "--epochs", 0, schedule__steps="null", heads__warm_start="true"
    )
    assert main(words) == 0
    (folder / "run" / "estimate.json").write_text(
        "{}"
    )  # as if K had been estimated: then splits and merges are suggested
    return folder


@pytest.fixture(scope="module")
def serve(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """serve(): `debgcd review` on a fresh copy of the run, or on the one given."""
    started: list[subprocess.Popen[str]] = []

    def begin(run: Path | None = None) -> Served:
        if run is None:
            run = tmp_path_factory.mktemp("copy") / "run"
            shutil.copytree(finished / "run", run)
        words = [sys.executable, "-m", "debgcd", "review", str(run), "--no-browser"]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
        )
        started.append(process)
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), process.stderr.read()
        return Served(process, url, run)

    yield begin
    for process in started:
        process.terminate()
        assert process.wait(20) == 0
        assert process.stdout is not None and process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said and "the review ended" in said, said
        process.stdout.close()
        process.stderr.close()
