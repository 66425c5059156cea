"""Sets from where they are published: downloaded, verified, unpacked; the set's folder appears complete or not at all.

download (resumable) -> verify the published checksum -> unpack, plain files and folders inside the set's folder only
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import ssl
import tarfile
import urllib.error
import urllib.request
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO
from urllib.parse import urlsplit

from debgcd import __version__
from debgcd.datasets.facts import Facts
from debgcd.errors import DataError, UsageError
from debgcd.system.files import lock, named_errors, new_folder
from debgcd.system.progress import Report, progress

UNPACKED = 1.2  # size of the unpacked files relative to the archive: images hardly compress
CHUNK = 1 << 20
TIMEOUT = 60  # seconds without a byte
MB = 10**6


def fetch(facts: Facts, root: Path) -> Path:
    """Fetch a set into a new folder in `root`, and return that folder.

    The next call resumes interrupted downloads; they are deleted once the folder is complete.
    """
    if not facts.archives:
        raise UsageError(f"{facts.title} cannot be fetched: {facts.how_to_get}")
    folder = root / facts.folder
    if folder.exists():
        raise UsageError(f"{folder} exists already; move it away, or keep it")
    downloads = root / f".{facts.name}.fetch"
    downloads.mkdir(parents=True, exist_ok=True)
    with lock(downloads, "fetching"):
        try:
            files = []
            for archive in facts.archives:
                files.append(downloads / PurePosixPath(urlsplit(archive.address).path).name)
                download(archive.address, archive.checksum, files[-1], room=UNPACKED)
            with new_folder(folder) as new:
                for file, archive in zip(files, facts.archives, strict=True):
                    unpack(file, new, archive.inside)
        except BaseException:
            if {entry.name for entry in downloads.iterdir()} <= {".lock"}:
                shutil.rmtree(downloads)  # nothing that a second call could resume
            raise
        shutil.rmtree(downloads)
    return folder


def download(address: str, checksum: str, target: Path, room: float = 1.0) -> None:
    """Download `address` to `target`, which appears only with the published checksum.

    A partial download stays in target.part, and the next call resumes it. room: additional free disk space needed for the
    unpacked files, relative to the size of the file.
    """
    if target.exists() and _digest(target, checksum) == checksum:
        return
    part = target.with_name(f"{target.name}.part")
    with progress(f"downloading {target.name}, MB") as report:
        _complete(address, part, room, report)
    verify(part, checksum, address)
    part.replace(target)


def verify(file: Path, checksum: str, address: str) -> None:
    """Refuse and delete a file whose checksum differs from the published one."""
    found = _digest(file, checksum)
    if found != checksum:
        size = file.stat().st_size
        file.unlink()
        raise DataError(
            f"{address} gave {size} bytes with the checksum {found}, published is {checksum}; the file was changed or "
            "damaged and is not used: try again, or get the set elsewhere"
        )


def _digest(file: Path, checksum: str) -> str:
    kind = checksum.partition(":")[0]
    with open(file, "rb") as content:
        return f"{kind}:{hashlib.file_digest(content, kind).hexdigest()}"


def _complete(address: str, part: Path, room: float, report: Report) -> None:
    """Transfer until the file is complete; reconnect after each interruption as long as there is progress."""
    while True:
        before = _size(part)
        why = "the connection was closed"
        try:
            if _transfer(address, part, room, report):
                return
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise DataError(f"{address} answers {error.code} ({error.reason}); the file may have moved") from error
            if isinstance(error, urllib.error.URLError):
                raise DataError(f"{address} is unreachable ({error.reason}); check the network") from error
            if not isinstance(error, ConnectionError | TimeoutError | ssl.SSLError | http.client.HTTPException):
                raise  # an error of the disk, not of the network
            why = str(error) or type(error).__name__
        if _size(part) <= before:
            raise DataError(
                f"the download of {address} stopped after {_size(part)} bytes ({why}), which are kept in {part}; "
                "repeat the command to resume"
            )


def _transfer(address: str, part: Path, room: float, report: Report) -> bool:
    """One connection; true if the file is complete after it."""
    have = _size(part)
    headers = {"User-Agent": f"debgcd/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return True
        part.unlink()  # longer than the file, so not a part of it
        return _transfer(address, part, room, report)
    with answer:
        if answer.status != http.client.PARTIAL_CONTENT:
            have = 0  # the host ignores Range and sends the whole file
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise http.client.HTTPException("the host sent another range than requested")
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        if total is not None:
            _require_room(part, total - have + room * total)
        with open(part, "ab" if have else "wb") as file:
            while chunk := answer.read(CHUNK):
                with named_errors(part):
                    file.write(chunk)
                have += len(chunk)
                if total is not None:
                    report(-(-have // MB), -(-total // MB))
    return total is None or have >= total


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _require_room(part: Path, wanted: float) -> None:
    free = shutil.disk_usage(part.parent).free
    if free < wanted:
        raise DataError(
            f"{part.parent} has {free / 1e9:.1f} GB free, but downloading and unpacking {part.stem} needs "
            f"{wanted / 1e9:.1f} GB; free some space, or choose another folder"
        )


def unpack(archive: Path, folder: Path, inside: str) -> None:
    """Extract a tar archive into `folder`; the content of its folder `inside` goes to the top level.

    Absolute names, "..", symbolic links, devices and pipes are refused: no set has any. A hard link to a file of the same
    archive becomes a copy.
    """
    size = archive.stat().st_size
    try:
        with (
            progress(f"unpacking {archive.name}, MB") as report,
            open(archive, "rb") as content,
            tarfile.open(fileobj=content) as tar,
        ):
            for member in tar:
                target = folder / _below(archive, member.name, inside)
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with _content(archive, tar, member) as source, open(target, "wb") as file:
                        shutil.copyfileobj(source, file)
                report(content.tell() // MB, -(-size // MB))
            report(-(-size // MB), -(-size // MB))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); delete it and repeat the command") from error


def _below(archive: Path, name: str, inside: str) -> PurePosixPath:
    for path in (PurePosixPath(name), PureWindowsPath(name)):  # whatever the system
        if path.anchor or ".." in path.parts:
            raise DataError(f"{archive} is not unpacked: it holds {name!r}, which lies outside its folder")
    path = PurePosixPath(name)
    return path.relative_to(inside) if inside and path.is_relative_to(inside) else path


def _content(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    source = None
    if member.isreg() or member.islnk():
        # a hard link to a file outside the archive; others are read from the archive, never from disk
        with suppress(KeyError):
            source = tar.extractfile(member)
    if source is None:
        raise DataError(f"{archive} is not unpacked: it holds {member.name!r}, which is neither a file nor a folder")
    return source
