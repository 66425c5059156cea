"""`debgcd add`, killed at every moment at which it touches a file: the batch is there as a whole or not at all, and adding it again is right."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from fault_table import Fault
from forks import forked
from layer import KINDS, Layer
from miniatures import draw
from quick import train_arguments
from tiers import SOAK, tiered

from debgcd.cli import main
from debgcd.review.log import added_batches, read_review
from debgcd.run.directory import finished_run


class Deadly(Layer):
    """Kills the process at the call that would fail."""

    def _pass(self, path: Any) -> None:
        try:
            super()._pass(path)
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def base(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    assert main(train_arguments(shared_folder, folder / "run", "--method", "sskmeans")) == 0
    for i in range(6):
        draw(folder / "later" / f"{i}.png", "owl", 700 + i)
    return folder


def words(base: Path, place: Path) -> list[str]:
    """The command on a copy of the run."""
    shutil.copytree(base / "run", place / "run")
    return ["add", str(place / "run"), str(base / "later"), "--cache", str(base / "cache")]


def files(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run / "added" / "0001").iterdir())}


@pytest.mark.parametrize("kind", tiered(["rename"], KINDS))
def test_killed_at_any_moment(base: Path, tmp_path: Path, kind: str, fault: Fault) -> None:
    counted, log = tmp_path / "calls", tmp_path / "log"
    whole = words(base, tmp_path / "whole")

    def count() -> int:
        with Deadly(tmp_path / "whole", kind).installed() as layer:
            code = main(whole)
        counted.write_text(str(layer.calls))
        return code

    assert forked(count, log) == 0, log.read_text("utf-8")
    reference, calls = files(tmp_path / "whole" / "run"), int(counted.read_text())
    assert calls
    for number in range(1, calls + 1) if SOAK else sorted({1, calls}):
        place = tmp_path / str(number)
        tried = words(base, place)

        def deadly(place: Path = place, number: int = number, tried: list[str] = tried) -> int:
            with Deadly(place, kind, number).installed():
                return main(tried)

        assert forked(deadly, log) == -signal.SIGKILL, log.read_text("utf-8")
        run = place / "run"
        there = len(read_review(run).added)
        assert len(finished_run(run).manifest) == len(finished_run(base / "run").manifest) + 6 * there
        code = forked(lambda tried=tried: main(tried), log)  # type: ignore[misc]
        assert code == (2 if there else 0), log.read_text("utf-8")  # 2: these images are in the run already
        assert [batch.number for batch in added_batches(run)] == ["0001"] and files(run) == reference
        fault(f"killed while images are added ({kind})", "survived")
        shutil.rmtree(place)
