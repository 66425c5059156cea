"""`debgcd add`: images that come later get a category, known, found before or new; what was assigned before never changes."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from miniatures import draw

from debgcd import Discoverer
from debgcd.errors import DataError, UsageError
from debgcd.review.log import LOG, Log, added_batches, read_review
from debgcd.run.directory import finished_run, read_digests

Command = Callable[..., Any]
Later = Callable[..., Path]


def table(path: Path) -> dict[str, dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return {row["path"]: row for row in csv.DictReader(file)}


def content(folder: Path) -> dict[str, bytes]:
    """All files of a run but its lock, and a log without lines."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: text for name, text in found.items() if text or name != LOG}


def kinds(assigned: dict[str, str]) -> dict[str, str]:
    """The category of most images of each kind, by their names."""
    found: dict[str, Counter[str]] = {}
    for path, id in assigned.items():
        found.setdefault(Path(path).stem.rstrip("0123456789").split("-")[-1], Counter())[id] += 1
    return {kind: count.most_common(1)[0][0] for kind, count in found.items()}


def test_what_fits_goes_where_it_fits_and_what_does_not_becomes_a_category(
    command: Command, run: Path, later: Later, tmp_path: Path
) -> None:
    before, batch = content(run), later("first", cat=8, dog=8, owl=8, fox=12)
    said = command("add", run, batch, "--new", 1)
    assert said.code == 0 and "36 images added" in said.out and "new: new-02 (" in said.out
    after = content(run)
    assert {name: after[name] for name in before} == before  # the run's own files never change
    (added,) = added_batches(run)
    assert kinds(added.assigned) == {"cat": "cat", "dog": "dog", "owl": "new-01", "fox": "new-02"}
    looks_new = {path: row["looks_new"] for path, row in table(run / "added" / "0001" / "predictions.csv").items()}
    assert kinds(looks_new) == {"cat": "false", "dog": "false", "owl": "false", "fox": "true"}
    (line,) = [json.loads(line) for line in (run / LOG).read_text().splitlines()]
    assert line["act"] == "add" and line["batch"] == "0001" and line["categories"] == ["new-02"]
    # every reader sees them
    assert len(finished_run(run).manifest) == 52 + 36 == len(read_digests(finished_run(run)))
    assert command("export", run, "--to", "csv", "-o", tmp_path / "out.csv").code == 0
    rows = table(tmp_path / "out.csv")
    assert len(rows) == 36 + 36 and [row["added"] for row in rows.values()].count("0001") == 36
    assert command("predict", run, batch, "-o", tmp_path / "p.csv").code == 0
    assert {path: row["id"] for path, row in table(tmp_path / "p.csv").items()} == added.assigned
    assert command("name", run, "new-02=fox").code == 0
    assert "fox" in Discoverer.load(run).predict_labels(sorted(batch.glob("*fox*")))
    assert command("report", run, "-o", tmp_path / "report.html").code == 0
    assert "0001" in (tmp_path / "report.html").read_text("utf-8")


def test_ids_go_on_and_undo_makes_a_batch_ignored(command: Command, run: Path, later: Later, tmp_path: Path) -> None:
    first, second = later("first", cat=8, dog=8, owl=8, fox=12), later("two", cat=6, fox=8)
    assert command("predict", run, first, "-o", tmp_path / "before.csv").code == 0
    assert command("add", run, first, "--new", 1).code == 0
    assert command("add", run, second).code == 0
    assert kinds(added_batches(run)[1].assigned) == {"cat": "cat", "fox": "new-02"}  # found before, a batch ago
    with Log(run) as log:
        log.act({"act": "split", "category": "new-01", "parts": {"new-03": log.review.members("new-01")[:6]}})
        assert log.undo()["act"] == "undo" and log.review.can_undo is None  # no key of the page takes a batch back
    assert "batch 0002" in command("add", run, "--undo").out
    assert command("add", run, "--undo").code == 0 and not added_batches(run)
    assert "no batch was added" in command("add", run, "--undo").complaint
    assert len(finished_run(run).manifest) == 52 and (run / "added" / "0001").is_dir()
    assert command("predict", run, first, "-o", tmp_path / "after.csv").code == 0
    assert (tmp_path / "after.csv").read_bytes() == (tmp_path / "before.csv").read_bytes()
    assert "new: new-04" in command("add", run, first, "--new", 1).out  # 02 and 03 meant something else
    assert [batch.number for batch in added_batches(run)] == ["0003"]


def test_the_same_images_again_are_skipped_by_their_content(
    command: Command, run: Path, later: Later, tmp_path: Path
) -> None:
    batch = later("once", owl=6)
    assert command("add", run, batch).code == 0
    before = content(run)
    again = Path(shutil.copytree(batch, tmp_path / "under another name"))
    refused = command("add", run, again)
    assert refused.code == 2 and "all 6 images that can be used are in" in refused.complaint
    assert content(run) == before
    draw(again / "more.png", "owl", 77)
    said = command("add", run, again)
    assert said.code == 0 and "1 images added" in said.out and "not added: 6 files" in said.err
    replaced = next(iter(batch.glob("*.png")))
    old = replaced.read_bytes()
    draw(replaced, "cat", 78)  # another image of a name that is there
    refused = command("add", run, batch)
    replaced.write_bytes(old)
    assert refused.code == 2 and "are in" in refused.complaint


def test_too_few_of_a_kind_are_no_category(command: Command, run: Path, later: Later) -> None:
    said = command("add", run, later("few", cat=20, dog=20, fox=3))
    assert said.code == 0 and not added_batches(run)[0].categories


BAD: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "an empty folder": (lambda folder: None, 3, "no image"),
    "text": (lambda folder: (folder / "a.png").write_text("no image"), 3, "none of the 1 images can be used"),  # type: ignore[dict-item]
    "a pipe": (lambda folder: os.mkfifo(folder / "a.png"), 3, ""),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_leaves_the_run_as_it_was(command: Command, run: Path, tmp_path: Path, case: str) -> None:
    make, code, says = BAD[case]
    (tmp_path / "bad").mkdir()
    make(tmp_path / "bad")
    before = content(run)
    refused = command("add", run, tmp_path / "bad")
    assert refused.code == code and says in refused.complaint
    assert content(run) == before


def test_images_of_other_sizes_and_kinds(command: Command, run: Path, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "mixed").mkdir()
    for i, (mode, size) in enumerate([("L", (7, 300)), ("RGBA", (64, 64)), ("P", (1, 1)), ("I;16", (20, 30))]):
        Image.new(mode, size).save(tmp_path / "mixed" / f"{i}.png")
    said = command("add", run, tmp_path / "mixed")
    assert said.code == 0 and "images added" in said.out


def test_who_may_not_add(command: Command, run: Path, later: Later, tmp_path: Path) -> None:
    batch = later("once", owl=6)
    with Log(run):
        assert "another process is reviewing the run or adding to it" in command("add", run, batch).complaint
    (run / "predictions.csv").rename(tmp_path / "predictions.csv")
    assert "has not finished; first: debgcd resume" in command("add", run, batch).complaint
    assert command("add", run).code == 2 and command("add", run, batch, "--undo").code == 2
    assert not (run / "added").exists()


@pytest.mark.parametrize("name", ["batch.json", "predictions.csv", "features.npy", "heads.safetensors"])
def test_a_damaged_batch_is_refused_and_can_be_left_out(
    command: Command, run: Path, later: Later, name: str, tmp_path: Path
) -> None:
    batch = later("first", cat=8, dog=8, owl=8, fox=12)
    assert command("add", run, batch, "--new", 1).code == 0
    place = run / "added" / "0001" / name
    place.write_bytes(place.read_bytes()[:-1] + b"!")
    read = ("add", run, later("two", cat=6, fox=8)) if name == "features.npy" else ("predict", run, batch)
    refused = command(*read)
    assert refused.code == 3 and f"debgcd add {run} --undo" in refused.err
    assert command("add", run, "--undo").code == 0
    assert command("predict", run, batch, "-o", tmp_path / "out.csv").code == 0


def test_a_log_cannot_lead_out_of_the_run(run: Path) -> None:
    for number in ("../0001", "1", "", None, 7):
        (run / LOG).write_text(
            json.dumps({"act": "add", "at": "", "id": "a", "batch": number, "categories": []}) + "\n"
        )
        with pytest.raises(DataError, match="is not the number of a batch"):
            read_review(run)


def test_a_discoverer_learns_batches(run: Path, later: Later, tmp_path: Path) -> None:
    found = Discoverer.load(run)
    batch = sorted(later("first", cat=8, dog=8, owl=8, fox=12).glob("*.png"))
    assert found.partial_fit(batch) is found
    ids = [one.id for one in found.categories_]
    assert ids[:4] == ["cat", "dog", "new-01", "new-02"]
    assert len(found.labels_) == len(batch) and set(found.predict_labels(batch)) == set(ids)
    found.save(tmp_path / "alone")
    alone = Discoverer.load(tmp_path / "alone")
    assert list(alone.predict(batch)) == list(found.predict(batch))
    with pytest.raises(UsageError, match="needs its run"):
        alone.partial_fit(batch)
