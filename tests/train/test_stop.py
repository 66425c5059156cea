"""A run that is told to stop says how to go on in every phase, and no worker process outlives it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import at_call, debgcd, result
from quick import SETTLE_QUICKLY, train_arguments
from tiers import tiered
from torch.utils.data import Dataset

from debgcd.data.loader import ahead

ROOT = Path(__file__).parents[2]
PHASES = {
    "reading images": "debgcd.data.scan.check_files",
    "deciding": "debgcd.train.train.make_plan",
    "hashing images": "debgcd.data.fingerprints.file_digest",
    "beginning": "debgcd.train.train.create_run",
    "building a bank": "debgcd.tokens.bank._passes",
    "clustering": "debgcd.methods.shared.kmeans",
    "training": "debgcd.model.optimiser.SGD.step",
    "evaluating": "debgcd.train.finish.infer_unlabelled",
    "finishing": "debgcd.train.finish.save_model",
}
BEFORE = ("reading images", "deciding", "hashing images", "beginning")  # there is nothing yet to be resumed


SIGNALS = [signal.SIGTERM, signal.SIGINT]
TURNS = [(phase, SIGNALS[i % 2]) for i, phase in enumerate(PHASES) if i % 2]  # before, building, training, at the end


@pytest.fixture(scope="module")
def wholes(
    shared_folder: Path, arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """wholes(method): an undisturbed run, made once."""
    folder = tmp_path_factory.mktemp("wholes")

    def of(method: str) -> Path:
        run = folder / method
        if not run.exists():
            words = arguments(shared_folder, run, "--method", method, "--bank", "on", "--cache", folder / "cache")
            assert debgcd(words, folder / "log") == 0, (folder / "log").read_text("utf-8")
        return run

    return of


@pytest.mark.parametrize(("phase", "number"), tiered(TURNS, itertools.product(PHASES, SIGNALS)))
def test_how_to_go_on_is_said_in_every_phase(
    shared_folder: Path,
    arguments: Callable[..., list[str]],
    wholes: Callable[[str], Path],
    tmp_path: Path,
    phase: str,
    number: signal.Signals,
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    method = "sskmeans" if phase == "clustering" else "simgcd"
    common = ("--method", method, "--bank", "on", "--cache", tmp_path / "cache")
    words = arguments(shared_folder, run, *common)
    hook = at_call(PHASES[phase], 1, lambda: os.kill(os.getpid(), number))
    assert debgcd(words, log, hook) == 130, log.read_text("utf-8")
    said = log.read_text("utf-8")
    advice = "to start again, repeat the command" if phase in BEFORE else f"to continue: debgcd resume {run}"
    assert said.splitlines()[-1] == f"debgcd: stopped; {advice}" and "Traceback" not in said
    assert not (run / "predictions.csv").exists()
    assert debgcd(words if phase in BEFORE else ["resume", run, "--no-report"], log) == 0, log.read_text("utf-8")
    assert result(run) == result(wholes(method))


TERMINATED = """
import os, signal, sys
from debgcd.cli import main
from debgcd.train.callbacks import Metrics
write = Metrics.write
def terminate(self, step, values):
    write(self, step, values)
    if step == 5:
        os.killpg(0, signal.SIGTERM)     # as a batch system does: to the loader's workers as well
Metrics.write = terminate
sys.exit(main(sys.argv[1:]))
"""


def test_a_termination_signal_to_the_whole_group(shared_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [sys.executable, "-c", SETTLE_QUICKLY + TERMINATED, *train_arguments(shared_folder, run), "--workers", "2"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=100, start_new_session=True, check=False, cwd=ROOT
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == f"debgcd: stopped; to continue: debgcd resume {run}"
    assert "Traceback" not in done.stderr
    assert (run / "checkpoints" / "step-00000005").is_dir()


class Numbers(Dataset[int]):
    def __getitem__(self, item: int) -> int:
        return item


def test_a_loader_goes_on_though_the_group_is_told_to_end() -> None:
    """The parent needs the workers until its step is done."""
    batches = ahead(Numbers(), [[i] for i in range(40)], 2, list)
    assert [next(batches), next(batches)] == [[0], [1]]  # one of each worker
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGTERM)
    assert [number for (number,) in batches] == list(range(2, 40))


# Each worker opens the pipe, says that it is there, and then waits for ever. Python runs this at its start, so in workers too.
BLOCKED = """
import os, threading
from debgcd.data import scan

def block(path, short_side=None):
    pipe = os.open(os.environ["PIPE"], os.O_WRONLY)
    os.write(pipe, b"x")
    threading.Event().wait()

scan.FEWEST_FOR_WORKERS, scan.FILES_PER_TASK, scan.decode = 1, 1, block
"""

READING = """
from debgcd.data import scan
from debgcd.data.manifest import from_paths

scan.scan(from_paths([f"/{i}.png" for i in range(6)]), workers=2)
"""

LOADING = """
import os, threading
from debgcd.data.loader import ahead

class Blocking:
    def __getitem__(self, item):
        pipe = os.open(os.environ["PIPE"], os.O_WRONLY)
        os.write(pipe, b"x")
        threading.Event().wait()

if __name__ == "__main__":
    list(ahead(Blocking(), [[0], [1], [2], [3]], 2, list))
"""


@pytest.mark.parametrize(
    ("first", "script"), [(BLOCKED, READING), ("", LOADING)], ids=["reading images", "loading views"]
)
def test_no_worker_outlives_a_parent_that_is_killed(tmp_path: Path, first: str, script: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(first)
    (tmp_path / "script.py").write_text(script)
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PIPE": str(tmp_path / "pipe")},
        start_new_session=True,
    )
    try:
        begun = b""
        while len(begun) < 2:
            assert select.select([pipe], [], [], 60)[0], "the workers did not begin"
            try:
                begun += os.read(pipe, 10)
            except BlockingIOError:
                continue
        parent.kill()
        parent.wait()
        assert select.select([pipe], [], [], 20)[0], "a worker is still there"
        assert os.read(pipe, 10) == b""  # nobody has the other end any more
    finally:
        os.close(pipe)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
