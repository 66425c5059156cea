"""Files that the user names for output: nothing is lost without --force, and inputs and runs not even with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debgcd.reproduce.bench.session import Line

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def finished(
    shared_folder: Path, arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A finished run: not to be changed."""
    from debgcd.cli import main

    run = tmp_path_factory.mktemp("finished") / "run"
    assert main(arguments(shared_folder, run, "--method", "kmeans")) == 0
    return run


@pytest.fixture
def call(
    command: Command, finished: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Path, Path, bool], Any]:
    """call(name, source, out, force): the command that writes `out`."""

    from debgcd.reproduce.bench import measure

    monkeypatch.setattr(measure, "MEASURES", {"decode": lambda session: [Line("decode", "nothing", "s", 1.0)]})

    def work(name: str, source: Path, out: Path, force: bool) -> Any:
        words: dict[str, list[object]] = {
            "predict": ["predict", finished, source, "-o", out],
            "check": ["check", source, "--manifest", out, "--preset", "small", "--k", 3, "--set", "views.size=32"],
            "estimate-k": ["estimate-k", source, "--plot", out, "--preset", "small", "--set", "views.size=32"],
            "bench": ["bench", "decode", "-o", out],
        }
        return command(*words[name], *(["--force"] if force else []))

    return work


SUFFIX = {"predict": ".csv", "check": ".csv", "estimate-k": ".png", "bench": ".json"}
READS = ["predict", "check", "estimate-k"]
FLAG = {"predict": "-o", "check": "--manifest", "estimate-k": "--plot", "bench": "-o"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", SUFFIX)
def test_a_file_is_replaced_only_with_force(call: Any, tiny_folder: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / f"out{SUFFIX[name]}"
    out.write_text("precious")
    said = call(name, tiny_folder, out, force=False)
    assert said.code == 2
    assert f"{FLAG[name]} {out} exists; choose another path, or replace it with --force" in said.complaint
    assert out.read_text() == "precious"
    said = call(name, tiny_folder, out, force=True)
    assert said.code == 0, said.err
    assert out.read_bytes() != b"precious"
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("name", READS)
def test_an_image_of_the_input_is_never_replaced(call: Any, tiny_folder: Path, tmp_path: Path, name: str) -> None:
    image = tiny_folder / "unlabelled" / "12.png"
    (tmp_path / "elsewhere.png").symlink_to(image)
    os.link(image, tmp_path / "hard.png")
    before = contents(tiny_folder)
    for out in (image, tmp_path / "elsewhere.png", tmp_path / "hard.png"):
        said = call(name, tiny_folder, out, force=True)
        assert said.code == 2 and f"{out} is one of the input images" in said.complaint
    assert contents(tiny_folder) == before


@pytest.mark.parametrize("name", READS)
def test_an_image_that_cannot_be_used_is_never_replaced_either(
    call: Any, tiny_folder: Path, tmp_path: Path, name: str
) -> None:
    empty = tiny_folder / "unlabelled" / "empty.png"
    empty.touch()  # not in the manifest: a run skips it
    said = call(name, tiny_folder, empty, force=True)
    assert said.code == 2 and "is one of the input images" in said.complaint
    assert empty.stat().st_size == 0


@pytest.mark.parametrize("name", ["predict", "check"])
def test_the_input_table_is_never_replaced(call: Any, tiny_manifest_csv: Path, tmp_path: Path, name: str) -> None:
    before = tiny_manifest_csv.read_bytes()
    (tmp_path / "link.csv").symlink_to(tiny_manifest_csv)
    for out in (tiny_manifest_csv, tmp_path / "link.csv"):
        for force in (False, True):
            said = call(name, tiny_manifest_csv, out, force=force)
            assert said.code == 2 and f"{out} is an input of this command" in said.complaint
    assert tiny_manifest_csv.read_bytes() == before


@pytest.mark.parametrize("name", SUFFIX)
@pytest.mark.parametrize("place", ["predictions", "model/config", "model/new/out"])
def test_nothing_inside_a_run_is_replaced_or_added(
    call: Any, finished: Path, tiny_folder: Path, tmp_path: Path, name: str, place: str
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "alias").symlink_to(run)
    before = contents(run)
    for way in (run, tmp_path / "alias"):
        out = (way / place).with_suffix(SUFFIX[name])
        if name == "estimate-k":
            out.parent.mkdir(parents=True, exist_ok=True)
        said = call(name, tiny_folder, out, force=True)
        assert said.code == 2 and f"{out} lies inside the" in said.complaint and str(run) in said.complaint
    assert contents(run) == before


def test_nothing_inside_a_model_folder_is_replaced(
    command: Command, finished: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(finished / "model", tmp_path / "model")
    before = contents(model)
    said = command("predict", model, tiny_folder, "-o", model / "categories.json", "--force")
    assert said.code == 2 and f"lies inside the model folder {model}" in said.complaint
    assert contents(model) == before


@pytest.mark.parametrize("name", SUFFIX)
def test_a_folder_is_refused_with_force_too(call: Any, tiny_folder: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / f"folder{SUFFIX[name]}"
    out.mkdir()
    said = call(name, tiny_folder, out, force=True)
    assert said.code == 2 and "a folder" in said.complaint and out.is_dir()


def test_the_list_of_skipped_files_replaces_nothing(call: Any, tiny_folder: Path, tmp_path: Path) -> None:
    (tiny_folder / "unlabelled" / "broken.jpg").write_bytes(b"no image")
    listed = tmp_path / "out.skipped.csv"
    listed.write_text("precious")
    said = call("predict", tiny_folder, tmp_path / "out.csv", force=False)
    assert said.code == 2 and f"{listed} exists" in said.complaint
    assert listed.read_text() == "precious" and not (tmp_path / "out.csv").exists()
    assert call("predict", tiny_folder, tmp_path / "out.csv", force=True).code == 0
    assert "broken.jpg" in listed.read_text()


def test_with_force_no_older_list_of_skipped_files_is_left(call: Any, tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out.skipped.csv").write_text("file,reason\nold.png,corrupt\n")
    assert call("predict", tiny_folder, tmp_path / "out.csv", force=True).code == 0
    assert (tmp_path / "out.skipped.csv").read_text() == "file,reason\n"


def test_the_image_of_a_run_is_not_replaced_by_its_plot(command: Command, train: Any, tiny_folder: Path) -> None:
    run = tiny_folder.parent / "run"
    assert train(tiny_folder, run, "--method", "sskmeans").code == 0
    image = tiny_folder / "unlabelled" / "12.png"
    before = image.read_bytes()
    said = command("estimate-k", run, "--plot", image, "--force")
    assert said.code == 2 and "is one of the input images" in said.complaint
    assert image.read_bytes() == before


def test_a_configuration_is_not_replaced_by_what_it_configures(
    command: Command, shared_folder: Path, tmp_path: Path
) -> None:
    given = tmp_path / "mine.csv"  # the name does not matter
    given.write_text("k: 3\n")
    said = command("check", shared_folder, "--config", given, "--manifest", given, "--preset", "small", "--force")
    assert said.code == 2 and "is an input of this command" in said.complaint
    assert given.read_text() == "k: 3\n"
