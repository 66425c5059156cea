"""Accidents beside those of the disk: a read-only or vanishing cache, clocks, -O, many classes, kills and Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_table import Fault
from forks import at_call, debgcd, die, forked, result
from miniatures import draw
from quick import SETTLE_QUICKLY, train_arguments
from shared_runs import SharedRuns
from tiers import tiered

from debgcd import Discoverer
from debgcd.cli import main
from debgcd.review.log import Log

ROOT = Path(__file__).parents[2]
STEPS = 6
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def whole(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run with a view bank, and its cache."""
    folder = tmp_path_factory.mktemp("accidents")
    assert main(words(shared_folder, folder / "run", folder / "cache")) == 0
    return folder


def words(images: Path, run: Path, cache: Path) -> list[str]:
    return train_arguments(images, run, "--bank", "on", "--cache", cache, schedule__steps=STEPS)


def test_a_cache_that_may_only_be_read(whole: Path, shared_folder: Path, tmp_path: Path, fault: Fault) -> None:
    """Another run uses what is there; also where a part of it is damaged."""
    for damaged in (False, True):
        cache, run = shutil.copytree(whole / "cache", tmp_path / f"cache-{damaged}"), tmp_path / f"run-{damaged}"
        if damaged:
            (place,) = (cache / "banks").glob("*/records")
            content = place.read_bytes()
            place.write_bytes(content[: len(content) // 4] + bytes(len(content) // 2) + content[-len(content) // 4 :])

        def work(cache: Path = cache, run: Path = run) -> int:
            refuse_writing(cache)
            return main(words(shared_folder, run, cache))

        log = tmp_path / "log"
        code = forked(work, log)
        text = log.read_text("utf-8")
        assert "Traceback" not in text and code in (0, 3), text
        if code == 0:
            assert result(run) == result(whole / "run")
        fault("a read-only cache", "survived" if code == 0 else "refused")


def refuse_writing(folder: Path) -> None:
    """As on a read-only disk: whoever runs the tests may be allowed everything."""
    import builtins
    import errno
    import io

    original = builtins.open

    def open_(path: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if isinstance(path, str | os.PathLike) and set(mode) & set("wax+") and Path(path).is_relative_to(folder):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
        return original(path, mode, *more, **named)

    builtins.open = io.open = open_  # type: ignore[assignment]


@pytest.mark.tries("a cache deleted during a run", "survived")
@pytest.mark.parametrize("step", tiered([2], range(1, STEPS)))
def test_a_cache_deleted_during_a_run(whole: Path, shared_folder: Path, tmp_path: Path, step: int) -> None:
    run, cache = tmp_path / "run", tmp_path / "cache"
    delete = at_call("debgcd.train.loop.step", step, lambda: shutil.rmtree(cache))
    assert debgcd(words(shared_folder, run, cache), tmp_path / "log", delete) == 0, (tmp_path / "log").read_text(
        "utf-8"
    )
    assert result(run) == result(whole / "run")


@pytest.mark.tries("a clock that jumps", "survived")
@pytest.mark.parametrize("by", [-(10**6), 10**6])
def test_a_clock_that_jumps(whole: Path, shared_folder: Path, tmp_path: Path, by: int) -> None:
    """At every look at it further, in both directions."""

    def jump() -> None:
        now, turns = time.time, [0]

        def jumped() -> float:
            turns[0] += 1
            return now() + by * turns[0]

        time.time = jumped
        time.time_ns = lambda: int(jumped() * 1e9)

    run = tmp_path / "run"
    assert debgcd(words(shared_folder, run, tmp_path / "cache"), tmp_path / "log", jump) == 0
    assert result(run) == result(whole / "run")


@pytest.mark.tries("python -O", "survived")
def test_without_assertions(whole: Path, shared_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    program = f"{SETTLE_QUICKLY}\nimport sys\nfrom debgcd.cli import main\nsys.exit(main(sys.argv[1:]))"
    call = [sys.executable, "-O", "-c", program, *words(shared_folder, run, tmp_path / "cache")]
    subprocess.run(call, check=True, capture_output=True, cwd=ROOT, timeout=200)
    assert result(run) == result(whole / "run")


@pytest.mark.tries("many known classes", "survived")
def test_many_known_classes(tmp_path: Path, command: Command) -> None:
    """Two labels each, and one image that is not labelled; a report of all of them."""
    classes = tiered([60], [60, 500])[-1]
    random = np.random.default_rng(0)
    for c in range(classes):
        for i in range(3):
            folder = tmp_path / "images" / (f"labelled/class {c:03d}" if i < 2 else "unlabelled")
            draw(folder / f"{c:03d}-{i}.png", ("cat", "dog", "owl")[c % 3], int(random.integers(10**6)))
    run = tmp_path / "run"
    said = command(*train_arguments(tmp_path / "images", run, "--k", classes + 2, schedule__steps=2))
    assert said.code == 0 and command("report", run).code == 0
    assert command("export", run, "--to", "labelstudio", "-o", tmp_path / "ls.json").code == 0


PHASES = ("require_ready", "create_run", "open_tokens", "prepare", "fit", "finish")


@pytest.mark.tries("killed while training again from a review", "survived")
@pytest.mark.parametrize("phase", tiered(["create_run", "fit"], PHASES))
def test_killed_in_each_phase_of_training_again(shared_runs: SharedRuns, tmp_path: Path, phase: str) -> None:
    """The command repeated, or resumed where it had begun, ends as without the kill; the first run is as it was."""
    first = shutil.copytree(shared_runs.whole("sskmeans"), tmp_path / "first")
    with Log(first) as log:
        log.act({"act": "move", "images": log.review.images[6:9], "to": "new-01"})
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file() and path.name != ".lock"}

    def again(run: Path) -> list[str]:
        return ["train", "--from", str(first), "-o", str(run), "--no-report", "--cache", str(tmp_path / "cache")]

    assert debgcd(again(tmp_path / "whole"), tmp_path / "log") == 0, (tmp_path / "log").read_text("utf-8")
    run = tmp_path / "run"
    assert debgcd(again(run), tmp_path / "log", at_call(f"debgcd.train.train.{phase}", 1, die)) == -signal.SIGKILL
    if (run / "config.yaml").exists():
        assert debgcd(["resume", run, "--no-report"], tmp_path / "log") == 0
    else:
        assert debgcd(again(run), tmp_path / "log") == 0
    for name in ("predictions.csv", "manifest.csv", "model/model.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.tries("Ctrl-C in fit", "survived")
@pytest.mark.parametrize("step", [1, 4])
def test_ctrl_c_in_fit(shared_folder: Path, tmp_path: Path, step: int) -> None:
    """A KeyboardInterrupt after the step, which is saved; the same folder is resumed, and a new fit of it is refused."""
    paths = sorted(shared_folder.rglob("*.png"))
    labels = [path.parent.name if path.parent.parent.name == "labelled" else None for path in paths]
    overrides = {"backbone": {"name": "lite0", "tuned_blocks": 1}, "views": {"size": 32, "resize": 36, "bank": "off"}}
    overrides |= {"schedule": {"steps": STEPS, "batch": 8}, "run": {"workers": 0, "watch": "off"}}
    overrides |= {"heads": {"hidden": 16, "warm_start": False}}

    def fit(folder: Path) -> None:
        found = Discoverer(3, preset="small", overrides=overrides, run=folder, cache=tmp_path / "cache")
        found.fit(paths, labels)

    def work() -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        at_call("debgcd.train.loop.step", step, lambda: os.kill(os.getpid(), signal.SIGINT))()
        try:
            fit(tmp_path / "run")
        except KeyboardInterrupt:
            return 7
        return 0

    assert forked(work, tmp_path / "log") == 7, (tmp_path / "log").read_text("utf-8")
    assert main(["resume", str(tmp_path / "run"), "--no-report"]) == 0
    fit(tmp_path / "whole")
    assert result(tmp_path / "run") == result(tmp_path / "whole")
