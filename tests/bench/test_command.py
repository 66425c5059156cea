"""`debgcd bench`: what it takes, what it refuses, what it leaves behind."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debgcd.reproduce.bench import PARTS
from debgcd.reproduce.bench.session import Line, Session


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, Session]]:
    """Parts that measure nothing and note that they were asked; temporary folders are made in tmp_path."""
    from debgcd.reproduce.bench import measure

    calls: list[tuple[str, Session]] = []

    def part(name: str) -> Callable[[Session], list[Line]]:
        def measure(session: Session) -> list[Line]:
            calls.append((name, session))
            (session.folder / "weights").write_text("x")
            return [Line(name, "nothing", "s", 1.0)]

        return measure

    monkeypatch.setattr(measure, "MEASURES", {name: part(name) for name in PARTS})
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return calls


def test_without_a_name_all_parts_are_measured(command: Any, asked: Any, tmp_path: Path) -> None:
    said = command("bench", "-o", tmp_path / "new" / "results.json")
    assert said.code == 0
    assert [name for name, _ in asked] == list(PARTS)
    assert [line["part"] for line in json.loads((tmp_path / "new" / "results.json").read_text())["lines"]] == list(
        PARTS
    )
    assert not list((tmp_path / "temporary").iterdir())


def test_options(command: Any, asked: Any) -> None:
    assert command("bench", "predict", "step", "--repeats", 7, "--batch", 3, "--backbone-size", "vit-b16").code == 0
    assert [name for name, _ in asked] == ["step", "predict"]
    session = asked[0][1]
    assert session.repeats == 7
    assert [(shape.name, shape.batch) for shape in session.shapes] == [("ViT-B/16", 3)]


def test_both_backbones_are_measured_at_their_own_batches(command: Any, asked: Any) -> None:
    command("bench", "step")
    (_, session) = asked[0]
    assert [(shape.name, shape.batch) for shape in session.shapes] == [("ViT-S/16", 16), ("ViT-B/16", 8)]


@pytest.mark.parametrize(
    ("words", "part_of_answer"),
    [
        (["stpe"], "did you mean 'step'?"),
        (["step", "gpu"], "allowed: step, epoch"),
        (["--repeats", "0"], "--repeats must be at least 1, not 0"),
        (["--batch", "-1"], "--batch must be at least 1, not -1"),
        (["--backbone-size", "vit-h14"], "there is no 'vit-h14'"),
        (["-o", "."], "is a folder"),
    ],
)
def test_what_is_refused_before_any_work(command: Any, asked: Any, words: list[str], part_of_answer: str) -> None:
    said = command("bench", *words)
    assert said.code == 2
    assert part_of_answer in said.complaint
    assert not asked


def test_stopped_it_leaves_nothing_behind(
    command: Any, asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from debgcd.reproduce.bench import measure

    def stop(session: Session) -> list[Line]:
        raise KeyboardInterrupt

    monkeypatch.setitem(measure.MEASURES, "epoch", stop)
    (tmp_path / "results.json").write_text("older")
    said = command("bench", "-o", tmp_path / "results.json", "--force")
    assert said.code == 130
    assert [name for name, _ in asked] == ["step"]
    assert (tmp_path / "results.json").read_text() == "older"
    assert not list((tmp_path / "temporary").iterdir())
