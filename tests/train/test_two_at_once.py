"""Two processes that want the same run directory: one has it, the other one says so."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from forks import at_call, command, debgcd, forked, forked_together, result
from tiers import tiered

from debgcd.discoverer import Discoverer
from debgcd.errors import UsageError
from debgcd.run.directory import new_run, open_run

SEEDS = (0, 1)
Arguments = Callable[..., list[str]]
Train = Callable[[Path, int], list[str]]


@pytest.fixture(scope="module")
def train(shared_folder: Path, arguments: Arguments, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """The arguments of a run into this folder with this seed."""
    cache = tmp_path_factory.mktemp("cache")
    return lambda run, seed: arguments(shared_folder, run, "--seed", seed, "--bank", "on", "--cache", cache)


@pytest.fixture(scope="module")
def alone(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[str, str, str]]:
    """What each of the two ends in if it is the only one."""
    folder = tmp_path_factory.mktemp("alone")
    for seed in SEEDS:
        assert debgcd(train(folder / str(seed), seed), folder / "log") == 0, (folder / "log").read_text()
    ended = {seed: result(folder / str(seed)) for seed in SEEDS}
    assert ended[0] != ended[1]
    return ended


def assert_refused(code: int, log: Path, run: Path) -> None:
    last = log.read_text("utf-8").splitlines()[-1]
    assert (code, last) == (2, f"debgcd: another process is working on the run in {run}; wait for it or stop it")


@pytest.mark.parametrize("repeat", tiered([0], range(4)))
def test_begun_at_the_same_instant(
    train: Train, alone: dict[int, tuple[str, str, str]], tmp_path: Path, repeat: int
) -> None:
    """Both have found the folder new before either of them writes."""
    run, logs = tmp_path / "run", [tmp_path / f"{seed}.log" for seed in SEEDS]
    together = multiprocessing.get_context("fork").Barrier(2)
    hook = at_call("debgcd.train.train.require_ready", 1, lambda: together.wait(30))
    hold = multiprocessing.get_context("fork").Barrier(2)  # the winner trains only when the other one has been refused

    def work(seed: int) -> Callable[[], int]:
        def installed() -> None:
            hook()
            at_call("debgcd.train.train.scan", 1, lambda: hold.wait(30))()

        words = command(train(run, seed), installed)

        def ended() -> int:
            code = words()
            if code:
                hold.wait(30)
            return code

        return ended

    codes = forked_together([(work(seed), log) for seed, log in zip(SEEDS, logs, strict=True)])
    assert sorted(codes) == [0, 2], [log.read_text("utf-8") for log in logs]
    winner = codes.index(0)
    assert_refused(codes[1 - winner], logs[1 - winner], run)
    assert open_run(run).config.seed == SEEDS[winner]
    assert result(run) == alone[SEEDS[winner]]


PLACES = ["scan", "make_plan", "create_run", "open_tokens", "fit"]


@pytest.mark.parametrize("place", tiered(["make_plan", "fit"], PLACES))
def test_begun_while_another_run_begins(
    train: Train, alone: dict[int, tuple[str, str, str]], tmp_path: Path, place: str
) -> None:
    run, first, second = tmp_path / "run", tmp_path / "first.log", tmp_path / "second.log"
    code = tmp_path / "code"

    def another() -> None:
        code.write_text(str(debgcd(train(run, 1), second)))

    assert debgcd(train(run, 0), first, at_call(f"debgcd.train.train.{place}", 1, another)) == 0, first.read_text()
    assert code.read_text() == "2", second.read_text("utf-8")
    last = second.read_text("utf-8").splitlines()[-1]
    assert "another process is working on the run" in last or f"debgcd resume {run}" in last
    assert open_run(run).config.seed == 0
    assert result(run) == alone[0]


def test_found_finished_though_it_was_new_a_moment_ago(
    train: Train, alone: dict[int, tuple[str, str, str]], tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"

    def another() -> None:
        assert debgcd(train(run, 1), tmp_path / "other.log") == 0

    assert debgcd(train(run, 0), log, at_call("debgcd.train.train.require_ready", 1, another)) == 2
    last = log.read_text("utf-8").splitlines()[-1]
    assert f"the run directory {run} is not empty" in last and f"debgcd resume {run}" in last
    assert open_run(run).config.seed == 1
    assert result(run) == alone[1]


def test_resumed_twice(train: Train, alone: dict[int, tuple[str, str, str]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    debgcd(train(run, 0), tmp_path / "log", at_call("debgcd.train.callbacks.Metrics.write", 5))
    assert not (run / "predictions.csv").exists()
    code = tmp_path / "code"

    def another() -> None:
        code.write_text(str(debgcd(["resume", run, "--no-report"], tmp_path / "second.log")))

    assert (
        debgcd(["resume", run, "--no-report"], tmp_path / "log", at_call("debgcd.train.train.plan_of", 1, another)) == 0
    )
    assert_refused(int(code.read_text()), tmp_path / "second.log", run)
    assert result(run) == alone[0]


def test_a_discoverer_too(train: Train, shared_folder: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    paths = sorted(shared_folder.rglob("*.png"))
    y = [path.parent.name if "unlabelled" not in path.parts else -1 for path in paths]

    def fit() -> int:
        hook = at_call(
            "debgcd.discoverer.require_new", 1, lambda: debgcd(train(run, 1), tmp_path / "other.log"), after=True
        )
        hook()
        Discoverer(k=3, method="kmeans", preset="small", run=run).fit(paths, y)
        return 0

    assert forked(fit, log) == 99
    assert f"the run directory {run} is not empty" in log.read_text("utf-8")
    assert open_run(run).config.seed == 1


def test_arrays_are_not_written_into_the_folder_of_another_process(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def second() -> int:
        with pytest.raises(UsageError, match="another process is working on the run"):
            Discoverer(2, run=run).fit([np.zeros((8, 8), np.uint8)] * 4, [0, 1, -1, -1])
        return 0

    with new_run(run):
        assert forked(second, tmp_path / "log") == 0, (tmp_path / "log").read_text()
        assert not (run / "images").exists()
