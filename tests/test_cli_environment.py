"""Ordinary surroundings that are not those of a developer: other encodings, closed streams, no home, odd names."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from miniatures import draw
from tiers import tiered

from debgcd.data.manifest import from_paths, write_manifest
from debgcd.data.sources import read_manifest
from debgcd.system.files import csv_field, csv_text
from debgcd.system.machine import cache_folder
from debgcd.system.progress import escaped, say

Train = Callable[..., Any]
Command = Callable[..., Any]

ODD = ["café", "\x1b[31mred", "two\nlines", "re\rturn", "b\u202edi", "ωmega"]


@pytest.fixture
def odd_folder(tiny_folder: Path) -> Path:
    """A folder whose class and file names have accents, line breaks and escape sequences."""
    for i, name in enumerate(ODD):
        draw(tiny_folder / "labelled" / name / f"{i}.png", "cat", seed=i)
        draw(tiny_folder / "unlabelled" / f"{name}.png", "owl", seed=i)
    (tiny_folder / "unlabelled" / "\x1b[31mbroken\n.png").write_bytes(b"no image")
    return tiny_folder


def lines_of(said: Any) -> list[str]:
    return (said.out + said.err).splitlines()


def assert_plain(said: Any) -> None:
    for line in said.out.split("\n") + said.err.split("\n"):
        assert escaped(line) == line


def test_control_characters_of_names_are_shown_escaped(
    command: Command, train: Train, odd_folder: Path, tmp_path: Path
) -> None:
    said = command("check", odd_folder, "--preset", "small", "--k", 10, "--set", "views.size=32")
    assert said.code == 0
    assert_plain(said)
    shown = {line.split("  ")[0]: line for line in said.out.splitlines()}
    assert {"café", r"\x1b[31mred", r"two\nlines", r"b\u202edi"} <= set(shown)
    run = tmp_path / "run\n\x1b[31m"
    said = train(odd_folder, run, "--k", 10, "--method", "kmeans")
    assert said.code == 0
    assert_plain(said)
    said = command("predict", run, odd_folder / "unlabelled", "-o", tmp_path / "o\x1b[31mut.csv")
    assert said.code == 0
    assert_plain(said)
    with open(tmp_path / "o\x1b[31mut.csv", encoding="utf-8", newline="") as file:
        names = {Path(row["path"]).stem for row in csv.DictReader(file)}
    assert set(ODD) <= names  # in files as they are
    for words in (["check", run / "nowhere"], ["check", "--\x1b[31m", odd_folder], ["resume", run / "x"]):
        said = command(*words)
        assert said.code == 2 and r"\x1b[31m" in said.complaint
        assert_plain(said)


def test_predictions_on_a_terminal_are_escaped(
    command: Command, train: Train, odd_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(odd_folder, tmp_path / "run", "--k", 10, "--method", "kmeans").code == 0
    image = odd_folder / "unlabelled" / "\x1b[31mred.png"
    assert str(image) in command("predict", tmp_path / "run", image).out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b" not in command("predict", tmp_path / "run", image).out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_knows_few_characters(
    train: Train,
    odd_folder: Path,
    shared_csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
) -> None:
    from debgcd.cli import main

    assert train(odd_folder, tmp_path / "run", "--k", 10, "--method", "sskmeans").code == 0
    for words in (
        ["check", odd_folder, "--preset", "small", "--k", "10", "--set", "views.size=32"],
        ["estimate-k", shared_csv, "--preset", "small", "--set", "views.size=32"],  # box characters
        ["predict", tmp_path / "run", odd_folder / "unlabelled"],
        ["check", tmp_path / "no-ω-\udcff"],
        ["--ω\udcff"],
    ):
        out, err = io.BytesIO(), io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=encoding))
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding=encoding))
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        sys.stdout.flush()
        assert code == (0 if len(words) > 2 else 2)
        assert (out if len(words) > 2 else err).getvalue().decode(encoding)
        monkeypatch.undo()


def debgcd(shell: str, *words: object, **surroundings: str | None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; `shell` says where its output goes, e.g. "2>&-"."""
    inherited = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONSAFEPATH": "1"}
    env = {name: value for name, value in (inherited | surroundings).items() if value is not None}
    call = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "debgcd.cli", *map(str, words)]
    return subprocess.run(call, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("shell", tiered(["2>/dev/full", "<&- 2>&-"], ["2>&-", "2>/dev/full", "<&- 2>&-"]))
def test_a_run_needs_no_standard_error(
    shared_folder: Path, arguments: Callable[..., list[str]], tmp_path: Path, shell: str
) -> None:
    run = tmp_path / "run"
    done = debgcd(shell, *arguments(shared_folder, run, "--method", "kmeans"))
    assert done.returncode == 0, done.stdout
    assert (run / "predictions.csv").is_file()
    assert done.stdout.startswith("\nFound ")  # no message strayed into it
    done = debgcd(shell, "train", tmp_path / "nothing", "-o", run)  # refused: the exit code is all that can be told
    assert (done.returncode, done.stdout) == (2, "")


def test_a_full_standard_output_is_said(shared_folder: Path) -> None:
    done = debgcd(">/dev/full", "config", "--preset", "small")
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("debgcd: cannot use standard output: No space left on device")


def test_a_closed_standard_output_is_no_error() -> None:
    done = debgcd(">&-", "config", "--preset", "small")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_home(command: Command, shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("DEBGCD_CACHE")
    assert cache_folder(None).is_absolute()  # the system knows where this user is at home
    monkeypatch.setattr("pwd.getpwuid", unknown)
    said = command("check", shared_folder, "--preset", "small", "--k", 3)
    assert said.code == 2
    assert (
        "no home folder for the cache; choose another cache folder with --cache, or set DEBGCD_CACHE" in said.complaint
    )


def test_in_a_folder_that_was_deleted(command: Command, shared_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    before = os.getcwd()
    os.chdir(tmp_path / "gone")
    try:
        (tmp_path / "gone").rmdir()
        for words in (["check", "photos"], ["resume", "run"], ["check", shared_folder, "--preset", "small", "--k", 3]):
            said = command(*words)
            assert said.code == 3
            assert said.complaint == "debgcd: the working directory was deleted; change to a folder that exists"
    finally:
        os.chdir(before)


def test_say_keeps_blank_lines_before_and_escapes_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    say("\nname\n\x1b[31m")
    assert capsys.readouterr().err == "\nname\\n\\x1b[31m\n"


# Tables of others, and tables for others.


def table(folder: Path, text: str) -> Path:
    (folder / "list.csv").write_text(text, "utf-8")
    return folder / "list.csv"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (",path,label\n0,a.png,x\n", "ignored: one without a name"),
        ("Unnamed: 0,path,width,label\n0,a.png,9,x\n", "ignored: 'Unnamed: 0', 'width'"),
        ("Path,label\na.png,x\n", "'Path' is taken as path"),
        ("filename,label\na.png,x\n", "'filename' is taken as path"),
        ("id;FILE;Label\n7;a.png;x\n", "'FILE' is taken as path; 'Label' is taken as label; ignored: 'id'"),
        ("image,label\na.png,x\n", "'image' is taken as path"),
        ("image,file,label\nb.png,a.png,x\n", "'file' is taken as path; ignored: 'image'"),
        ("file,path,label\nb.png,a.png,x\n", "ignored: 'file'"),
        ("path,label,labels\na.png,x,y\n", "ignored: 'labels'"),
        ("path,label,a1,a2,a3,a4,a5,a6,a7\na.png,x\n", "ignored: 'a1', 'a2', 'a3', 'a4', 'a5' and 2 more"),
        ("path,label,,\na.png,x,,\n", "ignored: one without a name, one without a name"),
    ],
)
def test_other_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str) -> None:
    manifest = read_manifest(table(tmp_path, text))
    assert (manifest.paths, manifest.labels) == ((tmp_path / "a.png",), ("x",))
    assert capsys.readouterr().err == f"columns of {tmp_path / 'list.csv'}: {line}\n"


def test_the_usual_columns_need_no_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read_manifest(table(tmp_path, "path,label,truth,split,group\na.png,x,,,\n"))
    assert capsys.readouterr().err == ""


FORMULAS = ["=1+2", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''-x", "-", "=", "'-5"]
PLAIN = ["cat", "", "-5", "+3.5", "-1e-3", "'quoted'", "a=b", "'"]


@pytest.mark.parametrize("text", FORMULAS + PLAIN)
def test_no_field_is_a_formula_and_each_is_read_back(text: str) -> None:
    (_, (field, _)) = csv.reader(io.StringIO(csv_text(["name", "number"], [[text, -1.5]]), newline=""))
    assert field[:1] not in ("=", "+", "@", "\t", "\r") or text in PLAIN
    assert not field.startswith("-") or text in PLAIN
    assert (field == text) == (text in PLAIN)
    assert csv_field(field) == text


def test_a_number_is_not_quoted() -> None:
    assert csv_text(["a"], [[-1.5], [-3]]) == "a\n-1.5\n-3\n"


def test_a_manifest_is_read_back_as_it_was(tmp_path: Path) -> None:
    names = [*dict.fromkeys(text.strip() for text in FORMULAS), "café"]
    paths = [tmp_path / f"{name.replace('/', '')}.png" for name in names]
    truths = [None if i % 2 else name for i, name in enumerate(names)]
    manifest = from_paths(paths, names, truths, groups=names)
    write_manifest(manifest, tmp_path / "m.csv")
    assert read_manifest(tmp_path / "m.csv") == manifest
    with open(tmp_path / "m.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [str(path) for path in manifest.paths]
    assert not [row for row in rows if row["label"].startswith(("=", "+", "@"))]


def test_a_path_in_a_table_of_ones_own_keeps_its_quote(tmp_path: Path) -> None:
    text = "path,label,truth,split,group\n'=a.png,'=x,,,\n"
    assert read_manifest(table(tmp_path, text)).paths == (tmp_path / "'=a.png",)
    text = "path,label\na.png,'=x\n"  # not a manifest of debgcd: taken as it is
    assert read_manifest(table(tmp_path, text)).labels == ("'=x",)


def test_predictions_are_harmless_and_read_back(train: Train, tiny_folder: Path, tmp_path: Path) -> None:
    from debgcd.review.log import reviewed_predictions
    from debgcd.run.directory import open_run

    name = "=HYPERLINK(1)"
    (tiny_folder / "labelled" / "cat").rename(tiny_folder / "labelled" / name)
    run = tmp_path / "run"
    assert train(tiny_folder, run, "--method", "sskmeans").code == 0
    for file in ("manifest.csv", "predictions.csv"):
        text = (run / file).read_text("utf-8")
        assert f",'{name}" in text and f",{name}" not in text
    found = open_run(run)
    assert found.manifest.classes == (name, "dog")
    rows, _ = reviewed_predictions(run)
    assert name in {row["id"] for row in rows} == {row["name"] for row in rows} == {row["top1_id"] for row in rows}
