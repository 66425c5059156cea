"""K left open: estimated, twice the estimate, pruned at the end; and asked alone."""

from __future__ import annotations

import csv
import errno
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Command = Callable[..., Any]


def config(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / "config.yaml").read_text("utf-8"))


@pytest.mark.parametrize("method", ["debgcd", "sskmeans"])
def test_an_open_k_is_estimated_and_written_down(train: Command, shared_csv: Path, tmp_path: Path, method: str) -> None:
    run = tmp_path / "run"
    assert train(shared_csv, run, "--k", "auto", "--method", method).code == 0
    estimate = json.loads((run / "estimate.json").read_text("utf-8"))
    assert 2 <= estimate["low"] <= estimate["k"] <= estimate["high"]
    assert (config(run)["k"], config(run)["prune"]) == (estimate["k"], True)
    categories = json.loads((run / "model" / "categories.json").read_text("utf-8"))
    assert 2 <= len(categories) <= estimate["k"]
    assert [category["category"] for category in categories] == list(range(len(categories)))
    model = json.loads((run / "model" / "config.json").read_text("utf-8"))
    assert model["config"]["k"] == len(categories)


def test_twice_the_estimate(train: Command, shared_csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(shared_csv, run, "--k", "2x").code == 0
    assert config(run)["k"] == 2 * json.loads((run / "estimate.json").read_text("utf-8"))["k"]


def test_a_given_k_is_kept_whether_used_or_not(train: Command, shared_csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = train(shared_csv, run, "--k", "20")
    assert said.code == 0
    with open(run / "predictions.csv", encoding="utf-8", newline="") as file:
        used = {row["id"] for row in csv.DictReader(file)}
    assert len(used) < 17, "fourteen unlabelled images do not fill twenty categories"
    assert f"among 14 unlabelled images; {20 - len(used)} categories have none." in said.out
    assert json.loads((run / "evaluation.json").read_text("utf-8"))["k"] == 20
    assert not (run / "estimate.json").exists()
    assert len(json.loads((run / "model" / "categories.json").read_text("utf-8"))) == 20


def test_a_pruned_run_can_be_measured_again_and_predicts(
    train: Command, command: Command, shared_csv: Path, shared_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(shared_csv, run, "--k", "20", "--set", "prune=true").code == 0
    categories = json.loads((run / "model" / "categories.json").read_text("utf-8"))
    assert len(categories) < 17, "fourteen unlabelled images do not fill eighteen new categories"
    before = (run / "evaluation.json").read_text("utf-8")
    assert json.loads(before)["k"] == len(categories)
    assert command("evaluate", run).code == 0
    assert (run / "evaluation.json").read_text("utf-8") == before
    assert command("predict", run, shared_folder / "unlabelled", "-o", tmp_path / "out.csv").code == 0


def test_zero_epochs_give_an_answer_with_novelty(train: Command, shared_csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(shared_csv, run, "--epochs", "0", "--k", "3", schedule__steps=0).code == 0
    assert config(run)["method"] == "pim"
    rows = (run / "predictions.csv").read_text("utf-8").splitlines()
    assert len(rows) == 15
    assert all(row.split(",")[6] for row in rows)
    scores = json.loads((run / "evaluation.json").read_text("utf-8"))["unlabelled"]
    assert scores["auroc"] is not None


def test_what_tells_known_from_new_is_an_option(train: Command, shared_csv: Path, tmp_path: Path) -> None:
    said = train(shared_csv, tmp_path / "a", "--detector", "vote", "--labelled-fraction", "0.5")
    assert said.code == 0, said.err
    detector = config(tmp_path / "a")["detector"]
    assert (detector["kind"], detector["labelled_fraction"]) == ("vote", 0.5)
    said = train(shared_csv, tmp_path / "b", "--detector", "distance", "--labelled-fraction", "0.5")
    assert said.code == 2 and "labelled_fraction is for the vote, not for distance" in said.err
    said = train(shared_csv, tmp_path / "c", "--detector", "wote")
    assert said.code == 2 and "must be one of one-vs-all, vote, distance" in said.err


def test_estimate_k_of_images_and_of_a_run(
    train: Command, command: Command, shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = command(
        "estimate-k", shared_csv, "--preset", "small", "--set", "views.size=32", "--plot", tmp_path / "k.png"
    )
    assert said.code == 0, said.err
    assert "categories, known and new (between" in said.out
    assert (tmp_path / "k.png").stat().st_size > 1000
    run = tmp_path / "run"
    assert train(shared_csv, run, "--k", "3").code == 0
    of_run = command("estimate-k", run, "--json")
    assert of_run.code == 0, of_run.err
    assert json.loads(of_run.out)["k"] >= 2
    for name, value in OF_IMAGES.items():
        said = command("estimate-k", run, name, value)
        assert said.code == 2 and said.complaint.startswith(
            f"debgcd: {name} cannot change the features of the finished run"
        )
    asked = []
    monkeypatch.setattr("debgcd.estimate.estimate", lambda *given: asked.append(given) or sys.exit(5))
    assert command("estimate-k", run, "--seed", "7").code == 5
    assert asked[0][2] == 7


def test_what_a_run_has_learned_does_not_change_the_estimate(
    train: Command, command: Command, shared_csv: Path, tmp_path: Path
) -> None:
    """Tuned features are pulled together around the K that the run was given; the frozen ones tell how many there are."""
    found = []
    for name, rate in (("untrained", 0), ("trained", 2)):
        assert train(shared_csv, tmp_path / name, "--k", "9", schedule__lr=rate).code == 0
        said = json.loads(command("estimate-k", tmp_path / name, "--json").out)
        found.append({key: value for key, value in said.items() if key != "seconds"})
    assert found[0] == found[1]


OF_IMAGES = {"--benchmark": "cub", "--root": ".", "--split": "stratified", "--preset": "small", "--quality": "fast"}
OF_IMAGES |= {"--backbone": "lite0", "--bank": "on", "--config": "c.yaml", "--set": "views.size=32"}


@pytest.mark.parametrize("place", ["k.foo", "k", ".", "folder.png", "nowhere/k.png"])
def test_a_plot_that_cannot_be_is_refused_before_the_work(
    command: Command, shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("debgcd.estimate.from_images", lambda *_: pytest.fail("the work has begun"))
    (tmp_path / "folder.png").mkdir()
    said = command("estimate-k", shared_csv, "--preset", "small", "--plot", tmp_path / place)
    assert said.code == 2 and "plot" in said.complaint


def test_a_plot_without_matplotlib_names_the_extra_to_install(
    command: Command, shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("debgcd.estimate.from_images", lambda *_: pytest.fail("the work has begun"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = command("estimate-k", shared_csv, "--preset", "small", "--plot", tmp_path / "k.png")
    assert said.code == 2 and "--plot needs the package matplotlib" in said.complaint
    assert "pip install 'debgcd[figures]'" in said.complaint


def test_a_plot_that_fails_does_not_take_the_estimate_with_it(
    command: Command, shared_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("PIL.Image.Image.save", full)
    said = command(
        "estimate-k", shared_csv, "--preset", "small", "--set", "views.size=32", "--plot", tmp_path / "k.png"
    )
    assert said.code == 3 and "No space left" in said.complaint
    assert "categories, known and new (between" in said.out


@pytest.mark.parametrize("text", ["many", "2.5", "x2", ""])
def test_a_k_that_is_none(command: Command, shared_csv: Path, text: str) -> None:
    said = command("train", shared_csv, "--k", text)
    assert said.code == 2
    assert "neither a number nor auto nor a factor such as 2x" in said.complaint


def test_fewer_than_the_known_classes(command: Command, shared_csv: Path) -> None:
    said = command("estimate-k", shared_csv, "--preset", "small", "--set", "views.size=32", "--max", "1")
    assert said.code == 2
    assert "2 classes are labelled already" in said.complaint


def test_where_nothing_tells_k_the_run_directory_stays_free(train: Command, tiny_folder: Path, tmp_path: Path) -> None:
    for path in (tiny_folder / "labelled").glob("*/0[2-9].png"):
        path.unlink()  # one labelled image a class
    run = tmp_path / "run"
    said = train(tiny_folder, run, "--k", "auto", "--method", "sskmeans")
    assert said.code == 3 and "set the number of categories with --k" in said.complaint
    assert train(tiny_folder, run, "--k", "5", "--method", "sskmeans").code == 0


def test_one_known_class_tells_little(command: Command, train: Command, tiny_folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(tiny_folder / "labelled" / "dog")
    said = train(tiny_folder, tmp_path / "run", "--k", "auto", "--method", "sskmeans")
    assert said.code == 0, said.err
    for heard in (said, command("estimate-k", tiny_folder, "--preset", "small", "--set", "views.size=32")):
        assert (
            "one known class cannot tell how wide a category is" in heard.err
            and "give K instead of estimating it" in heard.err
        )


def test_what_was_estimated_is_said_in_a_readable_line(train: Command, shared_csv: Path, tmp_path: Path) -> None:
    said = train(shared_csv, tmp_path / "run", "--k", "auto", "--method", "sskmeans")
    assert re.search(r"^categories: about \d+ \(\d+ to \d+\); K = \d+ \(choose another with --k\)$", said.err, re.M)
    assert "cannot tell how wide" not in said.err


def test_the_size_of_the_centre_crops_is_said(train: Command, shared_csv: Path, tmp_path: Path) -> None:
    said = train(shared_csv, tmp_path / "run", "--method", "sskmeans", "--bank", "on")
    assert "for the centre crops of 24 images" in said.err
