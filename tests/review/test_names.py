"""What a reviewer decided reaches every command, and the model on its own; predictions.csv stays what the model said."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import train_arguments

from debgcd import Discoverer
from debgcd.cli import main
from debgcd.errors import UsageError
from debgcd.review.log import LOG, Log, read_review

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(shared_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two known classes and four new categories."""
    run = tmp_path_factory.mktemp("named") / "run"
    assert main(train_arguments(shared_csv, run, "--k", "6", "--method", "sskmeans")) == 0
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def table(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_names_and_merges_go_everywhere(command: Command, run: Path, shared_folder: Path, tmp_path: Path) -> None:
    before = (run / "predictions.csv").read_bytes()
    said = {row["path"]: row for row in table(run / "predictions.csv")}
    assert command("predict", run, shared_folder / "unlabelled", "-o", tmp_path / "then.csv").code == 0
    assert command("name", run, "new-01+new-02=fox", "new-03=lynx", "dog=hound").code == 0
    moved, gone = list(said)[:2]
    with Log(run) as log:
        log.act({"act": "move", "images": [moved], "to": "new-05"})
        log.act({"act": "reject", "images": [gone]})

    def now(old: str) -> tuple[str, str]:
        id = {"new-02": "new-01"}.get(old, old)
        return id, {"new-01": "fox", "new-03": "lynx", "dog": "hound"}.get(id, id)

    # export: what the reviewer made of it
    assert command("export", run, "--to", "csv", "-o", tmp_path / "out.csv").code == 0
    for row in table(tmp_path / "out.csv"):
        if row["path"] == moved:
            assert (row["id"], row["category"], row["known"], row["review"]) == ("new-05", "6", "false", "accepted")
            continue
        id, name = now(said[row["path"]]["id"])
        assert (row["id"], row["name"]) == (id, name)
        accepted = row["path"] != gone and id in ("new-01", "new-03")
        assert row["review"] == ("rejected" if row["path"] == gone else "accepted" if accepted else "open")
    assert command("export", run, "--to", "coco", "-o", tmp_path / "coco.json").code == 0
    coco = json.loads((tmp_path / "coco.json").read_text("utf-8"))
    assert [each["name"] for each in coco["categories"]] == ["cat", "hound", "fox", "lynx", "new-04", "new-05"]
    assert len(coco["annotations"]) == 23  # without the rejected one
    assert {note["category_id"] for note in coco["annotations"]} <= {each["id"] for each in coco["categories"]}
    assert command("export", run, "--to", "folders", "-o", tmp_path / "sorted").code == 0
    folders = {place.name for place in (tmp_path / "sorted").iterdir()}
    assert "new-05" in folders and folders <= {"cat", "hound", "fox", "lynx", "new-04", "new-05"}
    assert command("export", run, "--to", "fiftyone", "-o", tmp_path / "fo").code == 0
    found = json.loads((tmp_path / "fo" / "labels.json").read_text("utf-8"))
    assert found["classes"] == ["cat", "hound", "fox", "lynx", "new-04", "new-05"]
    assert found["labels"][Path(moved).stem]["label"] == 5
    assert command("export", run, "--to", "labelstudio", "-o", tmp_path / "ls.json").code == 0
    tasks = {task["data"]["image"].rpartition("/")[2]: task for task in json.loads((tmp_path / "ls.json").read_text())}
    assert "predictions" not in tasks[Path(gone).name] and "annotations" in tasks[Path(moved).name]

    # predict, with the run and with its model alone, copied elsewhere
    for place in (run, tmp_path / "elsewhere"):
        if place != run:
            shutil.copytree(run / "model", place)
        assert command("predict", place, shared_folder / "unlabelled", "-o", tmp_path / "now.csv", "--force").code == 0
        for old, new in zip(table(tmp_path / "then.csv"), table(tmp_path / "now.csv"), strict=True):
            assert new["top1_id"] == new["id"]
            if new["id"] == "new-05":  # what looks like the image that was moved goes where that went
                assert old["id"] == said[moved]["id"]
                continue
            assert old["path"] != moved and (new["id"], new["name"]) == now(old["id"])
            assert new["category"] == {"3": "2"}.get(old["category"], old["category"])

    # evaluate and report
    assert "after the review" in command("evaluate", run).out
    scores = json.loads((run / "evaluation.json").read_text())
    assert scores["reviewed"]["gcd"]["images"] == 13 and scores["unlabelled"]["gcd"]["images"] == 14
    assert command("report", run).code == 0
    page = re.search(
        r"<script[^>]*application/json[^>]*>(.*?)</script>", (run / "report.html").read_text("utf-8"), re.S
    )
    assert page is not None
    categories = json.loads(page[1])["categories"]
    assert [(each["id"], each["name"]) for each in categories] == [
        *(("cat", "cat"), ("dog", "hound"), ("new-01", "fox"), ("new-03", "lynx")),
        *(("new-04", "new-04"), ("new-05", "new-05")),
    ]
    assert [each["size"] for each in categories] == [
        read_review(run).categories[each["id"]].images for each in categories
    ]
    assert (run / "predictions.csv").read_bytes() == before


def test_a_log_edited_by_hand_counts_at_the_next_command(command: Command, run: Path, tmp_path: Path) -> None:
    assert command("name", run, "new-01=fox").code == 0
    (run / LOG).write_text((run / LOG).read_text("utf-8").replace("fox", "vixen"), "utf-8")
    assert command("export", run, "--to", "csv", "-o", tmp_path / "out.csv").code == 0
    assert "vixen" in (run / "model" / "categories.json").read_text("utf-8")


WRONG = {
    "a typing error": (["new-1=fox"], "did you mean 'new-01'"),
    "no equals sign": (["new-01"], "CATEGORY=NAME"),
    "a name twice": (["new-01=fox", "new-02=fox"], "merge new-02 into new-01"),
    "two known classes": (["cat+dog=pet"], "is a known class"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_name_is_refused_and_nothing_is_changed(command: Command, run: Path, case: str) -> None:
    arguments, says = WRONG[case]
    assert command("name", run, "new-04=elk").code == 0
    before = (run / LOG).read_bytes()
    refused = command("name", run, "new-03=owl", *arguments)
    assert refused.code == 2 and says in refused.complaint
    assert (run / LOG).read_bytes() == before
    assert command("name", run / "nowhere", "new-01=x").code == 2


def test_names_given_by_name_and_into_a_known_class(command: Command, run: Path) -> None:
    assert command("name", run, "new-01=red fox", "red fox=a+b").code == 0
    assert command("name", run, "a+b=", "new-02+cat=", "new-03+new-04=").code == 0
    review = read_review(run)
    assert review.categories["new-01"].name == "new-01" and review.categories["new-02"].merged_into == "cat"
    assert review.categories["new-04"].merged_into == "new-03" and not review.categories["new-03"].named


@pytest.mark.parametrize("alone", [False, True])
def test_a_discoverer_renames_and_merges(run: Path, shared_folder: Path, tmp_path: Path, alone: bool) -> None:
    """With the run, by its log; with the model alone, until it is saved."""
    place = shutil.copytree(run / "model", tmp_path / "alone") if alone else run
    paths = sorted((shared_folder / "unlabelled").glob("*.png"))
    found = Discoverer.load(place)
    before, p = found.predict(paths), found.predict_proba(paths)
    found.rename("new-01", "fox").merge(["fox", "new-02"]).merge([4, 5], into="cat").rename("dog", "hound")
    assert [(each.name, each.merged_into) for each in found.categories_] == [
        *(("cat", None), ("hound", None), ("fox", None), ("fox", "new-01"), ("cat", "cat"), ("cat", "cat"))
    ]
    number = np.array([0, 1, 2, 2, 0, 0])
    np.testing.assert_array_equal(found.predict(paths), number[before])
    summed = found.predict_proba(paths)
    np.testing.assert_allclose(summed[:, 2], p[:, 2] + p[:, 3], rtol=1e-6)
    assert not summed[:, 3:].any() and (run / LOG).exists() == (not alone)
    labels = found.predict_labels(paths)
    assert set(labels) <= {"cat", "hound", "fox"} and labels[0] == ["cat", "hound", "fox"][number[before[0]]]
    with pytest.raises(UsageError, match="did you mean 'new-01'"):
        found.rename("new-1", "x")
    found.save(tmp_path / "saved")
    assert Discoverer.load(tmp_path / "saved").categories_ == found.categories_
    assert alone or Discoverer.load(place).categories_ == found.categories_
