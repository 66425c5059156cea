"""`debgcd train --from` knows at least what the run before and `add` know: categories live on, and only what fits none is counted."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from debgcd.review.log import Log
from debgcd.run.directory import finished_run

Command = Callable[..., Any]
Later = Callable[..., Path]
AUTO = ("--epochs", 0, "--k", "auto", "--no-report")


def assigned(run: Path) -> dict[str, str]:
    with open(run / "predictions.csv", encoding="utf-8", newline="") as file:
        return {row["path"]: row["id"] for row in csv.DictReader(file)}


def test_categories_so_far_live_on_and_what_fits_none_is_counted(
    command: Command, run: Path, later: Later, tmp_path: Path
) -> None:
    before = assigned(run)
    said = command("train", "--from", run, later("first", cat=8, dog=8, owl=8, fox=12), "-o", tmp_path / "2", *AUTO)
    assert said.code == 0 and "categories: 3 so far, 1 in images of none of them; K = 4" in said.err
    assert "that of the run before" in said.out and not (tmp_path / "2" / "estimate.json").exists()
    now = assigned(tmp_path / "2")
    assert {image: now[image] for image in before} == before
    foxes = {id for image, id in now.items() if "fox" in image}
    assert foxes == {"new-02"} and sum(id == "new-02" for id in now.values()) == 12
    said = command("train", "--from", tmp_path / "2", "-o", tmp_path / "3", *AUTO)
    assert "categories: 4 so far, 0 in images of none of them; K = 4" in said.err
    again = assigned(tmp_path / "3")
    assert set(again.values()) == set(now.values()) and sum(again[image] != now[image] for image in now) <= 3


def test_a_category_that_began_in_the_review_and_a_batch_are_there_too(
    command: Command, run: Path, later: Later, tmp_path: Path
) -> None:
    with Log(run) as log:
        owls = log.review.members("new-01")
        log.act({"act": "split", "category": "new-01", "parts": {"new-02": owls[:5]}})
    assert command("add", run, later("first", cat=8, dog=8, owl=8, fox=12), "--new", 1).code == 0
    said = command("train", "--from", run, "-o", tmp_path / "2", *AUTO)
    assert "categories: 5 so far, 0 in images of none of them; K = 5" in said.err
    assert {id for image, id in assigned(tmp_path / "2").items() if "fox" in image} == {"new-03"}
    # a number that was given grows with what the reviewer and the batch began
    said = command("train", "--from", run, "-o", tmp_path / "3", "--epochs", 0, "--no-report")
    assert said.code == 0 and finished_run(tmp_path / "3").config.k == 5


def test_predict_counts_the_images_as_the_review_left_them(
    command: Command, run: Path, later: Later, tmp_path: Path
) -> None:
    def before(name: str) -> int:
        lines = command(
            "predict", run, later("three", cat=12, dog=12, owl=12), "-o", tmp_path / "p.csv", "--force"
        ).out.splitlines()
        (line,) = [line.split() for line in lines if line.split()[:1] == [name]]
        return int(line[-2])

    count = before("new-01")
    with Log(run) as log:
        owls = log.review.members("new-01")
        cats = log.review.members("cat")
        assert count == len(owls)
        log.act({"act": "reject", "images": owls[:2]})
        log.act({"act": "move", "images": cats[:1], "to": "new-01"})
    assert before("new-01") == count - 2 + 1
    manifest = finished_run(run).manifest
    labelled = next(str(path) for path, label in zip(manifest.paths, manifest.labels, strict=True) if label == "cat")
    count = before("cat")
    with Log(run) as log:
        log.act({"act": "label", "images": [labelled], "to": "dog"})
    assert before("cat") == count - 1
