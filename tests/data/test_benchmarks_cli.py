"""`debgcd check` and `debgcd train` with --benchmark: the paper's table beside what is there, and a run on it."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import miniatures
import numpy as np
import pytest
import yaml
from miniatures import Made, draw
from test_benchmarks import FORMS
from tiers import tiered
from tiny import NATIVE, hub_model

from debgcd import config as configuration
from debgcd.datasets import Facts, facts_of

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


END_TO_END = [*product(sorted(set(FORMS.values())), ("paper", "released"), ("debgcd", "simgcd"))]


@pytest.mark.parametrize(
    ("name", "preset", "method"), tiered([("cars", "released", "debgcd"), ("aircraft", "paper", "debgcd")], END_TO_END)
)
def test_a_preset_from_the_original_files_to_new_images(
    command: Command, tmp_path: Path, published: Published, name: str, preset: str, method: str
) -> None:
    """With a ViT as the hub has them, in miniature; all else is the preset's but for the sizes of views and heads."""
    made = next(maker for maker, of in FORMS.items() if of == name)(tmp_path / "sets")
    published(name, made)
    hub_model("vit", tmp_path / "vit")
    words = ["--benchmark", name, "--root", tmp_path / "sets", "--preset", preset, "--backbone", tmp_path / "vit"]
    words += ["--method", method, "--epochs", 2, "--workers", 0, "--cache", tmp_path / "cache", "--no-report"]
    sizes = [f"views.size={NATIVE}", f"views.resize={NATIVE + 4}", "heads.hidden=32", "heads.projection_width=8"]
    sizes += ["heads.detector_width=8"] if method == "debgcd" else []
    run = tmp_path / "run"
    said = command("train", *words, *(word for value in sizes for word in ("--set", value)), "-o", run)
    assert said.code == 0, said.err
    given, kept = yaml.safe_load((run / "config.yaml").read_text()), configuration.compose(preset, name, method=method)
    assert (given["preset"], given["views"]["decode"], given["views"]["bank"]) == (kept.preset, "exact", "off")
    assert given["k"] == facts_of(name).classes and given["model_kept"] == kept.model_kept
    assert given["schedule"]["lr"] == 0.1 and not given["heads"]["warm_start"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    per_epoch = len(made.train) // min(kept.schedule.batch, len(made.train))
    assert len(losses) == 2 * per_epoch and all(np.isfinite(losses))
    rows = list(csv.DictReader((run / "predictions.csv").open(encoding="utf-8", newline="")))
    labelled = sum(number in facts_of(name).old for _, number, _ in made.train) // 2
    assert len(rows) == len(made.train) - labelled
    scores = json.loads((run / "evaluation.json").read_text())
    assert scores["unlabelled"]["gcd"]["images"] == len(rows) and scores["test"]["gcd"]["images"] == len(made.test)
    assert all(0 <= scores["unlabelled"]["gcd"]["accuracy"][part] <= 1 for part in ("all", "old", "new"))
    place = tmp_path / "new"
    for at, kind in enumerate(("cat", "dog")):
        draw(place / f"{kind}.png", kind, at)
    assert command("predict", run, place, "-o", tmp_path / "out.csv").code == 0
    asked = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8", newline="")))
    assert len(asked) == 2 and all(0 <= int(row["category"]) < given["k"] for row in asked)


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
