"""The grid of runs of an experiment: resumable, one `debgcd train` or `debgcd resume` subprocess per run.

The name of a run's folder is a hash of everything that its result depends on, so experiments share runs and a finished run
is never repeated.
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
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.manifest import Manifest, manifest_text
from debgcd.errors import DebgcdError
from debgcd.methods import METHODS
from debgcd.run.directory import open_run
from debgcd.system import distributed
from debgcd.system.files import write_text
from debgcd.system.progress import say


@dataclass(frozen=True)
class ImageList:
    """The manifest of a data set as a CSV file shared by all of its runs; the file name contains a hash of the content."""

    name: str  # of the set
    count: int
    text: str
    path: Path

    @classmethod
    def of(cls, name: str, manifest: Manifest, out: Path) -> ImageList:
        text = manifest_text(manifest)
        return cls(name, len(manifest), text, out / name / f"images-{_digest(text)}.csv")

    def write(self) -> None:
        """Write the file if it is not there."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, self.text)


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    row: str
    seed: int
    images: ImageList
    config: Config
    folder: Path

    @property
    def set(self) -> str:
        return self.images.name

    @property
    def name(self) -> str:
        return f"{self.set} · {self.row} · seed {self.seed}"

    @property
    def finished(self) -> bool:
        """Whether the run has finished; False if its folder is damaged."""
        try:
            return self._begun and open_run(self.folder).finished
        except (DebgcdError, OSError):
            return False

    def command(self) -> list[str]:
        """The command that starts this run (call `write` first) or resumes it."""
        if self._begun:
            return ["debgcd", "resume", "--no-report", str(self.folder)]
        chosen = ["--preset", self.config.preset]
        chosen += [] if self.config.quality is None else ["--quality", self.config.quality]
        settings = ["--config", str(self.settings), "--no-report", "-o", str(self.folder)]
        return ["debgcd", "train", str(self.images.path), *chosen, *settings]

    def write(self) -> None:
        """Write the files that the command refers to."""
        self.settings.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.settings, configuration.dump(self.config))
        self.images.write()

    @property
    def settings(self) -> Path:
        return self.folder.with_suffix(".yaml")

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    @property
    def _begun(self) -> bool:
        return (self.folder / "config.yaml").exists()


def cell(row: str, seed: int, images: ImageList, config: Config, out: Path) -> Cell:
    """The run of a row on a data set, in a folder named by a hash of its settings and images."""
    if config.backbone.tuned_blocks is None:  # the method's default, given explicitly or not, is the same run
        blocks = METHODS[config.method].cut.tuned
        config = replace(config, backbone=replace(config.backbone, tuned_blocks=blocks))
    digest = settings_digest(config, images.path.name)
    folder = out / images.name / f"{config.method}-{digest}" / f"seed-{seed}"
    return Cell(row, seed, images, replace(config, seed=seed), folder)


def settings_digest(config: Config, *more: object) -> str:
    """A hash of the values that a run's result depends on but for its seed, and of what else is given."""
    settings = configuration.without(configuration.to_dict(config), {"run", "seed", *_unchanged(config)})
    return _digest(json.dumps([settings, *more], sort_keys=True))


def _unchanged(config: Config) -> set[str]:
    """Options that came later and have the value that runs before them had, so that these keep their names."""
    values = configuration.leaves(configuration.to_dict(config))
    return {key for key, value in configuration.ADDED.items() if values[key] == value}


def devices() -> list[str | None]:
    """The GPUs as CUDA_VISIBLE_DEVICES names them; [None] if there is at most one."""
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return [None]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(given.split(",")) if given else [str(i) for i in range(count)]


def finish(
    cells: Iterable[Cell],
    places: Sequence[str | None],
    program: Sequence[str] = (),
    on_end: Callable[[Cell], None] = lambda cell: None,
) -> dict[Path, str]:
    """Run every cell to its end, one at a time per place; returns the folders of failed runs and the reasons.

    program: used instead of this package's command line. on_end: called once per run as soon as it has finished here, never
    twice at a time.
    """
    program = list(program) or [sys.executable, "-m", "debgcd"]
    # several ranks work on one run at a time, each in a process of its own
    places = places if distributed.count() == 1 else [None]
    runs = {cell.folder: cell for cell in cells}  # rows with the same configuration are one run
    names = distributed.from_rank0(lambda: [str(cell.folder) for cell in runs.values() if not cell.finished])
    open_ones = [cell for cell in runs.values() if str(cell.folder) in names]
    say(f"{len(runs)} runs: {len(runs) - len(open_ones)} done, {len(open_ones)} to do")
    for cell in open_ones if distributed.rank() == 0 else ():
        cell.write()
    distributed.barrier()
    free: SimpleQueue[str | None] = SimpleQueue()
    for place in places:
        free.put(place)
    failed: dict[Path, str] = {}
    one_at_a_time = Lock()
    with _children() as start, ThreadPoolExecutor(len(places)) as pool:
        context = copy_context()  # ranks are known by the context

        def work(number: int, cell: Cell) -> None:
            place = free.get()
            try:
                where = "" if place is None else f" on GPU {place}"
                title = f"\n[{number}/{len(open_ones)}] {cell.name}{where}"
                command = distributed.from_rank0(cell.command)
                reasons = distributed.all_gather(start(cell, command, title, program, place, alone=len(places) == 1))
                # a rank that gives a reason, rather than an exit code alone
                reason = min(reasons, key=lambda one: (not one, one.startswith("exit code")))
                if reason:
                    failed[cell.folder] = reason
                    say(f"{cell.name} failed: {reason}")
                elif cell.finished:  # else it was stopped
                    with one_at_a_time:
                        on_end(cell)
            finally:
                free.put(place)

        numbered = enumerate(open_ones, start=1)
        futures = [pool.submit(context.copy().run, work, number, cell) for number, cell in numbered]
        for future in futures:
            future.result()
    return failed


Start = Callable[..., str]


@contextmanager
def _children() -> Iterator[Start]:
    """Start runs in subprocesses; when this process is told to stop, stop each of them once and wait for it."""
    running: set[subprocess.Popen[bytes]] = set()
    stopped = False

    def start(cell: Cell, command: list[str], title: str, program: list[str], place: str | None, alone: bool) -> str:
        """Run to the end; returns the reason for a failure, or an empty string if the run succeeded or was stopped."""
        if stopped:
            return ""
        say(title)
        surroundings = {**os.environ, **({} if place is None else {"CUDA_VISIBLE_DEVICES": place})}
        surroundings |= distributed.surroundings(f"{cell.folder} {command[1]}")
        reason = ""
        # unbuffered: the log can be read while the run goes on
        with open(cell.log if distributed.rank() == 0 else os.devnull, "ab", buffering=0) as log:
            # A new session: Ctrl-C must reach the child only through this process, because a second signal would interrupt a step.
            child = subprocess.Popen(
                [*program, *command[1:]],
                stdout=log,
                stderr=subprocess.PIPE,
                env=surroundings,
                start_new_session=True,
            )
            running.add(child)
            if stopped:  # told to stop while it was starting
                child.send_signal(signal.SIGINT)
            assert child.stderr is not None
            for line in child.stderr:
                log.write(line)
                if alone:
                    sys.stderr.write(line.decode("utf-8", "replace"))
                    sys.stderr.flush()
                if line.startswith(b"debgcd: "):
                    reason = line.decode("utf-8", "replace").removeprefix("debgcd: ").strip()
            code = child.wait()
        running.discard(child)
        if stopped or not code:
            return ""
        return reason or f"exit code {code}; see the log {cell.log}"

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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
