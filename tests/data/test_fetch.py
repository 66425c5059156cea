"""Fetching a set, from a host in this process: resumed, checked, unpacked without harm, there whole or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import miniatures
import pytest

from debgcd.datasets import facts_of, read_benchmark
from debgcd.datasets.facts import Archive, Facts
from debgcd.datasets.fetch import download, fetch, unpack
from debgcd.errors import DataError, UsageError

Command = Callable[..., Any]


@dataclass
class Host:
    """A web server whose misbehaviour can be chosen."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str | None] = field(default_factory=list)  # the Range of each request
    breaks: int = 0  # so many answers are cut off in their middle
    ranges: bool = True  # whether Range is understood
    wrong_part: bool = False  # another part than asked for
    status: int | None = None  # an error instead of the file

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@pytest.fixture
def host() -> Iterator[Host]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = shown.files.get(self.path.strip("/").partition("?")[0])
            wanted = self.headers.get("Range")
            shown.asked.append(wanted)
            if content is None or shown.status is not None:
                self.send_error(404 if content is None else shown.status or 500)
                return
            start = 0
            if wanted and shown.ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.end_headers()
                    return
                start = 0 if shown.wrong_part else start
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            rest = content[start:]
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if shown.breaks:
                shown.breaks -= 1
                rest = rest[: len(rest) // 2]
            self.wfile.write(rest)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    shown = Host(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield shown
    server.shutdown()
    thread.join()
    server.server_close()


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


def tar_of(folder: Path, names: list[str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in names:
            tar.add(folder / name, name)
    return file.getvalue()


@pytest.fixture
def offered(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Pets in miniature, on the host: two archives, as it is published."""
    made = miniatures.pets(tmp_path / "made")
    archives = []
    for part in ("images", "annotations"):
        host.files[f"{part}.tar.gz"] = tar_of(made.folder, [part])
        archives.append(Archive(host.url(f"{part}.tar.gz?download=1"), md5(host.files[f"{part}.tar.gz"]), ""))
    facts = replace(facts_of("pets"), archives=tuple(archives), train=len(made.train), test=len(made.test))
    monkeypatch.setattr("debgcd.datasets.facts_of", lambda _: facts)
    return facts


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Downloads.

CONTENT = bytes(range(256)) * 9000  # more than two chunks


def test_a_download(host: Host, tmp_path: Path) -> None:
    host.files["a.bin"] = CONTENT
    download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert host.asked == [None] and [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    assert host.asked == [None]  # what is there is not loaded again


def test_what_has_come_is_not_loaded_again(host: Host, tmp_path: Path) -> None:
    host.files["a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1000])
    download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    assert host.asked == ["bytes=1000-"]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_broken_connections_go_on(host: Host, tmp_path: Path) -> None:
    host.files["a.bin"], host.breaks = CONTENT, 3
    download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert host.asked == [
        None,
        f"bytes={half}-",
        f"bytes={half + half // 2}-",
        f"bytes={half + half // 2 + half // 4}-",
    ]


def test_a_host_that_does_not_know_ranges(host: Host, tmp_path: Path) -> None:
    host.files["a.bin"], host.ranges = CONTENT, False
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1000)
    download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more"], ids=["whole", "too long"])
def test_a_part_that_needs_nothing_more(host: Host, tmp_path: Path, part: bytes) -> None:
    host.files["a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes(part)
    download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_transfer_that_brings_nothing_more_is_given_up(host: Host, tmp_path: Path) -> None:
    host.files["a.bin"], host.wrong_part = CONTENT, True
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1000])
    with pytest.raises(DataError, match=r"stopped after 1000 bytes .* repeat the command to resume"):
        download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    assert (tmp_path / "a.bin.part").read_bytes() == CONTENT[:1000]


def test_a_changed_file_is_not_used(host: Host, tmp_path: Path) -> None:
    host.files["a.bin"] = CONTENT + b"!"
    with pytest.raises(DataError, match="published is md5:") as caught:
        download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    assert host.url("a.bin") in str(caught.value) and md5(CONTENT + b"!") in str(caught.value)
    assert list(tmp_path.iterdir()) == []  # the next try begins anew


def test_answers_that_are_no_file(host: Host, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="answers 404"):
        download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    host.files["a.bin"], host.status = CONTENT, 503
    with pytest.raises(DataError, match="is unreachable"):
        download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin")
    with pytest.raises(DataError, match="is unreachable"):
        download("http://127.0.0.1:9/a.bin", md5(CONTENT), tmp_path / "a.bin")


def test_too_small_a_disk(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.files["a.bin"] = CONTENT
    usage = type("Usage", (), {"free": 2 * len(CONTENT)})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(DataError, match=r"GB free, but downloading and unpacking a\.bin needs .* GB"):
        download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin", room=1.2)
    assert not (tmp_path / "a.bin.part").exists()
    download(host.url("a.bin"), md5(CONTENT), tmp_path / "a.bin", room=0.9)


# Archives.


def archive_with(tmp_path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        fine = tarfile.TarInfo("set/fine.txt")
        fine.size = 4
        tar.addfile(fine, io.BytesIO(b"fine"))
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return tmp_path / "a.tar.gz"


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, target, size
    return found


HARMFUL = {
    "absolute": [member("/TMP/evil", size=1)],  # TMP: the test's own folder
    "climbing": [member("../evil", size=1)],
    "climbing later": [member("set/../../evil", size=1)],
    "folder outside": [member("../evil", tarfile.DIRTYPE)],
    "link out": [member("set/link", tarfile.SYMTYPE, "/etc")],
    "link inside": [member("set/link", tarfile.SYMTYPE, "fine.txt")],
    "file through a link": [member("set/link", tarfile.SYMTYPE, ".."), member("set/link/evil", size=1)],
    "hard link out": [member("set/link", tarfile.LNKTYPE, "/etc/passwd")],
    "hard link to itself": [member("set/link", tarfile.LNKTYPE, "set/link")],
    "pipe": [member("set/pipe", tarfile.FIFOTYPE)],
    "device": [member("set/device", tarfile.CHRTYPE)],
    "another system's path": [member("C:\\evil", size=1)],
    "climbing on another system": [member("set\\..\\..\\evil", size=1)],
}


@pytest.mark.parametrize("case", HARMFUL)
def test_harmful_archives(tmp_path: Path, case: str) -> None:
    members = [found.replace(name=found.name.replace("/TMP", str(tmp_path))) for found in HARMFUL[case]]
    archive = archive_with(tmp_path, *members)
    (tmp_path / "out" / "inner").mkdir(parents=True)
    with pytest.raises(DataError, match="not unpacked") as caught:
        unpack(archive, tmp_path / "out" / "inner", "set")
    assert str(archive) in str(caught.value)
    assert everything(tmp_path / "out") == {"inner/fine.txt": b"fine"}
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert not (tmp_path / "evil").exists()


def test_an_archive_is_unpacked(tmp_path: Path) -> None:
    wild = member("set/deep/er/file", size=3)
    wild.mode, wild.uid = 0o6777, 12345
    folder, again = member("./set", tarfile.DIRTYPE), member("set/again.txt", tarfile.LNKTYPE, "set/fine.txt")
    archive = archive_with(tmp_path, folder, wild, member("beside.txt", size=2), again)
    unpack(archive, tmp_path / "out", "set")
    files = {"fine.txt": b"fine", "deep/er/file": b"xxx", "beside.txt": b"xx", "again.txt": b"fine"}
    assert everything(tmp_path / "out") == files
    (tmp_path / "out" / "again.txt").write_bytes(b"changed")
    assert (tmp_path / "out" / "fine.txt").read_bytes() == b"fine"  # a copy, not a link
    status = (tmp_path / "out" / "deep" / "er" / "file").stat()
    assert status.st_uid == os.getuid() and not status.st_mode & 0o6111  # neither its owner nor its rights


@pytest.mark.parametrize("content", [b"", b"no archive", CONTENT])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out", "set")


def test_half_an_archive(tmp_path: Path) -> None:
    archive = archive_with(tmp_path, member("set/large", size=100_000))
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out", "set")


# Whole sets.


def test_a_set_is_fetched(offered: Facts, tmp_path: Path) -> None:
    folder = fetch(offered, tmp_path / "root")
    assert folder == tmp_path / "root" / "oxford-iiit-pet"
    made = everything(tmp_path / "made" / "oxford-iiit-pet")
    assert everything(tmp_path / "root") == {f"oxford-iiit-pet/{name}": content for name, content in made.items()}
    assert read_benchmark("pets", tmp_path / "root", tmp_path).folder == folder


def test_a_fetch_that_was_interrupted_goes_on(offered: Facts, host: Host, tmp_path: Path) -> None:
    second = host.files.pop("annotations.tar.gz")
    with pytest.raises(DataError, match="404"):
        fetch(offered, tmp_path / "root")
    assert not (tmp_path / "root" / "oxford-iiit-pet").exists()
    host.files["annotations.tar.gz"] = second
    host.asked.clear()
    fetch(offered, tmp_path / "root")
    assert host.asked == [None]  # the first archive was there already
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["oxford-iiit-pet"]


def test_a_harmful_archive_leaves_no_folder(offered: Facts, host: Host, tmp_path: Path) -> None:
    evil = archive_with(tmp_path, *HARMFUL["climbing"]).read_bytes()
    host.files["annotations.tar.gz"] = evil
    facts = replace(offered, archives=(offered.archives[0], replace(offered.archives[1], checksum=md5(evil))))
    with pytest.raises(DataError, match="lies outside"):
        fetch(facts, tmp_path / "root")
    assert [path.name for path in (tmp_path / "root").iterdir()] == [".pets.fetch"]


def test_nothing_is_left_where_nothing_came(offered: Facts, tmp_path: Path) -> None:
    nowhere = replace(offered, archives=(Archive("http://127.0.0.1:9/a.tar.gz", md5(b""), ""),))
    with pytest.raises(DataError):
        fetch(nowhere, tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_two_at_once(offered: Facts, tmp_path: Path) -> None:
    """The second one is refused, and does no harm to the first."""
    downloads = tmp_path / "root" / ".pets.fetch"
    downloads.mkdir(parents=True)
    holder = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(downloads / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None and first.stdin is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="another process is fetching"):
            fetch(offered, tmp_path / "root")
        first.stdin.write("\n")
    assert downloads.is_dir()


def test_a_folder_that_is_there_is_not_touched(offered: Facts, tmp_path: Path) -> None:
    (tmp_path / "root" / "oxford-iiit-pet").mkdir(parents=True)
    (tmp_path / "root" / "oxford-iiit-pet" / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        fetch(offered, tmp_path / "root")
    assert everything(tmp_path / "root") == {"oxford-iiit-pet/mine.txt": b"precious"}


@pytest.mark.parametrize("name", ["imagenet100", "imagenet1k", "cars"])
def test_what_cannot_be_fetched_says_how_to_get_it(command: Command, name: str, tmp_path: Path) -> None:
    said = command("fetch", name, "--root", tmp_path / "root")
    assert said.code == 2 and facts_of(name).by_hand in said.complaint
    assert not (tmp_path / "root").exists()


# The command.


def test_the_command(command: Command, offered: Facts, host: Host, tmp_path: Path) -> None:
    said = command("fetch", "pets", "--root", tmp_path / "root")
    assert said.code == 0 and f"debgcd check --benchmark pets --root {tmp_path / 'root'}" in said.out
    asked = len(host.asked)
    again = command("fetch", "pets", "--root", tmp_path / "root")
    assert (again.code, again.out, len(host.asked)) == (0, said.out, asked)  # it is there
    (tmp_path / "root" / "oxford-iiit-pet" / "annotations" / "test.txt").unlink()
    said = command("fetch", "pets", "--root", tmp_path / "root")
    assert said.code == 3 and "annotations/test.txt is missing" in said.complaint and "move" in said.complaint


def test_ctrl_c_says_how_to_go_on(
    command: Command, offered: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("debgcd.datasets.fetch.unpack", stop)
    said = command("fetch", "pets", "--root", tmp_path / "root")
    assert said.code == 130 and said.err.splitlines()[-1] == "debgcd: stopped; to continue, repeat the command"
    assert not (tmp_path / "root" / "oxford-iiit-pet").exists()
