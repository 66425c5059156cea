"""Archives, unpacked so that nothing outside the folder can be touched: only plain files and folders, only below it."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from debgcd.errors import DataError
from debgcd.progress import progress

MB = 10**6


def unpack(archive: Path, folder: Path, inside: str) -> None:
    """Write the files of a tar archive below `folder`; what lies in its folder `inside` goes to the top.

    A name that is absolute or climbs with "..", a symbolic link, a device or a pipe is refused: no set has any. A hard
    link to a file of the same archive becomes a file of the same content.
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
        raise DataError(f"{archive} cannot be unpacked ({error}): remove it and type the same again") from error


def _below(archive: Path, name: str, inside: str) -> PurePosixPath:
    for path in (PurePosixPath(name), PureWindowsPath(name)):  # what climbs or starts at the top on any system
        if path.anchor or ".." in path.parts:
            raise DataError(f"{archive} holds {name!r}, which would lie outside its folder: not unpacked")
    path = PurePosixPath(name)
    return path.relative_to(inside) if inside and path.is_relative_to(inside) else path


def _content(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    source = None
    if member.isreg() or member.islnk():
        with suppress(KeyError):  # a hard link to what is not in the archive; else it is read there, never on disk
            source = tar.extractfile(member)
    if source is None:
        raise DataError(f"{archive} holds {member.name!r}, which is neither a file nor a folder: not unpacked")
    return source
