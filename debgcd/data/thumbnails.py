"""Small pictures of images, made once and kept in the cache."""

from __future__ import annotations

import io
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from PIL import Image

from debgcd.data.fingerprints import file_stamp
from debgcd.data.image.crop import Picture
from debgcd.data.image.decode import Unusable, decode
from debgcd.errors import DataError
from debgcd.system.machine import cores
from debgcd.system.progress import Report

SIDE, QUALITY = 80, 55  # pixels; of WebP. About 1.5 kB per photograph
NAME = f"thumbnails-{{}}-{QUALITY}.sqlite"  # by their side
CHUNK = 256  # images between two writes to the cache

Thumbnail = bytes | str  # a WebP file, or the reason why there is none


def thumbnails(paths: Sequence[Picture], cache: Path, report: Report | None = None) -> list[Thumbnail]:
    """A square WebP per image, cut from its centre; the reason instead where an image cannot be read."""
    found: list[Thumbnail] = []
    with (
        closing(open_cache(cache, SIDE)) as table,
        ThreadPoolExecutor(cores()) as pool,
    ):  # decoding and encoding free the interpreter
        for start in range(0, len(paths), CHUNK):
            some = paths[start : start + CHUNK]
            stamps = [stamp(path) for path in some]
            old = [kept(table, path, when) for path, when in zip(some, stamps, strict=True)]
            missing = [i for i, one in enumerate(old) if one is None]
            made = dict(zip(missing, pool.map(make, [some[i] for i in missing]), strict=True))
            keep(
                table,
                [(os.fsencode(str(some[i])), stamps[i], new) for i, new in made.items() if isinstance(new, bytes)],
            )
            found += [made[i] if one is None else one for i, one in enumerate(old)]
            if report is not None:
                report(len(found), len(paths))
    return found


def square(path: Picture, size: int) -> Image.Image:
    """The centre of an image at size × size pixels; raises `Unusable`."""
    image = Image.fromarray(decode(path, size))
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    smooth = Image.Resampling.NEAREST if side < size // 2 else Image.Resampling.BICUBIC
    return image.resize((size, size), smooth, (left, top, left + side, top + side))


def make(path: Picture, size: int = SIDE) -> Thumbnail:
    """One thumbnail of size × size pixels."""
    content = io.BytesIO()
    try:
        square(path, size).save(content, "WEBP", quality=QUALITY, method=2)
    except Unusable as error:
        return str(error)
    return content.getvalue()


def stamp(path: Picture) -> str:
    """Changes when the file does; empty where there is none."""
    with suppress(DataError):
        return " ".join(map(str, file_stamp(path)))
    return ""


def open_cache(cache: Path, size: int) -> sqlite3.Connection:
    """The file of all thumbnails of this size; in memory where that cannot be had, because it only saves time.

    Several threads may use it, one at a time.
    """
    create = "CREATE TABLE IF NOT EXISTS thumbnails (path BLOB PRIMARY KEY, stamp TEXT, webp BLOB) WITHOUT ROWID"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        table = sqlite3.connect(cache / NAME.format(size), timeout=60, check_same_thread=False)
        table.execute(create)
    except (sqlite3.Error, OSError):
        table = sqlite3.connect(":memory:", check_same_thread=False)
        table.execute(create)
    return table


def kept(table: sqlite3.Connection, path: Picture, when: str) -> bytes | None:
    """The thumbnail of a file with this `stamp`, if there is one."""
    with suppress(sqlite3.Error):
        question = "SELECT webp FROM thumbnails WHERE path = ? AND stamp = ?"
        row = table.execute(question, (os.fsencode(str(path)), when)).fetchone()
        if row and isinstance(row[0], bytes) and row[0][8:12] == b"WEBP":
            return row[0]
    return None


def keep(table: sqlite3.Connection, rows: list[tuple[bytes, str, bytes]]) -> None:
    """Keep thumbnails: path, stamp, WebP."""
    with suppress(sqlite3.Error), table:
        table.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?, ?)", rows)
