"""`debgcd check` and `debgcd train` with --benchmark: the paper's table beside what is there, and a run on it."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import miniatures
import pytest
import yaml
from miniatures import Made

from debgcd.datasets import Facts

Command = Callable[..., Any]
Published = Callable[[str, Made], Facts]

QUICK = ["--preset", "small", "--method", "kmeans", "--backbone", "lite0", "--workers", 0, "--bank", "off"]
QUICK += ["--set", "views.size=32", "--set", "views.resize=36"]


@pytest.fixture
def pets(tmp_path: Path, published: Published) -> Made:
    """Oxford-IIIT Pet in miniature, in tmp_path/sets."""
    made = miniatures.pets(tmp_path / "sets")
    published("pets", made)
    return made


def cells(text: str, first: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(first))[1:]


def test_check_prints_the_paper_beside(command: Command, tmp_path: Path, published: Published) -> None:
    made = miniatures.cifar10(tmp_path / "sets")
    published("cifar10", made)
    said = command(
        "check", "--benchmark", "CIFAR-10", "--root", tmp_path / "sets", "--cache", tmp_path / "cache", *QUICK
    )
    assert said.code == 0
    labelled = sum(label < 5 for _, label, _ in made.train) // 2
    assert cells(said.out, "here") == [str(labelled), "5", str(len(made.train) - labelled), "10"]
    assert cells(said.out, "paper") == ["12.5K", "5", "37.5K", "10"]
    assert "into 10 categories with kmeans" in said.out  # K is known, and nobody is asked for it


def test_check_without_a_row_in_the_paper(command: Command, tmp_path: Path, pets: Made) -> None:
    said = command("check", "--benchmark", "pets", "--root", tmp_path / "sets", *QUICK)
    assert said.code == 0 and cells(said.out, "paper") == ["-"] * 4 and "not in the paper's table" in said.out


def test_check_as_json_and_the_manifest(command: Command, tmp_path: Path, pets: Made) -> None:
    out = tmp_path / "pets.csv"
    said = command("check", "--benchmark", "pets", "--root", pets.folder, "--json", "--manifest", out, *QUICK)
    found = json.loads(said.out)
    labelled = sum(number < 19 for _, number, _ in pets.train) // 2
    assert found["benchmark"]["here"]["labelled"] == found["labelled"] == labelled
    assert found["benchmark"] | {"here": 0} == {
        "name": "pets",
        "folder": str(pets.folder),
        "split": "published",
        "here": 0,
        "paper": None,
    }
    with open(out, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(pets.train) + len(pets.test)
    assert all(row["truth"] and row["label"] in ("", row["truth"]) for row in rows)
    assert {row["split"] for row in rows if row["label"]} == {"train"}
    assert sum(row["label"] != "" for row in rows) == labelled


def test_a_stratified_half(command: Command, tmp_path: Path, pets: Made) -> None:
    said = command("check", "--benchmark", "pets", "--root", pets.folder, "--split", "stratified", "--json", *QUICK)
    sizes = {name: sum(row[2] == name for row in pets.train) // 2 for _, number, name in pets.train if number < 19}
    assert json.loads(said.out)["classes"] == sizes


def test_no_partial_manifest(command: Command, tmp_path: Path, pets: Made) -> None:
    (pets.folder / pets.train[0][0]).unlink()
    out = tmp_path / "pets.csv"
    for words in (["check", "--manifest", out], ["train", "-o", tmp_path / "run"]):
        said = command(*words, "--benchmark", "pets", "--root", tmp_path / "sets", *QUICK)
        assert said.code == 3 and pets.train[0][0] in said.complaint and "debgcd fetch pets" in said.complaint
    assert not out.exists() and not (tmp_path / "run").exists()


def test_train_on_a_benchmark(command: Command, tmp_path: Path, pets: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """K is the number of its classes; the run is named after it."""
    monkeypatch.chdir(tmp_path)
    small = ["heads.warm_start=false", "heads.hidden=16", "backbone.tuned_blocks=1", "schedule.steps=2"]
    words = [*QUICK, "--method", "simgcd", *(word for value in small for word in ("--set", value))]
    said = command("train", "--benchmark", "pets", "--root", "sets", *words)
    assert said.code == 0
    run = tmp_path / "runs" / "pets"
    assert yaml.safe_load((run / "config.yaml").read_text())["k"] == 37
    scores = json.loads((run / "evaluation.json").read_text())
    labelled = sum(number < 19 for _, number, _ in pets.train) // 2
    assert scores["unlabelled"]["gcd"]["images"] == len(pets.train) - labelled
    assert scores["test"]["gcd"]["images"] == len(pets.test)
    shutil.rmtree(tmp_path / "sets" / "oxford-iiit-pet" / "annotations")  # the run needs only its own manifest
    assert command("evaluate", run).code == 0


def test_check_says_which_preset_a_run_would_get(command: Command, tmp_path: Path, pets: Made) -> None:
    said = command("check", "--benchmark", "pets", "--root", pets.folder, *QUICK, "--preset", "released")
    assert said.code == 0 and "with kmeans, preset paper" in said.out
    assert "preset: paper, because nothing was released for Oxford-IIIT Pet with kmeans" in said.err.splitlines()


def test_k_can_be_another(command: Command, tmp_path: Path, pets: Made) -> None:
    words = ["--benchmark", "pets", "--root", tmp_path / "sets", *QUICK]
    (tmp_path / "k.yaml").write_text("k: 41\n")
    for more, k in ((["--k", 40], 40), (["--config", tmp_path / "k.yaml"], 41), (["--set", "k=42"], 42)):
        assert f"into {k} categories" in command("check", *words, *more).out


def test_a_run_inside_the_set_is_refused_and_beside_it_is_not(command: Command, tmp_path: Path, pets: Made) -> None:
    words = ["train", "--benchmark", "pets", "--root", tmp_path / "sets", *QUICK]
    said = command(*words, "-o", pets.folder / "run")
    assert said.code == 2 and "inside the images' folder" in said.complaint
    (tmp_path / "sets" / "run").mkdir()
    (tmp_path / "sets" / "run" / "thesis.tex").write_text("precious")
    assert "is not empty" in command(*words, "-o", tmp_path / "sets" / "run").complaint  # which is asked next


WRONG = {
    "nothing": ([], "no images given"),
    "both": (["photos", "--benchmark", "cub", "--root", "."], "both PATH"),
    "no root": (["--benchmark", "cub"], "needs --root DIR"),
    "a root alone": (["photos", "--root", "."], "need --benchmark"),
    "a split alone": (["photos", "--split", "stratified"], "need --benchmark"),
    "unknown": (["--benchmark", "cubs", "--root", "."], "did you mean 'cub'?"),
    "unknown split": (["--benchmark", "cub", "--root", ".", "--split", "random"], "--split"),
    "no such root": (["--benchmark", "cub", "--root", "nowhere"], "no folder"),
}


@pytest.mark.parametrize("name", ["check", "train"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls(command: Command, name: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, part = WRONG[case]
    said = command(name, *words)
    assert said.code == 2 and part in said.complaint
    assert list(tmp_path.iterdir()) == []
