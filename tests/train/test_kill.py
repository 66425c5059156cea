"""Killed at any instant, `resume` ends in the same bytes as if never killed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import Hook, at_call, debgcd, die, logged_steps, result
from quick import SETTLE_QUICKLY
from safetensors.torch import load_file
from shared_runs import SharedRuns
from tiers import SOAK, tiered

from debgcd.methods import METHODS
from debgcd.system import store
from debgcd.system.files import read_sealed

pytestmark = pytest.mark.tries("killed while training", "survived")

STEPS = 12
Arguments = Callable[..., list[str]]


class Reference:
    """An uninterrupted run, and the means to interrupt another one like it."""

    def __init__(self, arguments: Callable[[Path], list[str]], folder: Path):
        self.arguments, self.folder = arguments, folder
        assert debgcd(arguments(folder / "whole"), folder / "whole.log") == 0, self.log("whole")
        self.result = result(folder / "whole")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8")

    def kill(self, run: Path, hook: Hook, again: bool = False) -> None:
        """Start a run (or go on with it) that dies at the hook's point."""
        words = ["resume", str(run), "--no-report"] if again else self.arguments(run)
        assert debgcd(words, self.folder / "killed.log", hook) == -signal.SIGKILL, self.log("killed")
        assert not (run / "predictions.csv").exists()

    def resume(self, run: Path) -> None:
        """Go on to the end, which must be that of the uninterrupted run."""
        assert debgcd(["resume", run, "--no-report"], self.folder / "resumed.log") == 0, self.log("resumed")
        assert result(run) == self.result
        assert logged_steps(run) == list(range(1, STEPS + 1))
        left = [path.name for path in run.rglob(".*") if path.name != ".lock"]
        assert not left, f"what the kill left half-written is still there: {left}"


def reference(
    bank: str, source: Path, arguments: Arguments, factory: pytest.TempPathFactory, *more: object, **settings: object
) -> Reference:
    folder = factory.mktemp(f"kill-{bank}")
    common = ("--bank", bank, "--cache", folder / "cache", *more)
    return Reference(lambda run: arguments(source, run, *common, **settings), folder)


@pytest.fixture(scope="module")
def on_bank(shared_folder: Path, arguments: Arguments, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return reference("on", shared_folder, arguments, tmp_path_factory)


@pytest.fixture(scope="module")
def on_fresh(shared_folder: Path, arguments: Arguments, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """As the method is by default: two blocks tuned, prototypes from a clustering."""
    settings = {"heads.warm_start": "true", "backbone.tuned_blocks": 2}
    return reference("off", shared_folder, arguments, tmp_path_factory, **settings)


@pytest.fixture(scope="module")
def best_old(shared_csv: Path, arguments: Arguments, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """With truth and a test split; the model kept is the best on it, measured after every epoch of three steps."""
    settings = {"model_kept": "best-old", "run.eval_every": 1, "schedule.lr": 0.5}
    return reference("on", shared_csv, arguments, tmp_path_factory, **settings)


# before the first checkpoint, at one, after one, at the end
@pytest.mark.parametrize("step", tiered([1, 3, 8, STEPS], range(1, STEPS + 1)))
def test_killed_at_every_step(on_bank: Reference, tmp_path: Path, step: int) -> None:
    on_bank.kill(tmp_path / "run", at_call("debgcd.train.callbacks.Metrics.write", step, after=True))
    on_bank.resume(tmp_path / "run")


@pytest.mark.parametrize("step", tiered([8], [2, 8]))
def test_killed_with_fresh_views(on_fresh: Reference, tmp_path: Path, step: int) -> None:
    """In the middle of a step: the gradient is there, the weights have not moved."""
    on_fresh.kill(tmp_path / "run", at_call("debgcd.model.optimiser.SGD.step", step))
    on_fresh.resume(tmp_path / "run")


def replacements(reference: Reference, folder: Path) -> list[str]:
    """What an uninterrupted run renames into place, in order."""
    listed = folder / "replaced"

    def hook() -> None:
        original = os.replace

        def replace(source: str, target: str) -> None:
            with open(listed, "a", encoding="utf-8") as file:
                file.write(f"{Path(target).name}\n")
            original(source, target)

        os.replace = replace

    assert debgcd(reference.arguments(folder / "listed"), folder / "log", hook) == 0
    return listed.read_text("utf-8").splitlines()


def test_killed_between_any_two_files(on_bank: Reference, tmp_path: Path) -> None:
    """Every file and folder of a run appears by a rename; die just before each of them."""
    names = replacements(on_bank, tmp_path)
    begun = names.index("config.yaml") + 1
    assert names[begun:].count("state.json") == 4 and names[-1] == "predictions.csv" and "model" in names
    # the last of each kind: a folder (the model), a JSON file, a table, ...
    chosen = {Path(names[number - 1]).suffix: number for number in range(begun + 1, len(names) + 1)}
    for number in range(begun + 1, len(names) + 1) if SOAK else chosen.values():
        run = tmp_path / f"{number}"
        on_bank.kill(run, at_call("os.replace", number))
        on_bank.resume(run)
        shutil.rmtree(run)


def test_killed_while_the_bytes_of_a_checkpoint_are_written(on_bank: Reference, tmp_path: Path) -> None:
    def hook() -> None:
        original, count = Path.write_bytes, 0

        def write_half(path: Path, content: bytes) -> int:
            nonlocal count
            count += path.name == "state.safetensors"
            if count == 3:
                original(path, content[: len(content) // 2])
                die()
            return original(path, content)

        Path.write_bytes = write_half

    on_bank.kill(tmp_path / "run", hook)
    kept = [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")]
    assert sorted(kept) == ["step-00000003", "step-00000006"]
    on_bank.resume(tmp_path / "run")


@pytest.mark.parametrize("number", tiered([2], [1, 2]))
def test_killed_while_an_old_checkpoint_is_deleted(on_bank: Reference, tmp_path: Path, number: int) -> None:
    """Half of a checkpoint may remain, but never of the newest."""

    def hook() -> None:
        original, count = shutil.rmtree, 0

        def half(path: Path, **named: object) -> None:
            nonlocal count
            if Path(path).name.startswith("step-") and Path(path).exists():
                count += 1
                if count == number:
                    (Path(path) / "state.json").unlink()
                    die()
            original(path, **named)

        shutil.rmtree = half

    on_bank.kill(tmp_path / "run", hook)
    on_bank.resume(tmp_path / "run")


def test_killed_again_and_again(on_bank: Reference, tmp_path: Path) -> None:
    run = tmp_path / "run"
    on_bank.kill(run, at_call("debgcd.train.callbacks.Metrics.write", 2, after=True))
    for _ in range(3):  # never gets past the next checkpoint but one
        on_bank.kill(run, at_call("debgcd.train.callbacks.Metrics.write", 4, after=True), again=True)
    on_bank.resume(run)


def test_killed_while_the_bank_is_built(shared_folder: Path, arguments: Arguments, on_bank: Reference) -> None:
    cache = on_bank.folder / "new-cache"
    run = on_bank.folder / "bank-killed"
    words = [*arguments(shared_folder, run, "--bank", "on"), "--cache", str(cache)]
    log = on_bank.folder / "bank.log"

    def hook() -> None:
        store.SAFE_EVERY = 1
        at_call("debgcd.data.fingerprints.Contents.require_unchanged", 2)()  # of two batches, 16 images and 8

    assert debgcd(words, log, hook) == -signal.SIGKILL
    assert (run / "config.yaml").exists()
    (partial,) = (cache / "banks").glob("[0-9a-f]*")
    assert partial.suffix == ".partial"
    assert len(store.Index.from_bytes(read_sealed(partial / "index")).ends) == 16
    on_bank.resume(run)
    (bank,) = (cache / "banks").glob("[0-9a-f]*")
    (whole,) = (on_bank.folder / "cache" / "banks").glob("[0-9a-f]*")
    assert bank.name == whole.name == partial.stem
    assert (bank / "records").read_bytes() == (whole / "records").read_bytes()


@pytest.fixture(scope="module")
def gcd(shared_csv: Path, arguments: Arguments, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Each evaluation clusters, and its classifier comes from a clustering at the end."""
    return reference("on", shared_csv, arguments, tmp_path_factory, "--method", "gcd", **{"run.eval_every": 1})


@pytest.mark.parametrize(
    ("target", "number"),
    [
        ("debgcd.model.optimiser.SGD.step", 2),
        ("debgcd.train.callbacks.evaluate_during_training", 2),
        ("debgcd.methods.gcd.GCD.finalise", 1),  # at the end
        ("debgcd.train.checkpoint.save", 4),
    ],
)
@pytest.mark.parametrize("after", tiered([False], [False, True]))
def test_gcd_killed_around_its_clusterings(
    gcd: Reference, tmp_path: Path, target: str, number: int, after: bool
) -> None:
    gcd.kill(tmp_path / "run", at_call(target, number, after=after))
    gcd.resume(tmp_path / "run")
    assert_same_evaluations(tmp_path / "run", gcd.folder / "whole")


TRAINED = [name for name, method in METHODS.items() if method.trains and not method.about.needs_vit]
# within an epoch, at its ends, before and after a checkpoint; methods with a memory first
REMEMBER = ["debgcd", "orca", "uno", "mugcd", "opencon", "dccl", "gpc", "infosieve", "sptnet"]
KILLS = list(itertools.product(["orca", "uno", "mugcd"], [1, 3, 4, 5, 8, STEPS]))
KILLS += list(itertools.product([name for name in TRAINED if name not in ("orca", "uno", "mugcd")], [5, 11]))


@pytest.mark.parametrize(("method", "number"), tiered([(name, 5) for name in REMEMBER], KILLS))
def test_every_method_survives_a_kill(shared_runs: SharedRuns, tmp_path: Path, method: str, number: int) -> None:
    """With all that it remembers: checkpoints are every two steps of epochs of three."""
    run, log, whole = tmp_path / "run", tmp_path / "log", shared_runs.whole(method)
    # of a method with two stages, in the second one, after the one step of the first
    hook = at_call("debgcd.train.loop.step", number + (METHODS[method].first is not None), after=True)
    assert debgcd(shared_runs.words(method, run), log, hook) == -signal.SIGKILL, log.read_text("utf-8")
    assert debgcd(["resume", run, "--no-report"], log) == 0, log.read_text("utf-8")
    assert result(run) == result(whole)
    assert logged_steps(run) == list(range(1, STEPS + 1))
    assert (run / "evaluation.json").read_bytes() == (whole / "evaluation.json").read_bytes()


STAGES = [
    ("mugcd", "debgcd.train.train.load_model"),
    ("sptnet", "debgcd.train.loop.step"),
    ("mugcd", "debgcd.train.loop.step"),
    ("mugcd", "debgcd.train.train.train"),
]


@pytest.mark.parametrize(("method", "target"), tiered(STAGES[:1], STAGES))
def test_a_first_stage_survives_a_kill(
    shared_folder: Path,
    arguments: Arguments,
    tmp_path: Path,
    method: str,
    target: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """In it, before it begins (the second call of `train`), and when it is over but the second stage does not know of it yet."""
    two = reference("on", shared_folder, arguments, tmp_path_factory, "--method", method)
    assert (two.folder / "whole" / "first" / "predictions.csv").exists()
    two.kill(tmp_path / "run", at_call(target, 2 if target.endswith("train.train") else 1))
    two.resume(tmp_path / "run")


@pytest.mark.parametrize("method", ["kmeans", "sskmeans"])
def test_killed_before_and_after_clustering(
    shared_folder: Path, arguments: Arguments, tmp_path: Path, method: str
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert debgcd(arguments(shared_folder, whole, "--method", method), tmp_path / "log") == 0
    words = arguments(shared_folder, run, "--method", method)
    assert debgcd(words, tmp_path / "log", at_call("debgcd.methods.shared.kmeans", 1)) == -signal.SIGKILL
    again = ["resume", str(run), "--no-report"]
    assert debgcd(again, tmp_path / "log", at_call("debgcd.methods.shared.kmeans", 1, after=True)) == -signal.SIGKILL
    assert debgcd(again, tmp_path / "log") == 0
    assert result(run) == result(whole)


def test_the_best_model_is_not_the_last_one(best_old: Reference) -> None:
    """Otherwise the tests below would not see which of the two is kept."""
    whole = best_old.folder / "whole"
    (kept,) = (whole / "checkpoints" / "best").iterdir()
    facts = json.loads((kept / "state.json").read_text())
    assert facts["step"] < STEPS
    state, model = load_file(kept / "state.safetensors"), load_file(whole / "model" / "model.safetensors")
    filled = ("heads.detector.", "heads.settled.")  # at the end, from the features of the best network
    assert all(torch.equal(state[name], model[name]) for name in model if not name.startswith(filled))


@pytest.mark.parametrize(("number", "after"), tiered([(1, True), (4, False)], itertools.product([1, 4], [False, True])))
def test_killed_around_the_choice_of_the_best(best_old: Reference, tmp_path: Path, number: int, after: bool) -> None:
    best_old.kill(tmp_path / "run", at_call("debgcd.train.checkpoint.keep_best", number, after=after))
    best_old.resume(tmp_path / "run")
    assert_same_evaluations(tmp_path / "run", best_old.folder / "whole")


def test_killed_while_the_best_is_written(best_old: Reference, tmp_path: Path) -> None:
    """At both renames of the first best model, and at the end between evaluation.json and predictions.csv."""
    names = replacements(best_old, tmp_path)
    first = names.index("state.json")
    for number in tiered((first + 2, len(names)), (first + 1, first + 2, len(names))):
        run = tmp_path / f"{number}"
        best_old.kill(run, at_call("os.replace", number))
        best_old.resume(run)
        assert_same_evaluations(run, best_old.folder / "whole")


def test_evaluated_once_though_killed_at_the_end(
    shared_csv: Path, arguments: Arguments, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After the last evaluation is logged and before the results are whole."""
    last = reference("on", shared_csv, arguments, tmp_path_factory, **{"run.eval_every": 1})
    run = last.folder / "run"
    last.kill(run, at_call("debgcd.train.finish.save_model", 1))
    last.kill(run, at_call("debgcd.train.finish.save_model", 1, after=True), again=True)
    last.resume(run)
    assert_same_evaluations(run, last.folder / "whole")


def assert_same_evaluations(run: Path, other: Path) -> None:
    def read(folder: Path) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if "evaluation" in line]

    assert [line["step"] for line in read(run) if line["step"]] == [3, 6, 9, 12]  # each epoch once
    assert read(run) == read(other)
    assert (run / "evaluation.json").read_bytes() == (other / "evaluation.json").read_bytes()


def test_resumed_at_once_though_a_loader_worker_outlives_the_kill(on_fresh: Reference, tmp_path: Path) -> None:
    """A worker notices only seconds later that its parent is gone; what it inherited must not lock the run."""
    run = tmp_path / "run"
    words = [*on_fresh.arguments(run), "--workers", "1"]
    hook = at_call("debgcd.train.callbacks.Metrics.write", 5, after=True)
    assert debgcd(words, tmp_path / "log", hook) == -signal.SIGKILL
    on_fresh.resume(run)


INTERRUPTED = """
import os, signal, sys
from debgcd.cli import main
from debgcd.train.callbacks import Metrics
write = Metrics.write
def interrupt(self, step, values):
    write(self, step, values)
    if step == 5:
        os.killpg(0, signal.SIGINT)      # as a terminal does: to the loader's workers as well
Metrics.write = interrupt
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_saves_and_says_how_to_go_on(on_fresh: Reference, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [sys.executable, "-c", SETTLE_QUICKLY + INTERRUPTED, *on_fresh.arguments(run), "--workers", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, start_new_session=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == f"debgcd: stopped; to continue: debgcd resume {run}"
    assert "Traceback" not in done.stderr
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-00000003", "step-00000005"]
    on_fresh.resume(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_step_saves_after_it(on_bank: Reference, tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    hook = at_call("debgcd.model.optimiser.SGD.step", 8, lambda: os.kill(os.getpid(), number))
    assert debgcd(on_bank.arguments(run), tmp_path / "log", hook) == 130
    said = (tmp_path / "log").read_text("utf-8")
    assert said.splitlines()[-1] == f"debgcd: stopped; to continue: debgcd resume {run}" and "Traceback" not in said
    assert (run / "checkpoints" / "step-00000008").is_dir()
    on_bank.resume(run)


def test_a_second_ctrl_c_stops_at_once(on_bank: Reference, tmp_path: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    run = tmp_path / "run"
    assert debgcd(on_bank.arguments(run), tmp_path / "log", at_call("debgcd.model.optimiser.SGD.step", 8, twice)) == 130
    assert "Traceback" not in (tmp_path / "log").read_text("utf-8")
    assert not (run / "checkpoints" / "step-00000008").exists()
    on_bank.resume(run)


@pytest.mark.parametrize("target", ["debgcd.train.finish.save_model", "debgcd.train.finish.infer_unlabelled"])
def test_ctrl_c_after_the_steps_stops_at_once(on_bank: Reference, tmp_path: Path, target: str) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    hook = at_call(target, 1, lambda: os.kill(os.getpid(), signal.SIGINT), after=True)
    assert debgcd(on_bank.arguments(run), log, hook) == 130
    assert log.read_text("utf-8").splitlines()[-1] == f"debgcd: stopped; to continue: debgcd resume {run}"
    assert not (run / "predictions.csv").exists()
    on_bank.resume(run)


def test_ctrl_c_in_the_last_step_saves_it(on_bank: Reference, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hook = at_call("debgcd.model.optimiser.SGD.step", STEPS, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert debgcd(on_bank.arguments(run), tmp_path / "log", hook) == 130
    assert (run / "checkpoints" / f"step-{STEPS:08d}").is_dir()
    assert not (run / "predictions.csv").exists()
    on_bank.resume(run)


def test_ctrl_c_while_clusters_are_sought(shared_folder: Path, arguments: Arguments, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hook = at_call("debgcd.methods.shared.kmeans", 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert debgcd(arguments(shared_folder, run, "--method", "kmeans"), tmp_path / "log", hook) == 130
    assert not (run / "predictions.csv").exists()
