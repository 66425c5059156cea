"""`debgcd predict`, stopped and repeated: the table is that of one go, whatever happened to parts and images in between."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from miniatures import draw
from shared_runs import SharedRuns

from debgcd.infer import predict as module

pytestmark = pytest.mark.tries("damaged parts of a prediction", "survived")

Command = Callable[..., Any]
STOP = 3  # parts that are kept


class Stopped(Exception):
    """The machine fails."""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for i in range(14):
        draw(tmp_path / "more" / f"{i:02d}.png", ("cat", "dog", "owl")[i % 3], 500 + i)
    return tmp_path / "more"


@pytest.fixture
def stopped(
    shared_runs: SharedRuns, images: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Any]:
    """A prediction in parts of three that was stopped after three of five; stopped() repeats the command."""
    run = shared_runs.whole("sskmeans")
    monkeypatch.setattr(module, "UNIT", 3)
    add, count = module.Parts.add, []

    def fail(self: module.Parts, part: module.Part) -> None:
        if len(count) == STOP:
            raise Stopped
        count.append(part)
        add(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(module.Parts, "add", fail)
        with pytest.raises(Stopped):
            command("predict", run, images, "-o", tmp_path / "out.csv")
    return lambda: command("predict", run, images, "-o", tmp_path / "out.csv")


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images that a model was asked about."""
    names: list[str] = []
    original = module.ask

    def ask(model: Any, usable: Any, workers: Any = None) -> Any:
        names.extend(path.name for path in usable.paths)
        return original(model, usable, workers)

    monkeypatch.setattr(module, "ask", ask)
    return names


def rows(path: Path) -> dict[str, dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return {Path(row["path"]).name: row for row in csv.DictReader(file)}


def in_one_go(run: Path, images: Path, out: Path, command: Command) -> bytes:
    assert command("predict", run, images, "-o", out).code == 0
    return out.read_bytes()


PARTIAL = ".out.csv.partial"
FAULTS: dict[str, tuple[Callable[[Path], object], set[int]]] = {
    "nothing": (lambda folder: None, set(range(9, 14))),
    "a truncated part": (lambda folder: os.truncate(folder / "000000000006-0", 40), {3, 4, 5, *range(9, 14)}),
    "a longer part": (
        lambda folder: shutil.copyfile(folder / "000000000003-0", folder / "000000000006-0"),
        {3, 4, 5, *range(9, 14)},
    ),
    "a deleted part": (lambda folder: (folder / "000000000003-0").unlink(), {0, 1, 2, *range(9, 14)}),
    "no list of what was skipped": (
        lambda folder: (folder / "000000000009.skipped.json").unlink(),
        set(range(6, 14)),
    ),
    "no state": (lambda folder: (folder / "state.json").unlink(), set(range(14))),
    "a damaged state": (lambda folder: (folder / "state.json").write_text('{"facts": 1}'), set(range(14))),
    "a state of another form": (
        lambda folder: (folder / "state.json").write_text((folder / "state.json").read_text().replace("rows", "lines")),
        set(range(14)),
    ),
    "all parts": (lambda folder: [path.unlink() for path in folder.glob("*-0")], set(range(14))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_parts_that_are_not_what_they_were_are_computed_again(
    stopped: Callable[[], Any],
    predicted: list[str],
    shared_runs: SharedRuns,
    images: Path,
    tmp_path: Path,
    command: Command,
    fault: str,
) -> None:
    damage, again = FAULTS[fault]
    damage(tmp_path / PARTIAL)
    said = stopped()
    assert said.code == 0 and "categories of 14 images" in said.out
    assert {int(name[:2]) for name in predicted} == again and len(predicted) == len(again)
    assert not (tmp_path / PARTIAL).exists()
    whole = in_one_go(shared_runs.whole("sskmeans"), images, tmp_path / "whole.csv", command)
    assert (tmp_path / "out.csv").read_bytes() == whole


def test_an_image_that_changed_gets_its_own_row(
    stopped: Callable[[], Any],
    predicted: list[str],
    shared_runs: SharedRuns,
    images: Path,
    tmp_path: Path,
    command: Command,
) -> None:
    """One of a part that was done; and one that became unusable is listed."""
    draw(images / "04.png", "owl", 77)
    (images / "00.png").write_bytes(b"no image")
    said = stopped()
    assert said.code == 0 and "categories of 13 images" in said.out
    assert {int(name[:2]) for name in predicted} == {*range(1, 6), *range(9, 14)}
    whole = in_one_go(shared_runs.whole("sskmeans"), images, tmp_path / "whole.csv", command)
    assert (tmp_path / "out.csv").read_bytes() == whole and "04.png" in rows(tmp_path / "out.csv")
    assert '00.png,"not-an-image: ' in (tmp_path / "out.skipped.csv").read_text("utf-8")


def test_a_part_that_is_damaged_before_the_parts_are_joined(
    stopped: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = module.Parts.finish

    def spoilt(self: module.Parts) -> Any:
        os.truncate(tmp_path / PARTIAL / "000000000006-0", 40)
        return finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(module.Parts, "finish", spoilt)
        said = stopped()
    assert said.code == 3 and "was changed while it was in use; repeat the command" in said.err
    assert not (tmp_path / "out.csv").exists()
    assert "categories of 14 images" in stopped().out
