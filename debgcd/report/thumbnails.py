"""Small pictures of images, made once and kept in the cache."""

from __future__ import annotations

import io
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from debgcd.data.crop import Picture
from debgcd.data.decode import Unusable, decode
from debgcd.machine import cores
from debgcd.progress import Report

SIDE, QUALITY = 80, 55  # pixels; of WebP. About 1.5 kB per photograph
FILE = f"thumbnails-{SIDE}-{QUALITY}.sqlite"
CHUNK = 256  # images between two writes to the cache
PRINT = 8  # side of a fingerprint

Thumbnail = bytes | str  # a WebP file, or the reason why there is none


def thumbnails(paths: Sequence[Picture], cache: Path, report: Report | None = None) -> list[Thumbnail]:
    """A square WebP per image, cut from its centre; the reason instead where an image cannot be read."""
    found: list[Thumbnail] = []
    with (
        closing(_open(cache)) as table,
        ThreadPoolExecutor(cores()) as pool,
    ):  # decoding and encoding free the interpreter
        for start in range(0, len(paths), CHUNK):
            some = paths[start : start + CHUNK]
            stamps = [_stamp(path) for path in some]
            kept = [_kept(table, path, stamp) for path, stamp in zip(some, stamps, strict=True)]
            missing = [i for i, old in enumerate(kept) if old is None]
            made = dict(zip(missing, pool.map(_make, [some[i] for i in missing]), strict=True))
            _keep(
                table,
                [(os.fsencode(str(some[i])), stamps[i], new) for i, new in made.items() if isinstance(new, bytes)],
            )
            found += [made[i] if old is None else old for i, old in enumerate(kept)]
            if report is not None:
                report(len(found), len(paths))
    return found


def fingerprints(thumbnails: Sequence[Thumbnail]) -> NDArray[np.float32]:
    """(N, 192) colours in 0..1 of an image at 8 × 8 pixels, to find near-duplicates; nan without a thumbnail."""
    prints = np.full((len(thumbnails), PRINT * PRINT * 3), np.nan, np.float32)
    for i, thumbnail in enumerate(thumbnails):
        if isinstance(thumbnail, bytes):
            small = (
                Image.open(io.BytesIO(thumbnail), formats=["WEBP"])
                .convert("RGB")
                .resize((PRINT, PRINT), Image.Resampling.BOX)
            )
            prints[i] = np.asarray(small, np.float32).ravel() / 255
    return prints


def _make(path: Picture) -> Thumbnail:
    try:
        image = Image.fromarray(decode(path, SIDE))
    except Unusable as error:
        return str(error)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    smooth = Image.Resampling.NEAREST if side < SIDE // 2 else Image.Resampling.BICUBIC
    content = io.BytesIO()
    image.resize((SIDE, SIDE), smooth, box).save(content, "WEBP", quality=QUALITY, method=2)
    return content.getvalue()


def _stamp(path: Picture) -> str:
    """Changes when the file does; empty where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def _open(cache: Path) -> sqlite3.Connection:
    """The cache; one in memory where that cannot be had, because it only saves time."""
    create = "CREATE TABLE IF NOT EXISTS thumbnails (path BLOB PRIMARY KEY, stamp TEXT, webp BLOB) WITHOUT ROWID"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        table = sqlite3.connect(cache / FILE, timeout=60)
        table.execute(create)
    except (sqlite3.Error, OSError):
        table = sqlite3.connect(":memory:")
        table.execute(create)
    return table


def _kept(table: sqlite3.Connection, path: Picture, stamp: str) -> bytes | None:
    with suppress(sqlite3.Error):
        question = "SELECT webp FROM thumbnails WHERE path = ? AND stamp = ?"
        row = table.execute(question, (os.fsencode(str(path)), stamp)).fetchone()
        if row and isinstance(row[0], bytes) and row[0][8:12] == b"WEBP":
            return row[0]
    return None


def _keep(table: sqlite3.Connection, rows: list[tuple[bytes, str, bytes]]) -> None:
    with suppress(sqlite3.Error), table:
        table.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?, ?)", rows)
