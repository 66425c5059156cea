"""`debgcd reproduce` as a user types it, on a set in miniature."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import miniatures
import pytest
from miniatures import Made

from debgcd.data.sources import read_manifest
from debgcd.datasets import Facts, read_benchmark
from debgcd.errors import DataError
from debgcd.reproduce.experiments import experiment
from debgcd.reproduce.run import Wish, plan
from debgcd.reproduce.table import result
from debgcd.train.train import train

Command = Callable[..., Any]
QUICK = []
for text in (
    "views.size=32",
    "views.resize=36",
    "views.bank_views=3",
    "schedule.batch=8",
    "schedule.steps=2",
    "heads.hidden=16",
):
    QUICK += ["--set", text]
for text in ("heads.projection_width=8", "heads.detector_width=8", "heads.warm_start=false", "run.workers=0"):
    QUICK += ["--set", text]


@pytest.fixture
def sets(tmp_path: Path, published: Callable[[str, Made], Facts]) -> Path:
    """A root with Oxford-IIIT Pet in miniature."""
    published("pets", miniatures.pets(tmp_path / "sets"))
    return tmp_path / "sets"


def test_the_list_names_every_table(command: Command) -> None:
    said = command("reproduce")
    assert said.code == 0
    for number in range(1, 19):
        assert f"Table {number}: " in said.out


def test_methods_are_chosen_on_the_command_line(command: Command, sets: Path, tmp_path: Path) -> None:
    words = ["reproduce", "ssb", "--scale", "small", "--sets", "pets", "--root", sets, "--seeds", 1, "--plan"]
    said = command(*words, "--methods", "gpc,orca", "-o", tmp_path / "out")
    assert said.code == 0 and "GPC" in said.out and "ORCA" in said.out and "SimGCD" not in said.out
    wrong = command(*words, "--methods", "gcp")
    assert wrong.code == 2 and "did you mean 'gpc'" in wrong.complaint


def test_a_table_from_the_first_run_to_the_page_and_again(command: Command, sets: Path, tmp_path: Path) -> None:
    words = ["reproduce", "auroc", "--scale", "small", "--sets", "pets", "--root", tmp_path, "--root", sets]
    words += ["--seeds", 1, "-o", tmp_path / "out", *QUICK]
    plan = command(*words, "--plan")
    assert plan.code == 0 and plan.out.count(" no  ") == 2 and not (tmp_path / "out").exists()
    said = command(*words)
    assert said.code == 0, said.err
    assert "2 runs: 0 done, 2 to do" in said.err and "| L_sdl + L_gcd + L_adl |" in said.out
    figure = tmp_path / "out" / "auroc-figures" / "pets-novelty.png"
    assert figure.is_file() and "](auroc-figures/pets-novelty.png)" in said.out
    assert not list((tmp_path / "out").rglob("report.html"))  # a grid of runs is not for looking at one by one
    written = json.loads((tmp_path / "out" / "auroc.json").read_text())
    assert {run["row"] for run in written["runs"]} == {"L_sdl", "L_sdl + L_gcd + L_adl"}
    assert all(0 <= run["unlabelled"]["auroc"] <= 100 and run["k"] == 37 for run in written["runs"])
    assert (tmp_path / "out" / "auroc.md").read_text() in said.out
    again = command(*words)
    assert again.code == 0 and "2 runs: 2 done, 0 to do" in again.err and again.out == said.out
    assert f"{QUICK[0]} {QUICK[1]}" in said.out and written["command"].startswith("debgcd reproduce auroc")
    broken = tmp_path / "out" / written["runs"][0]["folder"]
    (broken / "evaluation.json").write_text("{")
    damaged = command(*words)
    assert damaged.code == 3 and f"- pets · L_sdl · seed 0: {broken} cannot be used" in damaged.out
    assert "| L_sdl + L_gcd + L_adl |" in damaged.out


def test_table_1_counts_the_data_sets(command: Command, sets: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = command("reproduce", "datasets", "--root", sets, "--sets", "pets,cub", "-o", out)
    assert said.code == 0, said.err
    (row,) = [line for line in said.out.splitlines() if line.startswith("| Oxford")]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    counted = read_benchmark("pets", sets, tmp_path).to_json()["here"]
    # the paper's and ours in turn; it is not in the paper's table
    assert cells[::2] == ["–"] * 4 and cells[1::2] == [str(number) for number in counted.values()]
    assert "Not found:\n\n- CUB-200-2011: " in said.out and (out / "datasets.md").read_text() in said.out
    nothing = command("reproduce", "datasets", "--root", tmp_path)
    assert nothing.code == 3 and "none of the data sets was found" in nothing.err and "ImageNet" in nothing.err


def test_table_10_stands_beside_the_runs_with_an_estimated_k(
    command: Command, sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("debgcd.reproduce.run.finish", lambda cells, places: {})
    words = ["reproduce", "estimated-k", "--scale", "small", "--sets", "pets", "--root", sets, "--seeds", 1]
    words += ["--methods", "simgcd", "-o", tmp_path / "out", "--cache", tmp_path / "cache", *QUICK]
    said = command(*words)
    assert said.code == 3 and "some runs did not finish" in said.err
    (row,) = [line for line in said.out.split("## Table 10")[1].splitlines() if line.startswith("| Oxford")]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells[:3] == ["–", "–", "37"] and 19 <= int(cells[3]) <= 1000
    kept = json.loads(next((tmp_path / "out" / "pets").glob("k-*.json")).read_text())
    assert kept["way"] == "brent" and kept["k"] == int(cells[3])
    assert json.loads((tmp_path / "out" / "estimated-k.json").read_text())["estimates"] == {"pets": kept["k"]}
    again = command(*words)
    assert again.out == said.out and "estimating K" not in again.err


def test_the_digits_are_a_data_set_of_small_scale_that_needs_no_root(command: Command, tmp_path: Path) -> None:
    words = ["reproduce", "lambda-adl", "--sets", "digits", "--seeds", 1, "--plan", "-o", tmp_path / "out"]
    said = command(*words, "--scale", "small", "--cache", tmp_path / "cache")
    assert said.code == 0 and said.out.count("digits") >= 3, said.err
    assert len(list((tmp_path / "cache" / "digits" / "digits").iterdir())) == 1797
    full = command(*words)
    assert full.code == 2 and "no benchmark 'digits'" in full.err


def test_an_image_that_cannot_be_read_makes_no_result(sets: Path, tmp_path: Path) -> None:
    """A benchmark is used whole or not at all."""
    settings = ({"views": {"size": 32, "resize": 36, "bank": "off"}, "run": {"workers": 0}},)
    wish = Wish(
        *(experiment("ssb"), (sets,), tmp_path / "out", tmp_path / "cache"),
        scale="small",
        sets=("pets",),
        seeds=1,
        settings=settings,
    )
    one = next(each for each in plan(wish).cells if each.config.method == "kmeans")
    one.write()
    manifest = read_manifest(one.images.path)
    manifest.paths[0].unlink()  # the miniature's files are links to a few
    manifest.paths[0].write_bytes(b"")
    one.folder.mkdir()
    train(manifest, one.config, one.folder)
    with pytest.raises(DataError, match=r"some images cannot be read; see .*skipped\.csv"):
        result(one)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ablatoin", "--root", "."], "did you mean 'ablation'"),
        (["ssb"], "--root DIR"),
        (["ssb", "--root", ".", "--seeds", "0"], "at least 1"),
        (["ssb", "--root", ".", "--sets", "birds"], "no benchmark 'birds'"),
        (["ssb", "--root", ".", "--scale", "small", "--preset", "paper"], "omit --preset"),
        (["ssb", "--root", ".", "--set", "detector.wieght=1"], "did you mean 'detector.weight'"),
        (["ssb", "--root", ".", "--set", "method=kmeans"], "the experiment sets method itself"),
        (["ssb", "--root", ".", "--set", "seed=3"], "the experiment sets seed itself"),
        (["ssb", "--root", "nowhere"], "--root nowhere is not a folder"),
        (["ssb", "--root", ".", "--sets", ""], "no benchmark ''"),
        (["ssb", "--root", ".", "-o", "sets/a-file"], "is a file"),
        (["dinov2-ssb", "--root", ".", "--scale", "small"], "another backbone"),
        (["datasets"], "no --root given"),
        (["datasets", "--root", ".", "--methods", "gcd"], "datasets trains nothing, so --methods has no meaning"),
        (["datasets", "--root", ".", "--scale", "small"], "datasets counts whole data sets"),
        (
            ["depth", "--root", ".", "--set", "ablation.detector=false", "--set", "ablation.guidance=false"],
            "the same run",
        ),
    ],
)
def test_wrong_calls(
    command: Command, words: list[str], told: str, sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sets.parent)
    (sets / "a-file").touch()
    said = command("reproduce", *words)
    assert said.code in (2, 3) and told in said.err and "Traceback" not in said.err


def test_no_set_at_all(command: Command, tmp_path: Path) -> None:
    said = command("reproduce", "ssb", "--root", tmp_path, "-o", tmp_path / "out")
    assert said.code == 3
    for title in ("CUB", "Stanford Cars", "FGVC-Aircraft"):
        assert title in said.err


def test_a_set_that_is_missing_is_said_and_the_others_are_run(command: Command, sets: Path, tmp_path: Path) -> None:
    said = command(
        *("reproduce", "pets-herbarium", "--root", sets, "--seeds", 1, "-o", tmp_path / "out", "--plan"),
        *("--set", "backbone.name=lite0"),
    )
    assert said.code == 0 and "missing: Herbarium" in said.out and said.out.count("pets") >= 4


def test_a_run_that_fails_is_named_and_the_exit_code_says_so(
    command: Command, sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("debgcd.reproduce.run.finish", lambda cells, places: {cells[0].folder: "no such weights"})
    words = ["reproduce", "auroc", "--scale", "small", "--sets", "pets", "--root", sets, "--seeds", 1]
    said = command(*words, "-o", tmp_path / "out", *QUICK)
    assert said.code == 3 and "repeat the command" in said.err
    assert "Not run:\n\n- pets · L_sdl · seed 0: no such weights" in said.out
