"""The complete method on docs/architecture.md: it is short, trains, resumes to the same bytes and predicts."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import at_call, debgcd, result

from debgcd import methods

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")
(TOY,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("debgcd.methods.sure")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(methods._PLACES, "sure", "sure.Sure")
    exec(compile(TOY, "docs/architecture.md", "exec"), module.__dict__)


def test_the_toy_has_forty_lines_of_code_at_most() -> None:
    assert len([line for line in TOY.splitlines() if line.strip()]) <= 40


def test_the_toy_of_the_page_trains_resumes_and_predicts(
    tmp_path: Path, shared_csv: Path, arguments: Callable[..., list[str]], command: Any
) -> None:
    def words(run: Path) -> list[str]:
        return arguments(shared_csv, run, "--method", "sure", "--cache", tmp_path / "cache", "--bank", "on", sure=0.2)

    whole, run = tmp_path / "whole", tmp_path / "run"
    assert debgcd(words(whole), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert debgcd(words(run), tmp_path / "log", at_call("debgcd.train.loop.step", 5, after=True)) < 0
    assert debgcd(["resume", run], tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert result(run) == result(whole)
    assert command("predict", run, run / "manifest.csv", "-o", tmp_path / "out.csv").code == 0
