"""A file from the web: resumable, and used only when its checksum is the published one."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from debgcd import __version__
from debgcd.errors import DataError
from debgcd.progress import Report, progress

CHUNK = 1 << 20
PATIENCE = 60  # seconds without a byte
MB = 10**6


class Unreachable(DataError):
    """No connection to the host: another source may do."""


def download(address: str, checksum: str, target: Path, room: float = 1.0) -> None:
    """Bring the file at `address` to `target`; `target` appears only when its checksum is right.

    What has come stays in target.part, and the next call goes on from there. room: how many times the file's size the
    disk has to have free beside the file itself, for what will be unpacked from it.
    """
    if target.exists() and _digest(target, checksum) == checksum:
        return
    part = target.with_name(f"{target.name}.part")
    with progress(f"downloading {target.name}, MB") as report:
        _complete(address, part, room, report)
    verify(part, checksum, address)
    part.replace(target)


def verify(file: Path, checksum: str, address: str) -> None:
    """Refuse, and remove, a file whose checksum is not the published one."""
    found = _digest(file, checksum)
    if found != checksum:
        size = file.stat().st_size
        file.unlink()
        raise DataError(
            f"{address} gave {size} bytes with the checksum {found}, published is {checksum}: the file was changed or "
            "damaged on the way, and is not used; type the same again, or get the set elsewhere"
        )


def _digest(file: Path, checksum: str) -> str:
    kind = checksum.partition(":")[0]
    with open(file, "rb") as content:
        return f"{kind}:{hashlib.file_digest(content, kind).hexdigest()}"


def _complete(address: str, part: Path, room: float, report: Report) -> None:
    """Transfer until the file is whole, going on at once after each break as long as something still comes."""
    while True:
        before = _size(part)
        why = "the connection was closed"
        try:
            if _transfer(address, part, room, report):
                return
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise DataError(f"{address} answers {error.code} ({error.reason}): it may have moved") from error
            if isinstance(error, urllib.error.URLError):
                raise Unreachable(f"{address} cannot be reached ({error.reason}): check the network") from error
            if not isinstance(error, ConnectionError | TimeoutError | ssl.SSLError | http.client.HTTPException):
                raise  # the disk's, not the network's
            why = str(error) or type(error).__name__
        if _size(part) <= before:
            raise DataError(
                f"the transfer of {address} broke off after {_size(part)} bytes ({why}); they are kept in {part}: type the "
                "same again to go on"
            )


def _transfer(address: str, part: Path, room: float, report: Report) -> bool:
    """One connection; true if the file is whole after it."""
    have = _size(part)
    headers = {"User-Agent": f"debgcd/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return True
        part.unlink()  # longer than the file: it is of something else
        return _transfer(address, part, room, report)
    with answer:
        if answer.status != http.client.PARTIAL_CONTENT:
            have = 0  # all of it comes, whatever was asked for
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise http.client.HTTPException("the host sent another part than was asked for")
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        if total is not None:
            _require_room(part, total - have + room * total)
        with open(part, "ab" if have else "wb") as file:
            while chunk := answer.read(CHUNK):
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
            f"{part.parent} has {free / 1e9:.1f} GB free, but {wanted / 1e9:.1f} GB are needed to download and unpack "
            f"{part.stem}: make room, or choose another --root"
        )
