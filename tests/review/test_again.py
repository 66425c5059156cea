"""`debgcd train --from RUN`: what is labelled then, which ids live on, and the guarantees of every run."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import draw
from PIL import Image
from quick import train_arguments

from debgcd.cli import main
from debgcd.data.manifest import Manifest
from debgcd.export.items import items
from debgcd.novelty.so_far import Origin
from debgcd.review.log import Log, read_review
from debgcd.run.categories import categories, read_categories
from debgcd.run.directory import finished_run
from debgcd.train.callbacks import Metrics
from debgcd.train.continue_run import Earlier, ReviewedRun, reviewed_images

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def reviewed(shared_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two known classes and four new categories, of which a reviewer named two, merged one and rejected images."""
    run = tmp_path_factory.mktemp("reviewed") / "run"
    assert main(train_arguments(shared_csv, run, "--k", "6", "--method", "sskmeans")) == 0
    with Log(run) as log:
        images = log.review.images
        log.act({"act": "move", "images": images[6:8], "to": "new-05"})
        log.act({"act": "name", "category": "new-05", "name": "owl"})
        log.act({"act": "name", "category": "new-03", "name": "fox"})
        log.act({"act": "reject", "images": [rejected(images)]})
        log.act({"act": "name", "category": "dog", "name": "hound"})
    return run


def rejected(images: list[str]) -> str:
    """The image that is rejected."""
    return images[5]


def table(path: Path) -> dict[str, dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return {row["path"]: row for row in csv.DictReader(file)}


def again(command: Command, run: Path, out: Path, *more: object) -> Any:
    return command("train", "--from", run, *more, "-o", out, "--no-report", "--method", "debgcd", *STEPS)


STEPS = [word for value in ("schedule.steps=8", "schedule.batch=8", "run.checkpoint_every=3", "heads.hidden=16",
                            "heads.projection_width=8", "run.watch=warn", "heads.warm_start=false") for word in ("--set", value)]  # fmt: skip


@pytest.fixture(scope="module")
def second(reviewed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    out = tmp_path_factory.mktemp("second") / "run"
    assert main(["train", "--from", str(reviewed), "-o", str(out), "--no-report", "--method", "debgcd", *STEPS]) == 0
    return out


def test_a_corrected_label_is_learned_and_exported(reviewed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(reviewed, run)
    own = {path: row["label"] for path, row in table(run / "manifest.csv").items() if row["label"]}
    (one, label), (other, _), (kept, right), *_ = own.items()
    better = next(name for name in own.values() if name != label)
    with Log(run) as log:
        log.act({"act": "label", "images": [one], "to": better})
        log.act({"act": "label", "images": [other], "to": None})
        log.act({"act": "label", "images": [kept], "to": right})  # looked at, and found right
    opened = finished_run(run)
    manifest, _ = reviewed_images(opened, tmp_path / "cache")
    now = dict(zip(map(str, manifest.paths), manifest.labels, strict=True))
    assert (now[one], now[other], now[kept]) == (better, None, right)
    exported = {str(item.picture): item.category.id for item in items(opened)}
    assert (exported[one], exported[kept]) == (better, right) and other not in exported


def test_what_was_accepted_is_labelled_by_its_id_and_what_was_rejected_is_out(reviewed: Path, second: Path) -> None:
    first, then, review = table(reviewed / "manifest.csv"), table(second / "manifest.csv"), read_review(reviewed)
    assert set(first) - set(then) == {rejected(review.images)}
    for path, row in then.items():
        status = review.status(path) if path in review.category else None
        assert row["label"] == (review.category[path] if status == "accepted" else first[path]["label"])
        truth = first[path]["truth"]
        assert row["truth"] == {"owl": "new-05"}.get(truth, truth)  # a truth that is a name, by its id
    assert {row["label"] for row in then.values()} >= {"cat", "dog", "new-03", "new-05"}
    found = {one.id: one for one in read_categories(second / "model", 4)}
    assert found["new-03"].known and found["new-03"].name == "fox" and found["new-05"].name == "owl"
    assert (
        found["dog"].name == "hound" and len(found) == 7
    )  # the six that were asked for, and one that began in the review
    config = (second / "config.yaml").read_text("utf-8")
    assert f"start: {(reviewed / 'model').absolute()}" in config and "method: debgcd" in config


def test_it_is_the_same_run_again_also_interrupted_and_whatever_the_truth(
    command: Command, reviewed: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(reviewed, tmp_path / "first"))
    text = (other / "manifest.csv").read_text("utf-8")
    (other / "manifest.csv").write_text(text.replace(",owl,", ",cat,"), "utf-8")
    real, calls = Metrics.write, []

    def write(self: Metrics, step: int, values: Any) -> None:
        real(self, step, values)
        calls.append(step)
        if len(calls) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "write", write)
        assert again(command, other, tmp_path / "run").code == 130
    with Log(other) as log:  # what comes later belongs to the next run
        log.act({"act": "name", "category": "new-02", "name": "elk"})
    assert command("resume", tmp_path / "run", "--no-report").code == 0
    for name in ("model/model.safetensors", "model/categories.json", "predictions.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (second / name).read_bytes(), name


def test_what_became_of_each_category_is_said(command: Command, reviewed: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(reviewed, tmp_path / "first"))
    said = command("train", "--from", run, "-o", tmp_path / "run", "--no-report")
    words = said.out.partition("What became of the categories of the run before:")[2]
    assert "new-05 (owl) is a known class now, with 2 images labelled" in words
    assert "new-01 is gone; its images: 6 in new-05 (owl)" in words  # they are owls
    assert (
        "3 images accepted, 1 rejected and left out, 10 still unlabelled; 4 known classes, 2 more than there"
        in said.err
    )
    (run / "decisions.jsonl").unlink()  # what categories.json says of the model's own is kept: fox
    assert command("name", run, "new-03+new-02=").code == 0
    said = command("train", "--from", run, "-o", tmp_path / "other", "--no-report")
    words = said.out.partition("What became of the categories of the run before:")[2]
    assert "new-02 was merged into new-03 (fox)" in words
    assert "new-01 lives on with 8 of its 8 images" in words  # by k-means on the same features
    assert [one.id for one in read_categories(tmp_path / "other" / "model", 3)][:3] == ["cat", "dog", "new-03"]
    ids = {row["id"] for row in table(tmp_path / "other" / "predictions.csv").values()}
    assert "new-01" in ids and "new-02" not in ids


def test_more_images_and_names_as_labels(command: Command, reviewed: Path, shared_folder: Path, tmp_path: Path) -> None:
    """Labels of more images may be names; images that are there already, or were rejected, change nothing."""
    more = tmp_path / "more"
    draw(more / "labelled" / "fox" / "f.png", "cat", seed=900)
    draw(more / "labelled" / "elk" / "e.png", "dog", seed=901)
    draw(more / "unlabelled" / "u.png", "owl", seed=902)
    for path in sorted((shared_folder / "unlabelled").glob("*.png")):
        (more / "unlabelled" / f"again-{path.name}").symlink_to(path)
    said = command("train", "--from", reviewed, more, "-o", tmp_path / "run", "--no-report")
    assert said.code == 0, said.err
    rows = table(tmp_path / "run" / "manifest.csv")
    labels = {Path(path).name: row["label"] for path, row in rows.items()}
    assert labels["f.png"] == "new-03" and labels["e.png"] == "elk" and labels["u.png"] == ""
    assert Path(rejected(read_review(reviewed).images)).name not in {
        Path(path).name.removeprefix("again-") for path in rows
    }


def test_what_was_there_is_not_new_whether_it_has_a_label_or_not() -> None:
    """A known class, a category named as a whole, one accepted in part, one that nobody judged, one rejected, one merged."""
    counts = {
        "cat": {"open": 3},
        "new-01": {"accepted": 4},
        "new-02": {"accepted": 1, "open": 2},
        "new-03": {"open": 2},
    }
    earlier = [Earlier(id, id, id == "cat", id, False, count) for id, count in counts.items()]
    earlier += [
        Earlier("new-04", "new-04", False, "new-04", True, {}),
        Earlier("new-05", "fox", False, "new-01", False, {}),
    ]
    labels = ("cat", "new-01", "new-02", None, None, None, None, None)
    paths = tuple(Path(f"{i}.png") for i in range(8))
    manifest = Manifest(paths, labels, (None,) * 8, ("train",) * 8, (None,) * 8)
    rows = {"3.png": 0, "4.png": 2, "5.png": 3, "6.png": 5}  # 7.png is a new image
    before = ReviewedRun("run", earlier, "new-06", rows)
    so_far = before.so_far(manifest)
    assert so_far.category.tolist() == [0, 1, 2, 0, 2, 3, 1, -1] and so_far.count == 4
    origin = so_far.origin
    assert origin[:3].tolist() == [Origin.GIVEN, Origin.NAMED, Origin.ACCEPTED]
    assert (origin[3:7] == Origin.FOUND).all()


def test_new_images_of_nothing_that_was_there_look_new(
    command: Command, reviewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was found is named; of the images that come then, half show something else."""
    run, more = Path(shutil.copytree(reviewed, tmp_path / "first")), tmp_path / "more"
    with Log(run) as log:
        for one in ("new-01", "new-02", "new-04"):
            log.act({"act": "name", "category": one, "name": f"kind {one}"})
    for i in range(20):
        draw(more / f"owl-{i}.png", "owl", 700 + i)
        Image.effect_mandelbrot((24, 24), (-2 - i / 30, -1.5, 1, 1.5), 60).convert("RGB").save(more / f"other-{i}.png")
    steps = ("--method", "pim", "--set", "k=8")
    said = command("train", "--from", run, more, "-o", tmp_path / "run", "--no-report", *steps)
    assert said.code == 0, said.err
    rows = table(tmp_path / "run" / "predictions.csv")
    new = {Path(path).name: row["looks_new"] == "true" for path, row in rows.items()}
    came = {name: found for name, found in new.items() if "-" in name}
    assert len(came) == 40 and not any(found for name, found in new.items() if name not in came)
    assert sum(found for name, found in came.items() if "other" in name) >= 16
    assert sum(found for name, found in came.items() if "owl" in name) <= 5
    assert {float(row["none_p"]) > 0.5 for path, row in rows.items() if new[Path(path).name]} == {True}


WRONG = {
    "nothing decided": ([], "nothing is accepted, named or rejected"),
    "a benchmark": (["--benchmark", "cub"], "--benchmark does not go with --from"),
    "a preset": (["--preset", "paper"], "--preset does not go with --from"),
    "another start": (["--start", "runs/x"], "--start does not go with --from"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_go_with_it_is_refused(command: Command, reviewed: Path, tmp_path: Path, case: str) -> None:
    more, says = WRONG[case]
    run = Path(shutil.copytree(reviewed, tmp_path / "first"))
    (run / "decisions.jsonl").unlink()
    rows = [{**row, "name": row["id"]} for row in json.loads((run / "model" / "categories.json").read_text("utf-8"))]
    (run / "model" / "categories.json").write_text(json.dumps(rows))
    refused = command("train", "--from", run, "-o", tmp_path / "run", *more)
    assert refused.code == 2 and says in refused.complaint and not (tmp_path / "run" / "config.yaml").exists()


def test_a_category_lives_on_where_more_than_half_of_its_images_are() -> None:
    ids = {"new-02": "elk", "new-07": "new-07", "new-03": "new-03"}
    earlier = [Earlier(id, name, False, id, False, {"open": 4}) for id, name in ids.items()]
    images = [Path(f"{i}") for i in range(14)]
    before = ReviewedRun("run", earlier, "new-09", {str(i): i // 4 for i in range(12)})
    #          new-02      new-07      new-03      not seen before
    category = [2, 2, 2, 1, 3, 3, 3, 3, 3, 3, 4, 4, 4, 5]
    found = before.name(categories(["cat", "dog"], 6), images, np.array(category))
    assert [(one.id, one.name) for one in found] == [
        *(("cat", "cat"), ("dog", "dog"), ("new-02", "elk"), ("new-07", "new-07")),
        *(("new-09", "new-09"), ("new-10", "new-10")),
    ]


@pytest.mark.parametrize(("dogs", "id"), [(3, "new-02"), (4, "new-09"), (5, "new-09")])
def test_a_category_that_took_images_of_known_classes_lives_on_unless_one_of_them_gave_as_many(
    dogs: int, id: str
) -> None:
    earlier = [Earlier(name, name, name != "new-02", name, False, {"open": 8}) for name in ("cat", "dog", "new-02")]
    was = [0] * 8 + [1] * 8 + [2] * 5
    before = ReviewedRun("run", earlier, "new-09", {str(i): row for i, row in enumerate(was)})
    category = [2] * 3 + [0] * 5 + [2] * dogs + [1] * (8 - dogs) + [2] * 4 + [0]
    found = before.name(categories(["cat", "dog"], 3), [Path(f"{i}") for i in range(21)], np.array(category))
    assert [one.id for one in found] == ["cat", "dog", id]


def test_replaced_images_do_not_keep_what_the_reviewer_said_of_others(
    command: Command, shared_folder: Path, tmp_path: Path
) -> None:
    """An accepted image is another picture now, a labelled one is gone: both are left out and named; the others stay."""
    images, run = shutil.copytree(shared_folder, tmp_path / "images"), tmp_path / "run"
    assert main(train_arguments(images, run, "--k", "4", "--method", "sskmeans")) == 0
    accepted, other = (images / "unlabelled" / name for name in ("11.png", "12.png"))
    with Log(run) as log:
        log.act({"act": "move", "images": [str(accepted), str(other)], "to": "dog"})
    draw(accepted, "owl", 900)
    (images / "labelled" / "cat" / "02.png").unlink()
    said = again(command, run, tmp_path / "second")
    assert said.code == 0
    assert f"left out, because they are not what {run} was trained on: " in said.err
    assert str(accepted) in said.err and "02.png" in said.err
    rows = table(tmp_path / "second" / "manifest.csv")
    assert str(accepted) not in rows and rows[str(other)]["label"] == "dog" and len(rows) == 22
    reasons = (tmp_path / "second" / "skipped.csv").read_text("utf-8")
    assert "11.png,changed: " in reasons and "02.png,missing: " in reasons
    said = again(command, run, tmp_path / "third", images)  # given as a new image it is one
    assert said.code == 0 and table(tmp_path / "third" / "manifest.csv")[str(accepted)]["label"] == ""
