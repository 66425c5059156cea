"""Decode every image once before a run, so that what cannot be used is known at the start and not at step 9 000."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from debgcd.data.decode import Reason, Unusable, decode
from debgcd.data.rows import Manifest, Skipped, shown
from debgcd.machine import cores

FEW = 256  # below this many files starting processes takes longer than it saves
CHUNK = 32

Verdict = str | None  # why a file cannot be used


def scan(
    manifest: Manifest, workers: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """Decode every image and move those that cannot be used to `skipped`, with their reasons.

    workers: processes (None: one a core; 0 or 1: none but this one). on_progress(done, total) is called on the way.
    """
    verdicts: list[Verdict] = [None] * len(manifest)
    workers = cores() if workers is None else workers
    alone = workers < 2 or len(manifest) < FEW or multiprocessing.current_process().daemon
    done = 0
    for start, chunk in (_here if alone else _pooled)(manifest.paths, workers):
        verdicts[start : start + len(chunk)] = chunk
        done += len(chunk)
        if on_progress is not None:
            on_progress(done, len(manifest))
    usable = manifest.select(np.array([verdict is None for verdict in verdicts], dtype=bool))
    broken = [
        Skipped(shown(path), verdict)
        for path, verdict in zip(manifest.paths, verdicts, strict=True)
        if verdict is not None
    ]
    return replace(usable, skipped=manifest.skipped + tuple(broken))


def check_files(paths: Sequence[Path]) -> list[Verdict]:
    """None for each file that decodes, else why it does not; at module level for worker processes to find it."""
    return [_check(path) for path in paths]


def _check(path: Path) -> Verdict:
    try:
        decode(
            path, short_side=1
        )  # a JPEG at 1/8 scale: every byte of it is read all the same, in a fraction of the time
    except Unusable as why:
        return str(why)  # not the exception: its traceback would keep the pixels alive
    return None


def _here(paths: Sequence[Path], workers: int) -> Iterator[tuple[int, list[Verdict]]]:
    for start in range(0, len(paths), CHUNK):
        yield start, check_files(paths[start : start + CHUNK])


def _pooled(paths: Sequence[Path], workers: int) -> Iterator[tuple[int, list[Verdict]]]:
    """Check in processes of their own: a file that crashes a decoder or fills the memory costs a worker, not a run."""
    left = set(range(0, len(paths), CHUNK))
    with _pool(workers) as pool:
        try:
            pool.submit(check_files, ()).result()
        except BrokenProcessPool:  # no worker can start: a script without `if __name__ == "__main__"`, or no memory
            yield from _here(paths, workers)
            return
        with suppress(BrokenProcessPool):
            futures = {pool.submit(check_files, paths[start : start + CHUNK]): start for start in sorted(left)}
            for future in as_completed(futures):
                chunk = future.result()
                left.discard(futures[future])
                yield futures[future], chunk
    if left:  # a worker died: one file at a time from here on, to find the one to blame
        yield from _one_by_one(paths, sorted(left))


def _one_by_one(paths: Sequence[Path], starts: Sequence[int]) -> Iterator[tuple[int, list[Verdict]]]:
    pool = _pool(1)
    try:
        for start in starts:
            chunk: list[Verdict] = []
            for path in paths[start : start + CHUNK]:
                try:
                    chunk += pool.submit(check_files, (path,)).result()
                except BrokenProcessPool:
                    chunk.append(str(Unusable(Reason.CORRUPT, "decoding it ended the process")))
                    pool = _pool(1)
            yield start, chunk
    finally:
        pool.shutdown()


def _pool(workers: int) -> ProcessPoolExecutor:
    """Fresh processes: a fork would copy torch's locks in whatever state its threads hold them."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method))
