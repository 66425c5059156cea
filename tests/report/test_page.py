"""The report as a file: safe with hostile names, complete without some images, written when it should be."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hostile_names import BAD, CLASS, FILES
from quick import train_arguments

from debgcd.cluster.estimate_k import Estimate
from debgcd.report.page import _figures, write_report
from debgcd.run.directory import Run, finished_run
from debgcd.system.files import write_json

Command = Callable[..., Any]


class Parsed(HTMLParser):
    """The tags of a page with their attributes, and the text of its data block."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") == "data"

    def handle_data(self, data: str) -> None:
        self.data += data if self._inside else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


@pytest.fixture(scope="module")
def parsed(page: Path) -> Parsed:
    return Parsed(page.read_text("utf-8"))


def test_hostile_names_are_text(page: Path, parsed: Parsed) -> None:
    text = page.read_text("utf-8")
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert not (attributes.get("src") or "data:").strip().lower().startswith(("x", "javascript", "http", "/")), tag
    assert "<img src=x" not in text and "49" not in [line.strip() for line in text.splitlines()]
    assert "\u2028" not in parsed.data
    data = json.loads(parsed.data)
    assert {category["name"] for category in data["categories"]} == {CLASS, "dog", "new-01"}
    assert {Path(path).name for path in data["images"]["path"]} >= {Path(name).name for name in FILES}
    assert len([tag for tag, _ in parsed.tags if tag == "script"]) == 2


def test_the_page_allows_only_its_own_script_and_style(page: Path, parsed: Parsed) -> None:
    policy = next(a["content"] for t, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy and policy.count("'sha256-") == 2
    assert not re.search(
        r"https?://", re.sub(r"http://www\.w3\.org/2000/svg", "", page.read_text("utf-8").split("<main>")[0])
    )
    assert not [
        a
        for t, a in parsed.tags
        if t in ("link", "script", "img") and (a.get("src") or a.get("href") or "data:")[:5] != "data:"
    ]


def test_the_data_of_the_page(parsed: Parsed, run: Run) -> None:
    data = json.loads(parsed.data)
    images, categories = data["images"], data["categories"]
    free = [i for i, labelled in enumerate(images["labelled"]) if not labelled]
    assert len(free) == 70 and {len(column) for column in images.values() if column} == {len(images["path"])}
    assert [sum(images["category"][i] == c for i in free) for c in range(3)] == [one["size"] for one in categories]
    assert sorted(data["order"]) == [0, 1, 2] and data["order"][0] == 2  # the new category first
    assert data["map"] == "t-SNE" and all(0 <= images["x"][i] <= 1000 for i in free)
    assert all(images["thumb"]) and not any(images["reason"])
    twins = [{Path(images["path"][i]).name for i in group} for group in data["duplicates"]]
    assert {"u10.png", "u11.png"} in twins
    for one in categories:
        assert one["trust"] is None or 0 <= one["trust"] <= 1
        assert all(not images["labelled"][i] for i in one["certain"])
    assert all(one["like"] != c for c, one in enumerate(categories))


def copy_of(run: Run, folder: Path) -> Run:
    """The run and its images in another place, where a test may change them."""
    shutil.copytree(run.folder.parent, folder)
    place = folder / "run"
    for name in ("manifest.csv", "predictions.csv", "images.sha256"):
        text = (place / name).read_text("utf-8")
        (place / name).write_text(text.replace(str(run.folder.parent), str(folder)), "utf-8")
    return finished_run(place)


def test_images_that_vanished_are_grey_with_the_reason(run: Run, tmp_path: Path) -> None:
    other = copy_of(run, tmp_path / "copy")
    (tmp_path / "copy" / "u20.png").unlink()
    (tmp_path / "copy" / "u30.png").write_bytes(b"no image")
    (tmp_path / "copy" / "l3.png").unlink()
    write_report(other, tmp_path / "report.html", tmp_path / "cache")
    images = json.loads(Parsed((tmp_path / "report.html").read_text("utf-8")).data)["images"]
    at = {Path(path).name: i for i, path in enumerate(images["path"])}
    assert images["reason"][at["u20.png"]].startswith("missing") and images["x"][at["u20.png"]] is None
    assert images["reason"][at["u30.png"]].startswith("changed")
    assert images["thumb"][at["u20.png"]] == images["thumb"][at["u30.png"]] == ""
    assert "2 images cannot be read any more" in (tmp_path / "report.html").read_text("utf-8")


def test_train_ends_with_a_report_and_resume_writes_one_that_is_missing(
    command: Command, shared_folder: Path, tmp_path: Path
) -> None:
    words = [word for word in train_arguments(shared_folder, tmp_path / "run") if word != "--no-report"]
    said = command(*words)
    place = tmp_path / "run" / "report.html"
    assert said.code == 0 and f"\nreport: {place}\n" in said.out and place.is_file()
    assert said.out.rstrip().endswith(f"debgcd review {tmp_path / 'run'}")
    place.unlink()  # as if killed before it was renamed
    assert command("resume", tmp_path / "run", "--no-report").code == 0 and not place.exists()
    said = command("resume", tmp_path / "run")
    assert said.code == 0 and "already finished" in said.out and place.is_file()
    before = place.stat().st_mtime_ns
    command("resume", tmp_path / "run")
    assert place.stat().st_mtime_ns == before
    assert command("report", tmp_path / "run").code == 0 and place.stat().st_mtime_ns > before


def test_a_report_that_cannot_be_written_does_not_fail_the_training(
    command: Command, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("debgcd.report.page.write_text", full)
    words = [word for word in train_arguments(shared_folder, tmp_path / "run") if word != "--no-report"]
    said = command(*words)
    assert said.code == 0 and (tmp_path / "run" / "predictions.csv").is_file()
    assert f"debgcd report {tmp_path / 'run'}" in said.err and "No space left" in said.err


def test_what_the_command_refuses(command: Command, run: Run, tmp_path: Path) -> None:
    there = tmp_path / "there.html"
    there.write_text("mine")
    assert "exists" in command("report", run.folder, "-o", there).complaint
    assert there.read_text() == "mine"
    assert "run directory" in command("report", run.folder, "-o", run.folder / "x.html").complaint
    assert "not a run directory" in command("report", tmp_path).complaint
    assert "--figure" in command("report", run.folder, "--beside", run.folder).complaint
    assert "tsne, utilisation" in command("report", run.folder, "--figure", "nonsense").complaint
    assert ".png or .svg" in command("report", run.folder, "--figure", "errors", "-o", tmp_path / "x.pdf").complaint


def test_the_report_says_what_is_known_and_what_to_do(page: Path) -> None:
    """The run has truth, so the kinds of error are drawn; from ten labels no error of looks_new is stated."""
    text = page.read_text("utf-8")
    assert (
        "3 categories: 2 known classes and 1 new." in text and "too few labels to tell how often that is wrong" in text
    )
    assert "<code>debgcd review run</code>" in text and "healthy" not in text.split('<section id="categories">')[0]
    assert "Kinds of error" in text and "Unlabelled images per category" not in text


def test_without_truth_only_figures_that_mean_something(run: Run, tmp_path: Path) -> None:
    blank = replace(run, folder=tmp_path)
    for name in ("model", "predictions.csv"):
        (tmp_path / name).symlink_to(run.folder / name)
    assert [figure["caption"] for figure in _figures(blank, tmp_path)] == ["Unlabelled images per category."]
    curve = [(k, 1 / k) for k in range(2, 9)]
    write_json(tmp_path / "estimate.json", Estimate(4, 3, 6, "consensus", {"consensus": curve}, {}, 1.0).to_json())
    assert len(_figures(blank, tmp_path)) == 2


def test_names_in_the_model_card_are_code(run: Run) -> None:
    card = (run.model / "README.md").read_text("utf-8")
    header, body = card.split("---\n")[1:3]
    assert "license: apache-2.0" in header and "library_name: debgcd" in header
    assert "<img" not in card and BAD.replace("<", "&lt;") in body
    for words in (
        "80 training images, 10 of them with a label",
        "| unlabelled | 70 |",
        "| test | 6 |",
        "torch ",
        "lite0",
    ):
        assert words in body
