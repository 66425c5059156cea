"""Writing files: at one instant, and to where a path leads."""

from __future__ import annotations

import csv
import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from debgcd.errors import DataError, UsageError
from debgcd.system import distributed
from debgcd.system.files import read_json, readable, turn, write_text
from debgcd.system.progress import waiting


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "text")
    reader.join(timeout=10)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_a_process_that_waits_for_its_turn_shows_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other ranks wait for it meanwhile, however long it takes."""
    signs: list[int] = []
    monkeypatch.setattr(distributed, "heartbeat", lambda: signs.append(1))
    process = multiprocessing.get_context("fork")
    held, free = process.Event(), process.Event()

    def hold() -> None:
        with turn(tmp_path, "ab", lambda first: None):
            held.set()
            free.wait(20)

    def wait(first: bool) -> None:
        waiting("busy")(first)
        if len(signs) == 3:
            free.set()

    other = process.Process(target=hold)
    other.start()
    assert held.wait(20)
    with turn(tmp_path, "ab", wait):
        pass
    other.join()
    assert len(signs) >= 3 and capsys.readouterr().err == "busy\n"


# Reading.


@pytest.mark.parametrize(
    "error", [OSError("x"), ValueError("x"), KeyError("x"), IndexError("x"), TypeError("x"), csv.Error("x")]
)
def test_a_file_that_cannot_be_read_is_a_sentence(error: Exception) -> None:
    with (
        pytest.raises(DataError, match=r"^a\.json cannot be read \('?x'?\); restore it$"),
        readable("a.json", "restore it"),
    ):
        raise error


def test_a_wrong_call_is_not_taken_for_a_damaged_file() -> None:
    with pytest.raises(UsageError, match="wrong"), readable("a.json", "restore it"):
        raise UsageError("wrong")
    with pytest.raises(DataError, match="restore it"), readable("a.json", "restore it", UsageError):
        raise UsageError("of another version")


def test_a_missing_file_may_have_a_sentence_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="restore it"), readable("a.json", "restore it"):
        read_json(tmp_path / "a.json")
    with pytest.raises(FileNotFoundError), readable("a.json", "restore it", missing=False):
        read_json(tmp_path / "a.json")
