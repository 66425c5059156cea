"""Pictures for the page, by number: thumbnails made once in worker processes and kept in the cache, and larger ones.

Only pixels that were decoded are ever sent, and only of files that are what they were when the run began. So a link to
another file, put in an image's place, shows nothing.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from PIL import Image

from debgcd.data.fingerprints import require_own
from debgcd.data.image.crop import Picture
from debgcd.data.image.decode import Unusable, decode
from debgcd.data.thumbnails import Thumbnail, keep, kept, make, open_cache, stamp
from debgcd.system.machine import cores, worker_pool

SIDE = 160  # pixels of a thumbnail: sharp where a point of the screen has two
LARGE = 1200  # the longer side of a large picture, at most


class Workers:
    """Fresh worker processes; a file that crashes a decoder costs a worker, not the server."""

    def __init__(self, count: int):
        self._count, self._lock, self._closed = count, threading.Lock(), False
        self._pool = self._fresh()
        for _ in range(count):
            self._pool.submit(ready)  # a process takes seconds to start: not when the first image is waited for

    def _fresh(self) -> ProcessPoolExecutor:
        return worker_pool(self._count)

    def do(self, work: Callable[..., Any], *values: Any) -> Any:
        """Call a function in a worker and wait for what it returns."""
        for last in (False, True):
            pool = self._pool
            try:
                return pool.submit(work, *values).result()
            except BrokenProcessPool:
                with self._lock:
                    if last or self._closed:  # the work of others may have broken the pool, but hardly twice
                        raise
                    if self._pool is pool:
                        self._pool = self._fresh()
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End the workers, also those that are at work: at its exit Python would wait for them."""
        with self._lock:
            self._closed = True
        workers = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()


def ready() -> None:
    """What a worker does first: it has imported this module."""


class Pictures:
    """The images of a run, by number."""

    def __init__(self, paths: Sequence[Picture], digests: Sequence[str], cache: Path):
        self._paths, self._digests = paths, digests
        self._workers = Workers(cores())
        self._table, self._lock = open_cache(cache, SIDE), threading.Lock()

    def __len__(self) -> int:
        return len(self._paths)

    def file(self, number: int) -> tuple[Picture, str]:
        """The place of an image, and its sha256 when the run began."""
        return self._paths[number], self._digests[number]

    def thumbnail(self, number: int) -> Thumbnail:
        """A WebP, from the cache if it is there; or the reason why there is none."""
        path = self._paths[number]
        when = stamp(path)
        with self._lock:
            found = kept(self._table, path, self._key(number, when))
        if found is None:
            made = self._made(_small, number)
            if isinstance(made, str):
                return made
            with self._lock:
                keep(self._table, [(os.fsencode(str(path)), self._key(number, when), made)])
            found = made
        return found

    def large(self, number: int) -> Thumbnail:
        """The whole image as WebP, as large as a window; or the reason why there is none."""
        return self._made(_large, number)

    def close(self) -> None:
        """End the worker processes."""
        self._workers.close()
        self._table.close()

    def _key(self, number: int, when: str) -> str:
        return f"{when} {self._digests[number]}"  # another run's file at this place is another picture

    def _made(self, work: Callable[[Picture, str], Thumbnail], number: int) -> Thumbnail:
        try:
            return self._workers.do(work, *self.file(number))
        except BrokenProcessPool:
            return "corrupt: decoding it crashed the process"


def _small(path: Picture, digest: str) -> Thumbnail:
    try:
        require_own(path, digest)
    except Unusable as error:
        return str(error)
    return make(path, SIDE)


def _large(path: Picture, digest: str) -> Thumbnail:
    try:
        require_own(path, digest)
        image = Image.fromarray(decode(path, LARGE))
    except Unusable as error:
        return str(error)
    image.thumbnail((LARGE, LARGE))
    content = io.BytesIO()
    image.save(content, "WEBP", quality=85, method=2)
    return content.getvalue()
