"""What a reviewer split reaches every image that comes later: at once, undoable, with the model alone, and in ONNX."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from miniatures import draw
from quick import train_arguments
from tiers import soak

from debgcd import Discoverer
from debgcd.cli import main
from debgcd.errors import DataError
from debgcd.export.onnx import Whole
from debgcd.grow import splits
from debgcd.grow.splits import open_model
from debgcd.model.parts import Parts
from debgcd.review.log import LOG, Log, divided
from debgcd.run.parts_file import PARTS

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def mixed(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two known classes and one new category; not to be changed."""
    run = tmp_path_factory.mktemp("mixed") / "run"
    assert main(train_arguments(shared_folder, run, "--k", "3", "--method", "sskmeans")) == 0
    return run


@pytest.fixture
def run(mixed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mixed, tmp_path / "run"))


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that come later: of each kind, 6."""
    folder = tmp_path_factory.mktemp("later")
    for i in range(18):
        draw(folder / f"{i:02d}.png", ("cat", "dog", "owl")[i % 3], 500 + i)
    return folder


def ids(command: Command, place: Path, images: Path, out: Path) -> list[str]:
    assert command("predict", place, images, "-o", out, "--force").code == 0
    with open(out, encoding="utf-8", newline="") as file:
        return [row["id"] for row in csv.DictReader(file)]


def split(run: Path) -> str:
    """Split the largest category as its reviewer sees fit: a third of its images, and those most like them, leave it."""
    from debgcd.grow.features import run_features
    from debgcd.run.directory import open_run
    from debgcd.system.machine import cache_folder

    opened = open_run(run)
    feature = torch.nn.functional.normalize(run_features(opened, cache_folder(None)).float(), dim=1)
    row = {str(path): i for i, path in enumerate(opened.manifest.training_paths)}
    with Log(run) as log:
        of = max(log.review.categories.values(), key=lambda one: one.images).id
        images = log.review.members(of)
        near = [float(feature[row[image]] @ feature[row[images[0]]]) for image in images]
        part = [images[i] for i in np.argsort(near)[::-1][: len(images) // 3]]
        log.act({"act": "split", "category": of, "parts": {log.review.next_id(): part}})
    return of


def test_the_nearest_part_decides_at_once_and_until_it_is_undone(
    command: Command, run: Path, later: Path, tmp_path: Path
) -> None:
    before = ids(command, run, later, tmp_path / "out.csv")
    of = split(run)
    now = ids(command, run, later, tmp_path / "out.csv")
    assert [a for a, b in zip(before, now, strict=True) if a != of and a != b] == []
    inside = [b for a, b in zip(before, now, strict=True) if a == of]
    assert set(inside) == {of, "new-02"} == set(divided(run)[of])
    shutil.copytree(run / "model", tmp_path / "alone")
    assert ids(command, tmp_path / "alone", later, tmp_path / "out.csv") == now
    with Log(run) as log:
        log.act({"act": "name", "category": "new-02", "name": "finch"})
    found = Discoverer.load(run)
    labels = found.predict_labels(sorted(later.glob("*.png")))
    assert list(labels) == ["finch" if id == "new-02" else id for id in now]
    p = found.predict_proba(sorted(later.glob("*.png")))
    assert p.shape == (18, 4) and np.allclose(p.sum(1), 1, atol=1e-5)
    found.save(tmp_path / "saved")
    assert list(Discoverer.load(tmp_path / "saved").predict_labels(sorted(later.glob("*.png")))) == list(labels)
    with Log(run) as log:
        log.act({"act": "merge", "categories": ["new-02"], "into": of})
    assert ids(command, run, later, tmp_path / "out.csv") == before
    with Log(run) as log:
        for _ in range(3):
            log.undo()
    assert ids(command, run, later, tmp_path / "out.csv") == before and not (run / "model" / PARTS).exists()


def test_images_moved_out_of_a_category_take_those_like_them_along(
    command: Command, run: Path, later: Path, tmp_path: Path
) -> None:
    """Of a known class its labelled images stay; an image that was rejected is in no part."""
    with Log(run) as log:
        known, images = "cat", log.review.members("cat")
        log.act({"act": "move", "images": images[:1], "to": "dog"})
        log.act({"act": "reject", "images": images[1:2]})
    kept = {known: images[2:]} if images[2:] else {}
    assert divided(run)[known] == {"dog": images[:1], **kept}
    parts = open_model(run, tmp_path / "cache").parts
    assert parts is not None and list(parts.of) == [0, 0] and sorted(parts.to) == [0, 1]
    assert set(ids(command, run, later, tmp_path / "out.csv")) <= {"cat", "dog", "new-01"}


@soak
def test_onnx_has_the_parts(run: Path, tmp_path: Path) -> None:
    split(run)
    model = open_model(run, tmp_path / "cache", device="cpu")
    pixels = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert Whole(model)(pixels)[1].shape == (5, len(model.categories)) == (5, 4)
    assert main(["export", str(run), "--to", "onnx", "-o", str(tmp_path / "model.onnx")]) == 0  # compares the two


def test_damaged_parts_are_refused_and_a_run_that_may_only_be_read_says_so(
    command: Command, run: Path, later: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(command, run, later, tmp_path / "out.csv")
    split(run)

    def read_only(*args: object) -> None:
        raise PermissionError(13, "Permission denied", str(run))

    with monkeypatch.context() as patch:
        patch.setattr(splits, "_write", read_only)
        said = command("predict", run, later, "-o", tmp_path / "out.csv", "--force")
    assert said.code == 0 and "predicts without the splits of the last review" in said.err
    with open(tmp_path / "out.csv", encoding="utf-8") as file:
        assert [row["id"] for row in csv.DictReader(file)] == before
    open_model(run, tmp_path / "cache")
    place = run / "model" / PARTS
    whole = place.read_bytes()
    place.write_bytes(whole[:-4] + b"\xff\xfe\xfd\x3f")
    with pytest.raises(DataError, match="delete it to predict without splits"):
        open_model(run, tmp_path / "cache")
    place.write_bytes(whole[:40])  # not even its list can be read: made again
    assert open_model(run, tmp_path / "cache").parts is not None and place.read_bytes() == whole


def test_parts_of_a_category_that_is_no_more_are_left_out(run: Path, tmp_path: Path) -> None:
    """The log was edited, and the model is used without it before a command could follow."""
    of = split(run)
    open_model(run, tmp_path / "cache")
    (run / LOG).write_text("")
    entries = json.loads((run / "model" / "categories.json").read_text())
    (run / "model" / "categories.json").write_text(json.dumps(entries[:-1]))
    model = open_model(run / "model", tmp_path / "cache")
    assert model.parts is not None and set(model.parts.to) == {next(c.category for c in model.categories if c.id == of)}


def test_the_probability_of_a_category_goes_to_its_nearest_part() -> None:
    parts = Parts([1, 1], [1, 3], torch.eye(2), 4)
    feature, p = torch.tensor([[2.0, 1.0], [0.1, 0.3]]), torch.tensor([[0.2, 0.5, 0.3], [0.2, 0.7, 0.1]])
    expected = torch.tensor([[0.2, 0.5, 0.3, 0.0], [0.2, 0.0, 0.1, 0.7]])
    torch.testing.assert_close(parts(feature, p), expected)
