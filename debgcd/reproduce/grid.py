"""The runs of an experiment: which there are, and how they are brought to their end, each by the command line's own words.

A run's folder is named after all that its result depends on, so that experiments share runs, and one that is finished is
never repeated.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from debgcd import config as configuration
from debgcd.config import Config
from debgcd.data.manifest import Manifest, write_manifest
from debgcd.files import write_text
from debgcd.progress import say
from debgcd.train.run import open_run


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    row: str
    set: str
    seed: int
    manifest: Path
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.set} · {self.row} · seed {self.seed}"

    @property
    def finished(self) -> bool:
        return (self.folder / "config.yaml").exists() and open_run(self.folder).finished

    def command(self) -> list[str]:
        """What to type to begin this run, or to go on with it."""
        if (self.folder / "config.yaml").exists():
            return ["debgcd", "resume", str(self.folder)]
        self.settings.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.settings, configuration.dump(self.config))
        where = ["--preset", self.config.preset, "--config", str(self.settings), "-o", str(self.folder)]
        return ["debgcd", "train", str(self.manifest), *where]

    @property
    def settings(self) -> Path:
        return self.folder.with_suffix(".yaml")

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")


def cell(row: str, name: str, seed: int, manifest: Path, config: Config, out: Path) -> Cell:
    """The run of a row on a set; its folder tells runs with other settings or images apart."""
    settings = {key: value for key, value in configuration.to_dict(config).items() if key not in ("run", "seed")}
    told = json.dumps([settings, hashlib.sha256(manifest.read_bytes()).hexdigest()], sort_keys=True)
    folder = out / name / f"{config.method}-{hashlib.sha256(told.encode()).hexdigest()[:8]}" / f"seed-{seed}"
    return Cell(row, name, seed, manifest, configuration.override(config, {"seed": seed}, where=row), folder)


def keep_manifest(manifest: Manifest, path: Path) -> Path:
    """Write a set's manifest, for all of its runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_manifest(manifest, path)
    return path


def devices() -> list[str | None]:
    """Each GPU by the name that CUDA_VISIBLE_DEVICES knows it by; one None where there is at most one."""
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return [None]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(given.split(",")) if given else [str(i) for i in range(count)]


def finish(cells: Iterable[Cell], places: Sequence[str | None], program: Sequence[str] = ()) -> dict[Path, str]:
    """Bring every run to its end, one at a time on each place; the folders of those that failed, and why.

    program: instead of this package's command line.
    """
    program = list(program) or [sys.executable, "-m", "debgcd.cli"]
    runs = {cell.folder: cell for cell in cells}  # rows of one configuration are one run
    open_ones = [cell for cell in runs.values() if not cell.finished]
    say(f"{len(runs)} runs: {len(runs) - len(open_ones)} done, {len(open_ones)} to do")
    free: SimpleQueue[str | None] = SimpleQueue()
    for place in places:
        free.put(place)
    failed: dict[Path, str] = {}
    with _children() as start, ThreadPoolExecutor(len(places)) as pool:

        def work(number: int, cell: Cell) -> None:
            place = free.get()
            try:
                say(f"\n[{number}/{len(open_ones)}] {cell.name}" + ("" if place is None else f" on GPU {place}"))
                code = start(cell, program, place, alone=len(places) == 1)
                if code:
                    failed[cell.folder] = _reason(cell, code)
                    say(f"{cell.name} failed: {failed[cell.folder]}")
            finally:
                free.put(place)

        for done in [pool.submit(work, number, cell) for number, cell in enumerate(open_ones, start=1)]:
            done.result()
    return failed


Start = Callable[..., int]


@contextmanager
def _children() -> Iterator[Start]:
    """Starts runs in processes of their own; when this one is told to stop, each is, once, and waited for."""
    running: set[subprocess.Popen[bytes]] = set()
    stopped = False

    def start(cell: Cell, program: list[str], place: str | None, alone: bool) -> int:
        if stopped:
            return 0
        command = [*program, *cell.command()[1:]]
        surroundings = {**os.environ, **({} if place is None else {"CUDA_VISIBLE_DEVICES": place})}
        with open(cell.log, "ab") as log:
            # A group of its own: Ctrl-C reaches the child through us alone, since a second signal would cut a step in two.
            child = subprocess.Popen(
                command,
                stdout=log,
                stderr=None if alone else log,
                env=surroundings,
                start_new_session=True,
            )
        running.add(child)
        code = child.wait()
        running.discard(child)
        return 0 if stopped else code

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        for child in list(running):
            child.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield start
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        raise KeyboardInterrupt


def _reason(cell: Cell, code: int) -> str:
    lines = [line for line in cell.log.read_text("utf-8", "replace").splitlines() if line.startswith("debgcd: ")]
    return lines[-1].removeprefix("debgcd: ") if lines else f"exit code {code}; type: {' '.join(cell.command())}"
