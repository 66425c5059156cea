"""Archives, unpacked so that nothing outside the folder can be touched: only plain files and folders, only below it."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from debgcd.errors import DataError
from debgcd.progress import progress

MB = 10**6


def unpack(archive: Path, folder: Path, inside: str) -> None:
    """Write the files of a tar archive below `folder`; what lies in its folder `inside` goes to the top.

    A name that is absolute or climbs with "..", a link, a device or a pipe is refused: no set has any.
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
                elif member.isreg():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    source = tar.extractfile(member)
                    assert source is not None  # of a regular file there is one
                    with source, open(target, "wb") as file:
                        shutil.copyfileobj(source, file)
                else:
                    raise DataError(
                        f"{archive} holds {member.name!r}, which is neither a file nor a folder: not unpacked"
                    )
                report(content.tell() // MB, -(-size // MB))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}): remove it and type the same again") from error


def _below(archive: Path, name: str, inside: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise DataError(f"{archive} holds {name!r}, which would lie outside its folder: not unpacked")
    return path.relative_to(inside) if inside and path.is_relative_to(inside) else path
