"""What is wrong is said in one line that begins with `debgcd: `; exit code 2 for a wrong call, 3 for unusable data."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from debgcd.model.lite import LiteBackbone

Train = Callable[..., Any]
Command = Callable[..., Any]


# Calls that are wrong whatever the data: (words after `debgcd train FOLDER --preset small`, exit code, what is said)
CALLS = {
    "k below the known classes": (["--k", "1"], 2, "K is 1, but the labels name M = 2"),
    "k above the images": (["--k", "25"], 2, "only 24 training images"),
    "k of zero": (["--k", "0"], 2, "k must be between 1 and 10000000, not 0"),
    "k that is no number": (["--k", "many"], 2, "--k"),
    "unknown method": (["--k", "3", "--method", "simgdc"], 2, "there is no method 'simgdc' (did you mean 'simgcd'?)"),
    "unknown preset": (["--k", "3", "--preset", "smal"], 2, "did you mean 'small'?"),
    "unknown option": (["--k", "3", "--colour", "red"], 2, "--colour"),
    "unknown key": (["--k", "3", "--set", "detector.wieght=1"], 2, "unknown key 'detector.wieght' (did you mean 'weight'?)"),
    "unknown section": (["--k", "3", "--set", "detectr.weight=1"], 2, "did you mean 'detector'?"),
    "no equals sign": (["--k", "3", "--set", "detector.weight"], 2, "--set takes KEY=VALUE"),
    "no key": (["--k", "3", "--set", "=1"], 2, "--set takes KEY=VALUE"),
    "not YAML": (["--k", "3", "--set", "detector.weight=[1"], 2, "not YAML"),
    "text for a number": (["--k", "3", "--set", "detector.weight=heavy"], 2, "detector.weight must be a number, not 'heavy'"),
    "number for a switch": (["--k", "3", "--set", "ablation.detector=3"], 2, "ablation.detector must be true or false"),
    "fraction for a count": (["--k", "3", "--set", "schedule.batch=1.5"], 2, "schedule.batch must be a whole number"),
    "value for a section": (["--k", "3", "--set", "detector=3"], 2, "detector is a section"),
    "out of range": (["--k", "3", "--set", "schedule.momentum=2"], 2, "schedule.momentum must be between"),
    "not a number at all": (["--k", "3", "--set", "schedule.lr=.nan"], 2, "schedule.lr must be between"),
    "crop larger than the image": (["--k", "3", "--set", "views.size=500", "--set", "views.resize=110"], 2, "views.size 500 is larger"),
    "text for a size": (["--k", "3", "--set", "views.size=large"], 2, "views.size must be a whole number or auto, not 'large'"),
    "unknown quality": (["--k", "3", "--quality", "god"], 2, "there is no quality 'god' (allowed: balanced, best, fast)"),
    "quality as a value": (["--k", "3", "--set", "quality=best"], 2, "the quality is chosen with --quality"),
    "quality of another preset": (["--k", "3", "--preset", "paper", "--quality", "fast"], 2, "quality fast is for the preset small, not for paper"),
    "negative workers": (["--k", "3", "--workers", "-1"], 2, "run.workers must be between"),
    "unknown bank": (["--k", "3", "--bank", "maybe"], 2, "--bank"),
    "unknown device": (["--k", "3", "--device", "abacus"], 2, "the device 'abacus' cannot be used here"),
    "no such configuration file": (["--k", "3", "--config", "nowhere.yaml"], 2, "there is no configuration file"),
    "unknown backbone": (["--k", "3", "--backbone", "/nowhere/vit"], 2, "backbone '/nowhere/vit'"),
    "more blocks than there are": (["--k", "3", "--backbone", "lite0", "--set", "backbone.tuned_blocks=99"], 2, "tuned_blocks"),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_wrong_calls(command: Command, shared_folder: Path, tmp_path: Path, case: str) -> None:
    words, code, part = CALLS[case]
    said = command("train", shared_folder, "-o", tmp_path / "run", "--preset", "small", "--workers", 0, *words)
    assert (said.code, said.out) == (code, "")
    assert part in said.complaint
    assert not (tmp_path / "run" / "config.yaml").exists()  # the same directory will do for the next try


def test_what_is_wrong_on_the_command_line_is_said_before_the_data_is_read(command: Command, tmp_path: Path) -> None:
    said = command("train", tmp_path / "nowhere", "-o", tmp_path / "run", "--k", 3)
    assert said.code == 2 and f"nothing at {tmp_path / 'nowhere'}" in said.complaint
    assert not (tmp_path / "run").exists()


def only_labelled(folder: Path) -> None:
    shutil.rmtree(folder / "unlabelled")


def only_unlabelled(folder: Path) -> None:
    shutil.rmtree(folder / "labelled")


def no_images(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def no_usable_label(folder: Path) -> None:
    for path in (folder / "labelled").rglob("*.png"):
        path.write_bytes(b"no image")


def no_usable_image(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        path.write_bytes(b"no image")


def two_meanings(folder: Path) -> None:
    (folder / "owl").mkdir()


FOLDERS = {
    no_images: (3, "no image in"),
    only_labelled: (3, "nothing to discover"),
    only_unlabelled: (3, "no known class to start from"),
    no_usable_label: (3, "no known class to start from"),
    no_usable_image: (3, "no known class to start from"),
    two_meanings: (3, "unclear which folders are classes"),
}


@pytest.mark.parametrize("change", FOLDERS, ids=lambda change: change.__name__)
def test_folders(train: Train, tiny_folder: Path, tmp_path: Path, change: Callable[[Path], None]) -> None:
    change(tiny_folder)
    code, part = FOLDERS[change]
    said = train(tiny_folder, tmp_path / "run")
    assert said.code == code and part in said.complaint


TABLES = {
    "unknown column": ("path,labl\na.png,x\n", 2, "unknown column 'labl'; did you mean 'label'?"),
    "no path": ("label\nx\n", 2, "no column path"),
    "no rows": ("path,label\n", 3, "has no rows"),
    "conflicting labels": ("path,label\na.png,x\na.png,y\n", 3, "has two labels, 'x' and 'y'"),
    "conflicting splits": ("path,split\na.png,train\na.png,test\n", 3, "has two splits"),
    "unknown split": ("path,label,split\na.png,,validation\n", 3, "the split 'validation'"),
    "label of a test image": ("path,label,split\na.png,x,test\n", 3, "only training images have labels"),
    "unclosed quote": ('path,label\n"a.png,x\n', 3, "not valid CSV"),
    "too many fields": ("path,label\na.png,x,y\n", 3, "3 fields for 2 columns"),
    "no file is there": ("path,label\na.png,x\nb.png,\nc.png,\n", 3, "no known class to start from"),
    "empty": ("", 3, "0 bytes"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables(train: Train, tmp_path: Path, case: str) -> None:
    text, code, part = TABLES[case]
    (tmp_path / "list.csv").write_text(text)
    said = train(tmp_path / "list.csv", tmp_path / "run")
    assert said.code == code and part in said.complaint


def test_a_table_that_is_not_text(train: Train, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(b"path,label\n\xff\xfe,x\n")
    said = train(tmp_path / "list.csv", tmp_path / "run")
    assert said.code == 3 and "not UTF-8" in said.complaint


def test_a_name_with_a_line_break_is_still_one_line(command: Command, tmp_path: Path) -> None:
    assert "Traceback" not in command("train", tmp_path / "no\nwhere", "--k", 3).complaint


def test_a_run_directory_that_is_not_empty(train: Train, shared_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    said = train(shared_folder, tmp_path)
    assert said.code == 2 and "is not empty" in said.complaint and "debgcd resume" not in said.complaint
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert train(shared_folder, tmp_path / "run", "--method", "kmeans").code == 0
    said = train(shared_folder, tmp_path / "run", "--method", "kmeans")
    assert said.code == 2 and f"debgcd resume {tmp_path / 'run'}" in said.complaint


def test_a_run_directory_that_cannot_be_one(train: Train, shared_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    said = train(shared_folder, tmp_path / "file")
    assert said.code == 2 and "is a file" in said.complaint
    assert train(shared_folder, tmp_path / "file" / "below").code == 3
    assert train(shared_folder, tmp_path / ("x" * 300)).code == 3
    assert (tmp_path / "file").read_text() == "precious"


def test_a_cache_that_cannot_be_one(train: Train, shared_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for i, cache in enumerate([tmp_path / "file", tmp_path / "file" / "below"]):
        said = train(shared_folder, tmp_path / f"run-{i}", "--bank", "on", "--cache", cache)
        assert said.code == 3 and str(cache) in said.complaint


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("place", ["run", "file", "bank", "metrics"])
def test_a_place_that_cannot_be_written(
    train: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, place: str
) -> None:
    """Root may write anywhere, so the system's refusal is played."""

    def refuse(path: object, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    if place == "run":
        monkeypatch.setattr(Path, "mkdir", refuse)
    elif place == "file":
        monkeypatch.setattr("debgcd.system.files.os.replace", refuse)
    elif place == "bank":
        monkeypatch.setattr("debgcd.tokens.bank._passes", refuse)
    else:
        monkeypatch.setattr("debgcd.train.callbacks.Metrics.write", lambda self, *_: refuse(self._path))
    run = tmp_path / "run"
    said = train(shared_folder, run, "--bank", "on", "--cache", tmp_path / "cache")
    assert said.code == 3 and os.strerror(number) in said.complaint
    if place == "bank" and number in (errno.ENOSPC, errno.EDQUOT):
        assert "free some space, choose another cache folder with --cache, or do without it (" in said.complaint
    else:
        assert (f"debgcd resume {run}" in said.complaint) == (place in ("bank", "metrics"))


@pytest.mark.parametrize(("number", "room"), [(errno.EROFS, ""), (errno.ENOSPC, "free some space or ")])
def test_a_cache_that_cannot_be_written(
    train: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, room: str
) -> None:
    mkdir, cache = Path.mkdir, tmp_path / "cache"

    def refuse(path: Path, **named: Any) -> None:
        if path == cache:
            raise OSError(number, os.strerror(number), str(path))
        mkdir(path, **named)

    monkeypatch.setattr(Path, "mkdir", refuse)
    said = train(shared_folder, tmp_path / "run", "--bank", "on", "--cache", cache)
    advice = f"; {room}choose another cache folder with --cache, or do without the view bank (--bank off)"
    assert said.code == 3 and said.complaint.endswith(advice)


@pytest.mark.parametrize("name", ["resume", "evaluate", "predict"])
def test_what_is_not_a_run(command: Command, shared_folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    more = [shared_folder] if name == "predict" else []
    for place in (tmp_path / "nowhere", tmp_path / "empty", tmp_path / "file", shared_folder):
        said = command(name, place, *more)
        assert said.code == 2 and str(place) in said.complaint
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.fixture(scope="module")
def finished(
    shared_folder: Path, arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A finished run without truth: not to be changed."""
    from debgcd.cli import main

    run = tmp_path_factory.mktemp("finished") / "run"
    assert main(arguments(shared_folder, run, "--method", "simgcd", schedule__steps=2)) == 0
    return run


def test_evaluate_without_truth(command: Command, finished: Path) -> None:
    said = command("evaluate", finished)
    assert said.code == 3 and "truth" in said.complaint
    assert not (finished / "evaluation.json").exists()


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_an_unfinished_run(command: Command, finished: Path, shared_folder: Path, tmp_path: Path, name: str) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "predictions.csv").unlink()
    shutil.rmtree(run / "model")
    said = command(name, run, *([shared_folder] if name == "predict" else []))
    assert said.code == 2 and f"debgcd resume {run}" in said.complaint


def test_predict_with_a_wrong_backbone(command: Command, finished: Path, shared_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"no weights")
    for wrong in (tmp_path / "nowhere", shared_folder, tmp_path / "weights.pth"):
        said = command("predict", finished, shared_folder, "--backbone", wrong)
        assert said.code in (2, 3) and said.out == "" and str(wrong) in said.complaint


def test_predict_with_bad_input_and_output(
    command: Command, finished: Path, shared_folder: Path, tmp_path: Path
) -> None:
    said = command("predict", finished, tmp_path / "nowhere")
    assert said.code == 2 and "nothing at" in said.complaint
    (tmp_path / "empty").mkdir()
    said = command("predict", finished, tmp_path / "empty")
    assert said.code == 3 and "no image in" in said.complaint
    said = command("predict", finished, shared_folder, "-o", tmp_path)
    assert said.code == 2 and "is a folder" in said.complaint
    (tmp_path / "file").write_text("precious")
    assert command("predict", finished, shared_folder, "-o", tmp_path / "file" / "out.csv").code == 3


def test_predict_without_a_usable_image(command: Command, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "images" / name).write_bytes(b"no image")
    for more in ([], ["-o", tmp_path / "out.csv"]):
        said = command("predict", finished, tmp_path / "images", *more)
        assert (said.code, said.out) == (3, "")
        assert f"none of the 2 images can be used, e.g. {tmp_path / 'images' / 'b.png'}: not-an-image" in said.complaint
    assert not (tmp_path / "out.csv").exists()


def test_predict_that_fails_does_not_advise_to_resume(
    command: Command, finished: Path, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("debgcd.infer.predict.ask", interrupt)
    said = command("predict", finished, shared_folder, "-o", tmp_path / "out.csv")
    assert said.code == 130 and said.complaint == "debgcd: stopped"


def test_a_mistake_of_the_program_is_not_hidden(
    train: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what a user can put right becomes one line; the rest keeps its traceback."""

    def mistake(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("debgcd.train.train.fit", mistake)
    with pytest.raises(ZeroDivisionError):
        train(shared_folder, tmp_path / "run")


@pytest.mark.parametrize(
    "words", [("--method", "kmeans"), ("--method", "sskmeans"), ("--k", "auto"), ("--method", "debgcd")]
)
def test_features_that_are_not_finite(
    train: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Standardising would spread them over all images."""
    tail = LiteBackbone.tail

    def spoil(self: LiteBackbone, tokens: Tensor) -> Tensor:
        feature = tail(self, tokens)
        feature[3:5, 7] = float("nan")
        return feature

    monkeypatch.setattr(LiteBackbone, "tail", spoil)
    said = train(shared_folder, tmp_path / "run", *words)
    fourth = sorted((shared_folder / "labelled").rglob("*.png"))[3]
    assert said.code == 3 and f"the features of 2 of 24 images are not finite, first of {fourth}" in said.complaint
