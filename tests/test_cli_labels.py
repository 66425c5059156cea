"""Labels and images as people have them, on the command line: wrong labels, groups and boxes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import COLOURS, draw
from PIL import Image

from debgcd import Discoverer
from debgcd.data.image.crop import Crop
from debgcd.data.sources import read_manifest
from debgcd.run.directory import open_run

Command = Callable[..., Any]
SMALL = ("--preset", "small", "--backbone", "lite0", "--workers", 0, "--k", 3, "--method", "sskmeans")
SMALL += ("--set", "views.size=32", "--set", "views.resize=36")


def test_check_and_report_list_labels_that_look_wrong(command: Command, tiny_folder: Path, tmp_path: Path) -> None:
    wrong = draw(tiny_folder / "labelled" / "dog" / "99.png", "cat", seed=99)
    said = command("check", tiny_folder, *SMALL, "--labels", "--json")
    (doubt,) = json.loads(said.out)["doubts"]
    assert doubt["certainty"] >= 0.8 and said.code == 0
    assert {**doubt, "certainty": 1} == {"file": str(wrong), "label": "dog", "neighbours": "cat", "certainty": 1}
    said = command("check", tiny_folder, *SMALL, "--labels").out
    assert "labels that look wrong: 1 of 11" in said and str(wrong) in said
    assert json.loads(command("check", tiny_folder, *SMALL, "--json").out)["doubts"] is None
    assert command("train", tiny_folder, *SMALL, "--bank", "off", "-o", tmp_path / "run").code == 0
    row = f'<td class="path">labelled/dog/99.png</td><td>dog</td><td>cat</td><td class="number">{100 * doubt["certainty"]:.0f} %</td>'
    assert row in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_check_labels_needs_two_classes(command: Command, tiny_folder: Path) -> None:
    for path in (tiny_folder / "labelled" / "dog").iterdir():
        path.unlink()
    said = command("check", tiny_folder, *SMALL, "--labels")
    assert said.code == 0 and "note: labels cannot be compared with each other" in said.out


def test_check_warns_of_uneven_shares_and_torn_groups(command: Command, tmp_path: Path) -> None:
    rows = []
    for kind, labelled in {"cat": 3, "dog": 27}.items():
        for i in range(30):
            path = draw(tmp_path / f"{kind}{i}.png", kind, seed=i + 100 * labelled)
            rows.append([path.name, kind if i < labelled else "", "train", "a" if i == 29 else ""])
    rows += [[draw(tmp_path / "test.png", "cat", seed=7).name, "", "test", "a"]]
    with open(tmp_path / "m.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["path", "label", "split", "group"], *rows])
    said = command("check", tmp_path / "m.csv", *SMALL, "--labels").out
    assert "note: labels are given in uneven shares" in said and "around 'cat'" in said
    assert "note: groups with training and test images: 1, e.g. 'a'" in said
    assert "uneven" not in command("check", tmp_path / "m.csv", *SMALL).out


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    """One image with 24 objects in boxes, and the table of the boxes: three kinds, of which two have labels."""
    kinds = ["cat", "dog", "owl"] * 8
    noise = np.random.default_rng(0).normal(0, 25, (24, 24 * 24, 3))
    colours = np.repeat(np.array([COLOURS[kind] for kind in kinds]), 24, axis=0)
    Image.fromarray(np.clip(colours + noise, 0, 255).astype(np.uint8)).save(tmp_path / "sheet.png")
    rows = []
    for i, kind in enumerate(kinds):
        label = kind if i < 12 and kind != "owl" else ""
        rows.append(["sheet.png", label, kind, f"scene {i // 4}", 24 * i, 0, 24, 24])
    with open(tmp_path / "sheet.csv", "w", encoding="utf-8", newline="") as file:
        header = ["path", "label", "truth", "group", "x", "y", "w", "h"]
        csv.writer(file).writerows([header, *rows, ["sheet.png", "", "", "", 570, 0, 24, 24]])
    return tmp_path / "sheet.csv"


def test_a_run_on_boxes(command: Command, train: Command, sheet: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(sheet, run, "--bank", "on", detector__kind="vote", schedule__steps=4).code == 0
    with open(run / "predictions.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    image = sheet.parent / "sheet.png"
    assert [row["path"] for row in rows][-1] == f"{image}#xywh=552,0,24,24"
    assert len({row["path"] for row in rows}) == len(rows) == 16
    assert len({row["confidence"] for row in rows}) == 16  # no two crops were decoded as the same image
    (skipped,) = list(csv.DictReader((run / "skipped.csv").read_text("utf-8").splitlines()))
    assert skipped["file"] == f"{image}#xywh=570,0,24,24" and skipped["reason"].startswith("bad-box: ")
    manifest = open_run(run).manifest
    assert manifest.paths[1] == Crop(image, (24, 0, 24, 24)) and manifest.groups[5] == "scene 1"
    assert len(set((run / "images.sha256").read_text("utf-8").splitlines())) == 24

    first = (run / "predictions.csv").read_bytes()
    assert command("predict", run, sheet, "-o", tmp_path / "out.csv").code == 0
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        again = {row["path"]: row["category"] for row in csv.DictReader(file)}
    assert len(again) == 24 and all(again[row["path"]] == row["category"] for row in rows)

    (run / "predictions.csv").unlink()
    text = (run / "manifest.csv").read_text("utf-8")
    (run / "manifest.csv").write_text(text.replace(",24,0,24,24", ",24,0,24,23"), "utf-8")
    assert "images.sha256 lists other images" in command("resume", run).complaint
    (run / "manifest.csv").write_text(text, "utf-8")
    assert command("resume", run).code == 0 and (run / "predictions.csv").read_bytes() == first
    exports_of_boxes(command, run, image, tmp_path)
    assert command("report", run).code == 0
    assert '"sheet.png#xywh=552,0,24,24"' in (run / "report.html").read_text(
        "utf-8"
    )  # boxes of one file have names of their own


def exports_of_boxes(command: Command, run: Path, image: Path, out: Path) -> None:
    """coco and labelstudio say where the 24 boxes are, folders have the crops."""
    for to in ("coco", "labelstudio", "folders", "hf", "fiftyone"):
        assert command("export", run, "--to", to, "-o", out / to).code == 0
    coco = json.loads((out / "coco").read_text("utf-8"))
    (only,) = coco["images"]
    assert (only["file_name"], only["width"], only["height"]) == (str(image), 576, 24)
    assert sorted(note["bbox"] for note in coco["annotations"]) == [[24 * i, 0, 24, 24] for i in range(24)]
    assert sum("score" in note for note in coco["annotations"]) == 16

    (task,) = json.loads((out / "labelstudio").read_text("utf-8"))
    (given,), (said,) = task["annotations"], task["predictions"]
    assert len(given["result"]) == 8 and len(said["result"]) == 16
    for region in (*given["result"], *said["result"]):
        place = region["value"]
        assert place["rectanglelabels"] and place["height"] == 100 and place["width"] == pytest.approx(100 / 24)
    assert given["result"][0]["value"]["rectanglelabels"] == ["cat"] and given["result"][1]["value"]["x"] == 100 / 24

    manifest = read_manifest(out / "folders")  # all of them in folders of categories
    assert len(manifest) == 24 and not manifest.skipped and {"cat", "dog"} <= set(manifest.classes)
    second = np.asarray(Image.open(out / "folders" / "dog" / "sheet_24_0_24_24.png"))
    assert (second == np.asarray(Image.open(image))[:, 24:48]).all()
    with open(out / "hf" / "metadata.csv", encoding="utf-8", newline="") as file:
        assert all((out / "hf" / row["file_name"]).is_file() for row in csv.DictReader(file))
    names = json.loads((out / "fiftyone" / "labels.json").read_text("utf-8"))["labels"]
    assert {path.stem for path in (out / "fiftyone" / "data").iterdir()} == set(names) and len(names) == 24
    assert "use --link copy" in command("export", run, "--to", "hf", "-o", out / "x", "--link", "hard").complaint


def test_groups_count_in_a_run(train: Command, sheet: Path, tmp_path: Path) -> None:
    without = sheet.with_name("without.csv")
    without.write_text(re.sub(r"scene \d", "", sheet.read_text("utf-8")), "utf-8")
    runs = [tmp_path / "with", tmp_path / "without"]
    for source, run in zip([sheet, without], runs, strict=True):
        assert train(source, run, "--bank", "on", detector__kind="vote", schedule__steps=2).code == 0
    one, two = (open_run(run) for run in runs)
    assert one.digest != two.digest and one.predictions.read_bytes() != two.predictions.read_bytes()


def test_discoverer_takes_groups(tiny_folder: Path, tmp_path: Path) -> None:
    paths = sorted(tiny_folder.rglob("*.png"))
    y = [path.parent.name if path.parent.name != "unlabelled" else None for path in paths]
    fast = {"schedule": {"steps": 1}, "views": {"size": 32, "resize": 36, "bank": "off"}}
    found = Discoverer(3, preset="small", method="sskmeans", backbone="lite0", run=tmp_path / "run", overrides=fast)
    found.fit(paths, y, groups=[i // 4 or None for i in range(len(paths))])
    assert open_run(tmp_path / "run").manifest.groups == tuple(
        str(i // 4) if i // 4 else None for i in range(len(paths))
    )
