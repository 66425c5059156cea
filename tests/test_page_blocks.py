"""Blocks of the pages, run as they stand and in their order, on a few images and for a few steps: `make soak`.

All blocks are parsed or compiled in tests/test_pages.py. Run are those of the first steps and of the second week; many others need a hub, a
GPU, the published images, or names that only a large run has.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from miniatures import draw
from test_pages import BLOCK, ROOT
from tiers import soak

from debgcd.train import plan


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a reader: photos/, more/ and next_week/; few steps, and no cache but the tests'."""
    monkeypatch.setattr(plan, "FEWEST_STEPS", 2)
    monkeypatch.setattr(plan, "STEPS_PER_IMAGE", 0.0)
    monkeypatch.chdir(tmp_path)
    kinds = {"oak": "cat", "beech": "dog", "unlabelled": "owl"}
    for i in range(48):
        name = list(kinds)[i % 3]
        labelled = name != "unlabelled" and i % 2
        draw(tmp_path / "photos" / (f"labelled/{name}" if labelled else "unlabelled") / f"{i}.png", kinds[name], seed=i)
    for i in range(48, 72):
        draw(tmp_path / ("more" if i % 2 else "next_week") / f"{i}.png", list(kinds.values())[i % 3], seed=i)
    return tmp_path


def block(page: str, language: str, having: str) -> str:
    (found,) = [
        text for kind, text in BLOCK.findall((ROOT / page).read_text("utf-8")) if kind == language and having in text
    ]
    return found


def run_console(text: str, command: Callable) -> int:
    """Run the commands of a block; the page of a review, which is served until it is stopped, is tested elsewhere."""
    run = 0
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["debgcd"] and (words[1] != "review" or "--next" in words):
            said = command(*words[1:])
            assert said.code == 0, f"{line}\n{said.err}"
            run += 1
    return run


@soak
def test_the_commands_of_the_readme_and_of_later_images(photos: Path, command: Callable) -> None:
    assert run_console(block("README.md", "console", "debgcd check photos/"), command) == 5
    assert (photos / "runs/photos/report.html").exists() and (photos / "out.csv").exists()
    assert list((photos / "sorted").rglob("*.png"))
    (photos / "out.csv").unlink()
    for i in range(80, 92):
        draw(photos / "next_week" / f"{i}.png", "owl", seed=i)
    assert run_console(block("docs/later.md", "console", "debgcd add"), command) == 3


@soak
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_first_lines_of_python(photos: Path, page: str) -> None:
    code = block(page, "python", "Discoverer().fit(paths, labels)")
    paths = sorted((photos / "photos").rglob("*.png"))
    labels = [path.parent.name if path.parent.parent.name == "labelled" else None for path in paths]
    names = {"paths": paths, "labels": labels, "new_paths": sorted((photos / "more").glob("*.png"))}
    exec(compile(code, page, "exec"), names)
    assert re.match("oak|beech|new-", names["discoverer"].predict_labels(paths)[0])  # type: ignore[attr-defined]
