"""The cache's knowledge of files: what is read again, and what is trusted."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from debgcd.data import fingerprints as contents
from debgcd.data.fingerprints import forget_contents, read_contents
from debgcd.errors import DataError
from debgcd.system import distributed

OLD = 10**18  # nanoseconds: a time long before any test


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose bytes are read, as it happens."""
    names: list[str] = []
    original = contents.file_digest
    monkeypatch.setattr(contents, "file_digest", lambda path: names.append(path.name) or original(path))
    return names


def files(folder: Path, count: int = 4) -> list[Path]:
    paths = [folder / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        path.write_bytes(b"image %d" % i)
        os.utime(path, ns=(OLD, OLD))
    return paths


def back(path: Path) -> None:
    """Other bytes, as many, with the old time: only the inode's time shows it."""
    path.write_bytes(b"IMAGE 2")
    os.utime(path, ns=(OLD, OLD))


def whole(paths: list[Path]) -> str:
    return sha256(b"".join(sha256(path.read_bytes()).digest() for path in paths)).hexdigest()


def test_files_that_are_as_they_were_are_not_read_again(tmp_path: Path, read: list[str]) -> None:
    paths, cache = files(tmp_path), tmp_path / "cache"
    assert read_contents(paths, cache).sha256 == whole(paths)
    assert sorted(read) == ["0.png", "1.png", "2.png", "3.png"]
    read.clear()
    assert read_contents(paths, cache).sha256 == whole(paths) and read == []
    forget_contents(paths, cache)
    assert read_contents(paths, cache).sha256 == whole(paths) and len(read) == 4


def replaced(path: Path) -> None:
    """Another file of the same size and time."""
    beside = path.with_suffix(".new")
    beside.write_bytes(b"IMAGE 2")
    os.utime(beside, ns=(OLD, OLD))
    os.replace(beside, path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"longer than before"),
        lambda path: os.utime(path, ns=(OLD, OLD + 1)),  # only touched
        lambda path: path.write_bytes(b"IMAGE 2"),  # the size stays
        replaced,
        back,
    ],
    ids=["size", "time", "bytes", "inode", "time put back"],
)
def test_a_file_with_another_size_time_or_inode_is_read(
    tmp_path: Path, read: list[str], change: Callable[[Path], object]
) -> None:
    paths, cache = files(tmp_path), tmp_path / "cache"
    read_contents(paths, cache)
    change(paths[2])
    read.clear()
    assert read_contents(paths, cache).sha256 == whole(paths) and read == ["2.png"]


def test_hashing_shows_other_ranks_that_this_one_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"a")
    signs: list[int] = []
    monkeypatch.setattr(distributed, "heartbeat", lambda: signs.append(1))
    read_contents([tmp_path / "a"], tmp_path / "cache")
    assert signs


def test_other_lists_share_what_is_known(tmp_path: Path, read: list[str]) -> None:
    """One more image among a million must not have all of them read again."""
    paths, cache = files(tmp_path, 1200), tmp_path / "cache"
    read_contents(paths[:-1], cache)
    read.clear()
    assert read_contents(paths[::-1], cache).sha256 == whole(paths[::-1]) and read == ["1199.png"]


def test_a_file_hashed_right_after_a_change_is_read_once_more(tmp_path: Path, read: list[str]) -> None:
    """It could change again within the resolution of a file's time."""
    paths, cache = files(tmp_path), tmp_path / "cache"
    paths[1].write_bytes(b"just now")
    read_contents(paths, cache)
    read.clear()
    read_contents(paths, cache)
    assert read == ["1.png"]


@pytest.mark.parametrize("damage", [b"", b"SQLite format 3\0", b"x" * 500])
def test_damaged_knowledge_is_no_knowledge(tmp_path: Path, read: list[str], damage: bytes) -> None:
    paths, cache = files(tmp_path), tmp_path / "cache"
    read_contents(paths, cache)
    (cache / contents.FILE).write_bytes(damage)
    read.clear()
    assert read_contents(paths, cache).sha256 == whole(paths) and len(read) == 4


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    paths = files(tmp_path)
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert read_contents(paths, tmp_path / "cache").sha256 == whole(paths)


def test_a_file_that_changes_in_use_is_refused(tmp_path: Path) -> None:
    paths = files(tmp_path)
    found = read_contents(paths, tmp_path / "cache")
    found.require_unchanged(range(4))
    paths[3].write_bytes(b"another image")
    with pytest.raises(DataError, match=r"3\.png was changed while it was in use"):
        found.require_unchanged(range(4))


def test_verify_reads_every_image(
    tmp_path: Path, train: Callable[..., object], command: Callable[..., object], shared_folder: Path, read: list[str]
) -> None:
    for path in shared_folder.rglob("*.png"):
        os.utime(path, ns=(OLD, OLD))
    words = ("--bank", "on", "--cache", tmp_path / "cache")
    for name, more, count in (("a", (), 24), ("b", (), 0), ("c", ("--verify",), 24)):
        read.clear()
        assert train(shared_folder, tmp_path / name, *words, *more, schedule__steps=1).code == 0  # type: ignore[attr-defined]
        assert len(set(read)) == count, name
    (tmp_path / "b" / "predictions.csv").unlink()
    for more, count in (((), 0), (("--verify",), 24)):
        read.clear()
        assert command("resume", tmp_path / "b", *more).code == 0  # type: ignore[attr-defined]
        assert len(set(read)) == count
        (tmp_path / "b" / "predictions.csv").unlink()
