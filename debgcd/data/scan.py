"""Decode every image once before a run, so that unusable files are known at the start and not at step 9 000."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace

import numpy as np

from debgcd.data.image.crop import Picture
from debgcd.data.image.decode import Reason, Unusable, decode
from debgcd.data.manifest import Manifest, Skipped, shown
from debgcd.system import distributed
from debgcd.system.machine import cores, worker_pool

FEWEST_FOR_WORKERS = 256  # with fewer files, starting processes takes longer than it saves
FILES_PER_TASK = 32  # files that a worker checks per task

Verdict = str | None  # the reason why a file cannot be used; None: it can


def scan(
    manifest: Manifest, workers: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """Decode every image and move unusable ones to `skipped`, with their reasons.

    workers: processes (None: one per core; 0 or 1: only this process). on_progress(done, total) reports progress.
    """
    verdicts: list[Verdict] = [None] * len(manifest)
    workers = cores() // distributed.local_count() if workers is None else workers
    alone = workers < 2 or len(manifest) < FEWEST_FOR_WORKERS or multiprocessing.current_process().daemon
    done = 0
    for start, chunk in (_in_this_process if alone else _in_workers)(manifest.paths, workers):
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


def check_files(paths: Sequence[Picture]) -> list[Verdict]:
    """The verdict on each file, by decoding it; public because worker processes import it."""
    return [_check(path) for path in paths]


def _check(path: Picture) -> Verdict:
    try:
        # a JPEG at 1/8 scale: still reads every byte, in a fraction of the time
        decode(path, short_side=1)
    except Unusable as why:
        # not the exception itself, whose traceback keeps the pixels in memory
        return str(why)
    return None


def _in_this_process(paths: Sequence[Picture], workers: int) -> Iterator[tuple[int, list[Verdict]]]:
    """The verdicts in chunks, each with the position of its first file; `workers` is not used."""
    for start in range(0, len(paths), FILES_PER_TASK):
        yield start, check_files(paths[start : start + FILES_PER_TASK])


def _in_workers(paths: Sequence[Picture], workers: int) -> Iterator[tuple[int, list[Verdict]]]:
    """As `_in_this_process`, in worker processes: a file that crashes a decoder ends a worker, not the run."""
    left = set(range(0, len(paths), FILES_PER_TASK))
    with worker_pool(workers) as pool:
        try:
            pool.submit(check_files, ()).result()
        except BrokenProcessPool:
            # workers cannot start: too little memory
            yield from _in_this_process(paths, workers)
            return
        try:
            with suppress(BrokenProcessPool):
                futures = {
                    pool.submit(check_files, paths[start : start + FILES_PER_TASK]): start for start in sorted(left)
                }
                for future in as_completed(futures):
                    chunk = future.result()
                    left.discard(futures[future])
                    yield futures[future], chunk
        finally:
            # after an interruption, drop the files that no worker has started
            pool.shutdown(wait=False, cancel_futures=True)
    if left:
        # a worker died: check the remaining files one by one to find the cause
        yield from _one_by_one(paths, sorted(left))


def _one_by_one(paths: Sequence[Picture], starts: Sequence[int]) -> Iterator[tuple[int, list[Verdict]]]:
    """As `_in_workers`, for the chunks that begin at `starts`, one file per task, to find the file that ends its worker."""
    pool = worker_pool(1)
    try:
        for start in starts:
            chunk: list[Verdict] = []
            for path in paths[start : start + FILES_PER_TASK]:
                try:
                    chunk += pool.submit(check_files, (path,)).result()
                except BrokenProcessPool:
                    chunk.append(str(Unusable(Reason.CORRUPT, "decoding it crashed the process")))
                    pool = worker_pool(1)
            yield start, chunk
    finally:
        pool.shutdown()
