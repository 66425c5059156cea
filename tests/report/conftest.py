"""One run for all tests of the report and the exports, with names made to break a page, and its report."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
import tiny
from hostile_names import CLASS, FILES
from miniatures import draw
from quick import train_arguments

from debgcd.cli import main
from debgcd.report.page import write_report
from debgcd.run.directory import Run, finished_run


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of 80 images and a run over them: hostile names, an exact duplicate, no bank."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = []
    for i in range(10):
        kind = ("cat", "dog")[i % 2]
        rows.append([draw(folder / f"l{i}.png", kind, i), CLASS if kind == "cat" else "dog", "", "train"])
    for i in range(70):
        kind = ("cat", "dog", "owl")[i % 3]
        name = FILES[i] if i < len(FILES) else f"u{i:02d}.png"
        rows.append([draw(folder / name, kind, 100 + i), "", CLASS if kind == "cat" else kind, "train"])
    shutil.copy(folder / "u10.png", folder / "u11.png")
    for i, kind in enumerate(["cat", "dog", "owl"] * 2):
        rows.append([draw(folder / f"t{i}.png", kind, 300 + i), "", CLASS if kind == "cat" else kind, "test"])
    table = folder / "hostile.csv"
    with open(table, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["path", "label", "truth", "split"], *rows])
    assert main(train_arguments(table, folder / "run", run__eval_every=1, heads__warm_start="true")) == 0
    return folder


@pytest.fixture(scope="session")
def run(hostile: Path) -> Run:
    return finished_run(hostile / "run")


@pytest.fixture(scope="session")
def page(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of that run; its images are all there."""
    place = tmp_path_factory.mktemp("page") / "report.html"
    write_report(run, place, tmp_path_factory.mktemp("cache"))
    return place


@pytest.fixture(scope="session")
def vit_run(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a tiny ViT with registers."""
    folder = tmp_path_factory.mktemp("vit")
    tiny.hub_model("dinov2_with_registers", folder / "backbone")
    words = train_arguments(shared_folder, folder / "run", "--backbone", folder / "backbone", schedule__steps=3)
    assert main(words) == 0
    return finished_run(folder / "run")
