"""The command line as a user sees it: what the commands write, print and accept."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from shared_runs import SharedRuns
from tiers import tiered

from debgcd.commands.output import print_scores
from debgcd.evaluate import score
from debgcd.methods import METHODS as THERE

COLUMNS = ["path", "category", "id", "name", "known", "confidence", "novelty"]
COLUMNS += ["top1_id", "top1_p", "top2_id", "top2_p", "top3_id", "top3_p", "looks_new", "none_p"]

CLUSTERED = ("gcd", "sskmeans", "xcon", "dccl", "gpc", "infosieve", "cipr")  # novelty by distance
HAS_NOVELTY = {name: name in ("debgcd", "detector", "pim", *CLUSTERED) for name in THERE}
METHODS = [name for name in THERE if not THERE[name].about.needs_vit]

Train = Callable[..., Any]
Command = Callable[..., Any]


def table(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("words", [["-c", "import debgcd"], ["-m", "debgcd.cli", "--help"]])
def test_nothing_heavy_is_imported_for_help(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words], capture_output=True, text=True, timeout=60, check=True
    )
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "debgcd" in imported
    assert not imported & {"torch", "transformers", "scipy", "sklearn", "pandas"}


def test_help_names_every_command(command: Command) -> None:
    said = command("--help")
    assert said.code == 0
    for name in ("demo", "check", "train", "resume", "evaluate", "predict"):
        assert f"\n    {name} " in said.out
    assert command().out == said.out  # no command at all: the same help


@pytest.mark.parametrize("method", METHODS)
def test_predictions(command: Command, shared_runs: SharedRuns, tmp_path: Path, method: str) -> None:
    ignored = shutil.ignore_patterns("checkpoints", "first")
    run = Path(shutil.copytree(shared_runs.whole(method), tmp_path / "run", ignore=ignored))
    assert (run / "predictions.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    rows = table(run / "predictions.csv")
    wanted = [row["path"] for row in table(shared_runs.csv) if not row["label"] and row["split"] == "train"]
    assert [row["path"] for row in rows] == wanted
    assert f"categories of {len(wanted)} unlabelled images: " in (shared_runs.folder / f"{method}.log").read_text()
    ids = ["cat", "dog", "new-01", "new-02"]
    for row in rows:
        assert ids[int(row["category"])] == row["id"] == row["name"] == row["top1_id"]
        assert row["known"] == ("true" if row["id"] in ("cat", "dog") else "false")
        assert row["confidence"] == row["top1_p"]
        shares = [float(row[f"top{i}_p"]) for i in (1, 2, 3)]
        assert 1 >= shares[0] >= shares[1] >= shares[2] >= 0 and sum(shares) <= 1 + 1e-5
        assert len({row[f"top{i}_id"] for i in (1, 2, 3)}) == 3
        assert (0 <= float(row["novelty"]) <= 1) if HAS_NOVELTY[method] else row["novelty"] == ""

    measured = (run / "evaluation.json").read_text()
    assert (json.loads(measured)["unlabelled"]["auroc"] is not None) == HAS_NOVELTY[method]
    assert command("evaluate", run).code == 0
    assert (run / "evaluation.json").read_text() == measured

    # the same images again, from the model folder alone
    out = tmp_path / "new" / "out.csv"
    said = command("predict", run, shared_runs.folder / "tiny" / "unlabelled", "-o", out)
    assert said.code == 0 and out.read_text().splitlines()[0] == ",".join(COLUMNS)
    again = table(out)
    assert [row["path"] for row in again] == wanted
    assert {row["looks_new"] for row in again} <= {"true", "false"}
    assert all((float(row["none_p"]) > 0.5) == (row["looks_new"] == "true") for row in again)
    kinds = Counter("none" if row["looks_new"] == "true" else row["known"] for row in again)
    text = (
        f"{kinds['true']} show a known class, {kinds['false']} a category found before, {kinds['none']} none of these"
    )
    assert text in said.out


@pytest.mark.parametrize("method", tiered(["debgcd"], METHODS))
def test_predict_says_what_training_said(
    train: Train, command: Command, shared_folder: Path, tmp_path: Path, method: str
) -> None:
    """Without a bank, whose tokens are rounded."""
    run, out = tmp_path / "run", tmp_path / "out.csv"
    assert train(shared_folder, run, "--method", method, "--k", 4, schedule__steps=6).code == 0
    assert command("predict", run, shared_folder / "unlabelled", "-o", out).code == 0
    for row, other in zip(table(out), table(run / "predictions.csv"), strict=True):
        assert row["category"] == other["category"]
        assert float(row["confidence"]) == pytest.approx(float(other["confidence"]), abs=1e-5)


def test_help_names_every_method(command: Command) -> None:
    told = " ".join(command("train", "--help").out.split())
    assert f"default debgcd; one of {', '.join(THERE)} " in told + " "


def test_fewer_than_three_categories(train: Train, shared_folder: Path, tmp_path: Path) -> None:
    assert train(shared_folder, tmp_path / "run", "--k", 2, schedule__steps=2).code == 0
    for row in table(tmp_path / "run" / "predictions.csv"):
        assert (row["top3_id"], row["top3_p"]) == ("", "") and row["top2_id"] in ("cat", "dog")


def test_predict_prints_without_an_output_file(
    train: Train, command: Command, shared_folder: Path, tmp_path: Path
) -> None:
    train(shared_folder, tmp_path / "run", "--method", "kmeans")
    image = shared_folder / "unlabelled" / "12.png"
    for source in (tmp_path / "run", tmp_path / "run" / "model"):
        said = command("predict", source, image)
        (row,) = csv.DictReader(said.out.splitlines())
        assert said.code == 0 and row["path"] == str(image) and list(row) == COLUMNS


def test_predict_lists_what_it_could_not_use(
    train: Train, command: Command, shared_folder: Path, tmp_path: Path
) -> None:
    train(shared_folder, tmp_path / "run", "--method", "kmeans")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "broken.jpg").write_bytes(b"no image")
    Image.new("RGB", (8, 8), "red").save(mixed / "good.png")
    assert command("predict", tmp_path / "run", mixed, "-o", tmp_path / "out.csv").code == 0
    assert [Path(row["path"]).name for row in table(tmp_path / "out.csv")] == ["good.png"]
    (skipped,) = table(tmp_path / "out.skipped.csv")
    assert skipped["file"] == str(mixed / "broken.jpg") and skipped["reason"]


def test_the_run_directory_is_complete(train: Train, shared_csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(shared_csv, run, schedule__steps=3).code == 0
    names = {"config.yaml", "manifest.csv", "skipped.csv", "metrics.jsonl", "checkpoints", "model", "predictions.csv"}
    names |= {"evaluation.json", "environment.json"}
    assert names <= {path.name for path in run.iterdir()}
    assert {path.name for path in (run / "model").iterdir()} == {
        "model.safetensors", "config.json", "categories.json", "README.md", "so_far.safetensors",
    }  # fmt: skip
    facts = json.loads((run / "model" / "config.json").read_text())
    assert facts["config"]["backbone"]["name"] == "lite0" and len(facts["config"]["backbone"]["sha256"]) == 64


def test_nothing_is_written_beside_the_run_and_the_cache(
    train: Train, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert train(tiny_folder, tmp_path / "run", "--bank", "on", "--cache", tmp_path / "cache").code == 0
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    mine = {tmp_path / "run", tmp_path / "cache"}
    assert before == {path: time for path, time in after.items() if not mine & {path, *path.parents}}


def test_the_run_goes_to_runs_by_default(
    command: Command, arguments: Callable[..., list[str]], shared_folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = arguments(shared_folder, tmp_path, "--method", "kmeans")
    at = words.index("-o")
    assert command(*words[:at], *words[at + 2 :]).code == 0
    assert (tmp_path / "runs" / "tiny" / "predictions.csv").exists()


def test_evaluate(train: Train, command: Command, shared_csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(shared_csv, run, schedule__steps=3)
    first = (run / "evaluation.json").read_bytes()
    (run / "evaluation.json").unlink()
    said = command("evaluate", run)
    assert said.code == 0 and "Accuracy on the unlabelled images: " in said.out and "test images: " in said.out
    full = command("evaluate", run, "--full").out
    assert "All" in full and "unlabelled" in full and "test" in full and "False New" in full
    assert (run / "evaluation.json").read_bytes() == first
    scores = json.loads(command("evaluate", run, "--json").out)
    assert scores["unlabelled"]["gcd"]["images"] == 14 and scores["test"]["gcd"]["images"] == 6
    assert set(scores["unlabelled"]["gcd"]["accuracy"]) == {"all", "old", "new"}


def test_check_counts(command: Command, shared_csv: Path, tmp_path: Path) -> None:
    small = ("--preset", "small", "--bank", "off", "--set", "views.size=32", "--set", "views.resize=36")
    found = json.loads(command("check", shared_csv, "--json", "--k", 4, *small).out)
    counts = {name: found[name] for name in ("images", "labelled", "unlabelled", "test", "with_truth")}
    assert counts == {"images": 30, "labelled": 10, "unlabelled": 14, "test": 6, "with_truth": 30}
    assert found["classes"] == {"cat": 5, "dog": 5}
    assert found["problem"] is None and found["plan"]["k"] == 4 and found["plan"]["batch"] == 24
    said = command("check", shared_csv, "--k", 4, *small)
    assert said.code == 0 and "10 labelled, 14 unlabelled, 6 in the test split" in said.out


def test_check_says_why_a_run_would_be_refused(command: Command, shared_folder: Path) -> None:
    said = command("check", shared_folder, "--preset", "small", "--k", 1)
    assert said.code == 3 and "a run would be refused" in said.complaint and "K is 1" in said.complaint
    found = json.loads(command("check", shared_folder, "--preset", "small", "--k", 1, "--json").out)
    assert "K is 1" in found["problem"] and found["plan"] is None


def test_train_accepts_the_manifest_of_check(command: Command, train: Train, tiny_folder: Path, tmp_path: Path) -> None:
    (tiny_folder / "unlabelled" / "broken.png").write_bytes(b"no image")
    listed = tmp_path / "listed.csv"
    small = ("--preset", "small", "--bank", "off", "--set", "views.size=32", "--set", "views.resize=36")
    assert command("check", tiny_folder, "--manifest", listed, "--k", 3, *small).code == 0
    for name, source in {"folder": tiny_folder, "csv": listed}.items():
        assert train(source, tmp_path / name, schedule__steps=2).code == 0
    same = [tmp_path / name / "predictions.csv" for name in ("folder", "csv")]
    assert same[0].read_bytes() == same[1].read_bytes()
    assert (tmp_path / "csv" / "manifest.csv").read_bytes() == listed.read_bytes()


ODD = [
    "a\nb.png",
    'quo"te,comma.png',
    "it's.png",
    "🦉.png",
    "<script>alert(1)</script>".replace("/", "∕") + ".png",
    "=1+1.png",
]


def test_odd_files_and_names(train: Train, command: Command, tiny_folder: Path, tmp_path: Path) -> None:
    """Whatever lies in the folder, the run finishes; what it could not use is listed with a reason."""
    free = tiny_folder / "unlabelled"
    whole = (free / "10.png").read_bytes()
    for i, name in enumerate(ODD):
        Image.new("RGB", (20, 20), (40 * i, 90, 90)).save(free / name)
    Image.new("RGB", (1, 1), "red").save(free / "dot.png")
    Image.new("RGB", (2000, 1), "red").save(free / "line.png")
    bad = {"empty.jpg", "half.png", "fifo.jpg", "folder.jpg", "text.png", "notes.txt"}
    (free / "empty.jpg").touch()
    (free / "half.png").write_bytes(whole[: len(whole) // 2])
    os.mkfifo(free / "fifo.jpg")
    (free / "folder.jpg").mkdir()
    (free / "text.png").write_text("no image")
    (free / "notes.txt").write_text("to do")
    run = tmp_path / "run"
    for bank in ("off", "on"):
        said = train(tiny_folder, run / bank, "--bank", bank, schedule__steps=3, schedule__batch=32)
        assert said.code == 0, said.err
        skipped = {Path(row["file"]).name: row["reason"] for row in table(run / bank / "skipped.csv")}
        assert set(skipped) == bad and all(skipped.values())
        names = [Path(row["path"]).name for row in table(run / bank / "predictions.csv")]
        assert len(names) == 14 + len(ODD) + 2
        assert {*ODD, "dot.png", "line.png"} <= set(names)
    assert command("predict", run / "off", free, "-o", tmp_path / "out.csv").code == 0
    assert {row["path"] for row in table(tmp_path / "out.csv")} == {str(free / name) for name in names}


PRESETS = ["small", "paper", "released"]
ONE_OF_EACH = ["debgcd", "sskmeans", "gcd", "uno", "orca", "gpc", "infosieve"]
SMALL = [*((name, "small") for name in ONE_OF_EACH), ("debgcd", "paper"), ("debgcd", "released")]


@pytest.mark.parametrize(("method", "preset"), tiered(SMALL, itertools.product(METHODS, PRESETS)))
def test_one_known_class(train: Train, tiny_folder: Path, tmp_path: Path, method: str, preset: str) -> None:
    (tiny_folder / "labelled" / "dog").rename(tmp_path / "away")
    said = train(tiny_folder, tmp_path / "run", "--method", method, "--preset", preset, schedule__steps=3)
    assert said.code == 0, said.err
    assert {row["id"] for row in table(tmp_path / "run" / "predictions.csv")} <= {"cat", "new-01", "new-02"}


@pytest.mark.parametrize("method", tiered(["debgcd", "simgcd", "gcd", "uno", "gpc"], METHODS))
def test_a_class_with_one_image(train: Train, tiny_folder: Path, tmp_path: Path, method: str) -> None:
    for path in sorted((tiny_folder / "labelled" / "dog").iterdir())[1:]:
        path.unlink()
    cold = (*CLUSTERED, "kmeans", "detector", "uno", "pim")
    warm = {} if method in cold else {"heads__warm_start": "true"}
    assert train(tiny_folder, tmp_path / "run", "--method", method, schedule__steps=6, **warm).code == 0


@pytest.mark.parametrize("k", [2, 24])
def test_the_least_and_the_most_categories(train: Train, shared_folder: Path, tmp_path: Path, k: int) -> None:
    """As many as there are known classes, and as many as there are images."""
    more = ("--k", k, "--set", "heads.warm_start=true")
    assert train(shared_folder, tmp_path / "run", *more, schedule__steps=2).code == 0
    assert len(json.loads((tmp_path / "run" / "model" / "categories.json").read_text())) == k


def test_a_check_that_finds_a_problem_says_so_in_its_exit_code_too(command: Command, shared_folder: Path) -> None:
    for more in ([], ["--json"]):
        assert command("check", shared_folder, "--k", 1, "--preset", "small", *more).code == 3


def test_a_run_inside_the_images_folder_is_refused(command: Command, tiny_folder: Path) -> None:
    said = command("train", tiny_folder, "--k", 3, "-o", tiny_folder / "run")
    assert said.code == 2 and "inside the images' folder" in said.complaint
    assert not (tiny_folder / "run").exists()


def test_what_cannot_be_used_is_listed_though_the_run_is_refused(command: Command, tmp_path: Path) -> None:
    for name in ("labelled/cat/a.png", "labelled/dog/b.png", "unlabelled/c.png", "unlabelled/d.png"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("not an image")
    assert command("train", tmp_path / "data", "--k", 3, "--preset", "small", "-o", tmp_path / "run").code == 3
    assert len((tmp_path / "run" / "skipped.csv").read_text().splitlines()) == 5


def test_a_known_class_without_a_usable_image_is_named(
    command: Command, train: Train, tiny_folder: Path, tmp_path: Path
) -> None:
    for path in (tiny_folder / "labelled" / "dog").iterdir():
        path.write_bytes(b"no image")
    line = "no image of 'dog' can be used: 1 of 2 known classes left"
    assert f"note: {line}" in command("check", tiny_folder, "--preset", "small", "--k", 3, "--set", "views.size=32").out
    assert f"known classes: {line}" in train(tiny_folder, tmp_path / "run", "--method", "sskmeans").err
    assert (
        f"known classes: {line}"
        in command("estimate-k", tiny_folder, "--preset", "small", "--set", "views.size=32").err
    )


def test_a_low_old_is_explained_where_names_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    """By Eq. 15's one matching every Old image is wrong here; by name none is."""
    misleading = score(truth=[0] * 3 + [1] * 9, predicted=[0] * 12, known=1)
    fair = score(truth=[0] * 9 + [1] * 3, predicted=[0] * 12, known=1)
    assert (misleading.accuracy.old, misleading.named) == (0.0, 1.0)
    print_scores({"unlabelled": {"gcd": misleading.to_json(), "auroc": None}})
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: "))
    assert "in their class: 100.0 % (unlabelled, gcd)" in note
    print_scores({"unlabelled": {"gcd": fair.to_json(), "auroc": None}})
    assert "note" not in capsys.readouterr().out


def test_new_photographs_are_turned_whatever_the_model_was_trained_on(
    train: Train, command: Command, shared_csv: Path, tmp_path: Path
) -> None:
    """The peers of a benchmark's model do not turn its images; a user's photographs always are."""
    run = tmp_path / "run"
    assert train(shared_csv, run, "--set", "views.upright=false").code == 0
    pixels = np.zeros((60, 90, 3), np.uint8)
    pixels[:, :30] = (255, 0, 0)
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "new").mkdir()
    Image.fromarray(pixels).save(tmp_path / "new" / "turned.png", exif=exif)
    Image.fromarray(np.ascontiguousarray(pixels[::-1].swapaxes(0, 1))).save(tmp_path / "new" / "upright.png")
    assert command("predict", run, tmp_path / "new", "-o", tmp_path / "out.csv").code == 0
    one, two = table(tmp_path / "out.csv")
    assert one["confidence"] == two["confidence"] and one["novelty"] == two["novelty"]


def test_a_run_ends_with_a_table_in_plain_words(train: Train, shared_csv: Path, tmp_path: Path) -> None:
    """Every category in use with its size, mean confidence and examples; 80 columns; none of the paper's terms."""
    said = train(shared_csv, tmp_path / "run", "--k", 4, schedule__steps=6)
    rows = table(tmp_path / "run" / "predictions.csv")
    lines = said.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("category"))
    assert all(len(line) <= 80 for line in lines[start : lines.index("", start)])
    assert lines[start].endswith(" examples")  # also where the names of files are shorter
    for name in {row["id"] for row in rows}:
        mine = [row for row in rows if row["id"] == name]
        line = next(line for line in lines[start:] if line.split()[0] == name)
        sure = sum(float(row["confidence"]) for row in mine) / len(mine)
        assert line.split()[1:4] == [
            mine[0]["known"].replace("true", "known").replace("false", "new"),
            str(len(mine)),
            f"{100 * sure:.0f}",
        ]
    new = sum(row["looks_new"] == "true" for row in rows)
    assert f"{new} of {len(rows)} images look new; " in said.out  # from so few labels no error can be stated
    assert "Training behaved normally." in said.out or "Warning: in training, " in said.out
    assert said.out.splitlines()[-1].endswith(f": debgcd review {tmp_path / 'run'}")
    assert not {"NMI", "ARI", "AUROC", "False New"} & set(said.out.split())


def test_long_names_and_many_files_fit_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    from debgcd.commands.output import print_summary
    from debgcd.run.categories import categories

    found = categories(["a class with a very long name indeed, " * 3, "b\x1b[31m"], 40)
    rows = [
        {"path": f"/x/{'long ' * 20}{i}.jpg", "category": i % 40, "confidence": 0.5, "looks_new": i % 2 == 0}
        for i in range(80)
    ]
    print_summary(rows, found, ["merged: \x1b[31m"], {})
    out = capsys.readouterr().out
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("category"))
    assert max(len(line) for line in lines[start : start + 31]) <= 80
    assert "... and 10 more" in out and "\x1b" not in out and "merged: " in out
