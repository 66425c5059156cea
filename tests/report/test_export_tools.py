"""Exports for other tools: MegaDetector's format there and back, and the table of embedding-atlas."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from hostile_names import CLASS
from miniatures import draw
from PIL import Image

from debgcd.data.sources import read_manifest
from debgcd.export.atlas import neighbours
from debgcd.review.log import Log, reviewed_predictions
from debgcd.run.directory import Run

Command = Callable[..., Any]


def valid(found: dict[str, Any]) -> None:
    """MegaDetector's format 1.6, as its specification has it."""
    assert found["info"]["format_version"] == "1.6" and set(found) <= {"info", "images", *CATEGORIES}
    for name in CATEGORIES:
        assert all(key.isdigit() and text.strip() for key, text in found[name].items())
    for image in found["images"]:
        assert isinstance(image["file"], str)
        if image.get("failure") is not None:
            assert isinstance(image["failure"], str) and image["detections"] is None
            continue
        for one in image["detections"]:
            assert one["category"] in found["detection_categories"] and isinstance(one["conf"], float)
            assert len(one["bbox"]) == 4 and all(0 <= value <= 1 for value in one["bbox"])
            scores = [score for _, score in one.get("classifications", [])]
            assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)
            assert all(key in found["classification_categories"] for key, _ in one.get("classifications", []))


CATEGORIES = ("detection_categories", "classification_categories")


def test_megadetector_without_boxes(command: Command, run: Run, tmp_path: Path) -> None:
    """Whole images, absolute paths; what was skipped, or changed since, has a failure."""
    away = shutil.move(run.folder.parent / "u40.png", tmp_path / "away.png")
    try:
        assert command("export", run.folder, "--to", "megadetector", "-o", tmp_path / "md.json").code == 0
    finally:
        shutil.move(away, run.folder.parent / "u40.png")
    found = json.loads((tmp_path / "md.json").read_text("utf-8"))
    valid(found)
    assert list(found["classification_categories"].values()) == [CLASS, "dog", "new-01"]
    images = {Path(image["file"]).name: image for image in found["images"]}
    assert images["u40.png"]["failure"].startswith("missing") and len(images) == 80
    said = {Path(row["path"]).name: row for row in reviewed_predictions(run.folder)[0]}
    (one,) = images["u20.png"]["detections"]
    assert one["bbox"] == [0, 0, 1, 1] and one["classifications"][0][0] == str(said["u20.png"]["category"])
    assert one["classifications"][0][1] == pytest.approx(said["u20.png"]["top1_p"], abs=1e-4)
    assert images["l1.png"]["detections"][0]["classifications"] == [["1", 1.0]]  # a dog, by its label


def test_megadetector_there_and_back(command: Command, tmp_path: Path) -> None:
    """A run on detections; OUT is the same file with categories, and a person's word counts as 1."""
    images = []
    for i in range(14):
        kind = ("cat", "dog", "owl")[i % 3]
        name = f"labelled/{kind}/{i}.png" if i < 6 and kind != "owl" else f"u/{i}.png"
        draw(tmp_path / name, kind, i)
        boxes = [[0.0, 0.0, 1.0, 1.0], [0.25, 0.25, 0.5, 0.5]][: 1 + (i > 9)]
        found = [{"category": "1", "conf": 0.9, "bbox": box, "classifications": [["9", 0.5]]} for box in boxes]
        found.append({"category": "2", "conf": 1, "bbox": [0, 0, 0.5, 0.5]})
        images.append({"file": name, "detections": found, "datetime": f"2025:01:{1 + i:02d} 10:00:00"})
    images.append({"file": "bad.png", "failure": "Failure image access", "detections": None})
    images.append({"file": "blank.png", "detections": []})
    given = {
        "info": {"format_version": "1.6", "detector": "md_v5a.0.0.pt"},
        "detection_categories": {"1": "animal", "2": "person"},
        "classification_categories": {"9": "of another classifier"},
        "images": images,
    }
    place, run = tmp_path / "md.json", tmp_path / "run"
    place.write_text(json.dumps(given))
    words = ["train", place, "-o", run, "--k", 3, "--epochs", 0, "--no-report", "--set", "views.size=32"]
    assert command(*words).code == 0
    assert read_manifest(run / "manifest.csv").classes == ("cat", "dog")
    rows, _ = reviewed_predictions(run)
    with Log(run) as log:
        log.act({"act": "move", "images": [rows[0]["path"]], "to": "new-01"})
        log.act({"act": "reject", "images": [rows[1]["path"]]})
    out = tmp_path / "out.json"
    assert command("export", run, "--to", "megadetector", "--detections", place, "-o", out).code == 0
    told = json.loads(out.read_text("utf-8"))
    valid(told)
    assert [image["file"] for image in told["images"]] == [image["file"] for image in images]
    assert told["images"][14]["failure"].endswith("Failure image access") and told["images"][15]["detections"] == []
    said = {row["path"]: row for row in reviewed_predictions(run)[0]}
    for image in told["images"][:14]:
        *animals, person = image["detections"]
        assert "classifications" not in person and len(animals) == (2 if int(Path(image["file"]).stem) > 9 else 1)
        for one in animals:
            x, y, w, h = (round(24 * value) for value in one["bbox"])
            row = said.get(f"{tmp_path / image['file']}#xywh={x},{y},{w},{h}")
            if row is None:
                label = "0" if "cat" in image["file"] else "1"
                assert one["classifications"] == [[label, 1.0]]
            elif row["review"] == "rejected":
                assert "classifications" not in one
            else:
                number = str(row["category"])
                assert one["classifications"][0][0] == number
                assert (one["classifications"] == [[number, 1.0]]) == (row["review"] == "accepted")
    assert (
        "none of the images"
        in command("export", run, "--to", "megadetector", "--detections", empty(tmp_path), "-o", tmp_path / "x").err
    )
    assert (
        "--detections is for"
        in command("export", run, "--to", "csv", "--detections", place, "-o", tmp_path / "x").complaint
    )
    assert (
        "is an input"
        in command("export", run, "--to", "megadetector", "--detections", place, "-o", place, "--force").complaint
    )


def empty(folder: Path) -> Path:
    """A file of detections of another run."""
    (folder / "other").mkdir()
    place = folder / "other" / "md.json"
    place.write_text(json.dumps({"info": {}, "detection_categories": {}, "images": []}))
    return place


def test_atlas(command: Command, run: Run, tmp_path: Path) -> None:
    """Neighbours are rows of the table, by the cosine of its own vectors; a vanished image is left out and named."""
    away = shutil.move(run.folder.parent / "u40.png", tmp_path / "away.png")
    try:
        said = command(
            "export", run.folder, "--to", "atlas", "-o", tmp_path / "a.parquet", "--cache", tmp_path / "cache"
        )
    finally:
        shutil.move(away, run.folder.parent / "u40.png")
    assert said.code == 0 and "u40.png (missing" in said.err
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert len(table["path"]) == 79 and sum(table["labelled"]) == 10
    assert list(table) == [
        "path",
        "thumbnail",
        "category",
        "id",
        "known",
        "labelled",
        "review",
        "novelty",
        "confidence",
        "x",
        "y",
        "neighbours",
        "vector",
    ]
    vector = np.array(table["vector"], np.float32)
    near = vector @ vector.T
    np.fill_diagonal(near, -np.inf)
    for i, found in enumerate(table["neighbours"]):
        assert found["distances"] == pytest.approx((1 - np.sort(near[i])[::-1][:10]).tolist(), abs=1e-5)
        assert near[i][found["ids"]] == pytest.approx(1 - np.array(found["distances"]), abs=1e-5)
    assert Image.open(io.BytesIO(table["thumbnail"][0]["bytes"])).format == "WEBP"
    rows = {row["path"]: row for row in reviewed_predictions(run.folder)[0]}
    for path, name, novelty in zip(table["path"], table["category"], table["novelty"], strict=True):
        assert path not in rows or (rows[path]["name"], np.float32(rows[path]["novelty"])) == (name, novelty)


def test_neighbours_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same from several blocks; of few images all the others."""
    points = np.random.default_rng(0).normal(size=(23, 5)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    whole = neighbours(points, 4)
    monkeypatch.setattr("debgcd.export.atlas.BLOCK", 7)
    assert neighbours(points, 4)[0] == whole[0]
    assert all(sorted([i, *ids]) == [0, 1, 2] for i, ids in enumerate(neighbours(points[:3])[0]))
