"""Runs on several ranks: the results of one, files from rank 0 alone, and faults that end the whole job."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import Hook, at_call, command, debgcd, die, forked, logged_steps, ranked, result, said
from quick import SETTLE_QUICKLY, train_arguments
from safetensors.torch import load_file
from shared_runs import SharedRuns
from tiers import soak, tiered
from torch import Tensor

from debgcd.errors import DataError, UsageError
from debgcd.methods import METHODS
from debgcd.model.backbone import pick_device
from debgcd.run.directory import Run
from debgcd.system import distributed, store
from debgcd.tokens import sources

ROOT = Path(__file__).parents[2]
STEPS = 12


def together(words: Sequence[object], folder: Path, count: int = 2, hooks: dict[int, Hook] | None = None) -> list[int]:
    """The command on so many ranks; `hooks` plants what goes wrong, by rank."""
    folder.mkdir(exist_ok=True)
    return ranked([command(words, (hooks or {}).get(i)) for i in range(count)], folder, grace=2)


def sentences(folder: Path, count: int = 2) -> list[str]:
    """Complaints of all ranks; a traceback fails the test."""
    texts = said(folder, count)
    assert not any("Traceback" in text for text in texts), texts
    return [line for text in texts for line in text.splitlines() if line.startswith("debgcd: ")]


class Job:
    """A run on two ranks, undisturbed, and the means to repeat it."""

    def __init__(self, source: Path, folder: Path):
        self.source, self.folder = source, folder
        assert together(self.words(folder / "whole"), folder / "logs") == [0, 0], said(folder / "logs", 2)
        self.result = result(folder / "whole")

    def words(self, run: Path, **settings: object) -> list[str]:
        more = ("--bank", "on", "--cache", self.folder / "cache")
        return train_arguments(self.source, run, *more, schedule__batch=7, **settings)

    def resume(self, run: Path, logs: Path) -> None:
        """Go on to the end, which must be that of the undisturbed run."""
        assert together(["resume", run, "--no-report"], logs) == [0, 0], said(logs, 2)
        assert result(run) == self.result
        assert logged_steps(run) == list(range(1, STEPS + 1))


@pytest.fixture(scope="module")
def job(shared_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(shared_csv, tmp_path_factory.mktemp("ranks"))


def files(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*")}


def scores(run: Path) -> dict[str, Any]:
    """evaluation.json without what was seen during training, which depends on rounding."""
    return {
        name: value for name, value in json.loads((run / "evaluation.json").read_text()).items() if name != "health"
    }


def bank(cache: Path) -> bytes:
    (records,) = cache.glob("banks/*/records")
    return records.read_bytes()


def test_two_ranks_end_as_one(job: Job, tmp_path: Path) -> None:
    alone, whole = tmp_path / "alone", job.folder / "whole"
    words = [*job.words(alone), "--cache", tmp_path / "cache"]
    assert debgcd(words, tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert files(alone) == files(whole)
    assert bank(tmp_path / "cache") == bank(job.folder / "cache")
    one, two = (load_file(run / "model" / "model.safetensors") for run in (alone, whole))
    for name in one:
        assert gap(one[name], two[name]) <= 1e-4 * largest(one[name]), name
    assert json.loads((alone / "environment.json").read_text())["ranks"] == 1
    assert json.loads((whole / "environment.json").read_text())["ranks"] == 2
    assert scores(alone) == scores(whole)
    assert said(job.folder / "logs", 2)[1] == ""  # rank 1 says nothing


# one of each kind: hooks that ask for features at the start, at epochs and at the end; a memory, two stages, prompts
KINDS = ["debgcd", "simgcd", "gcd", "sskmeans", "xcon", "opencon", "gpc", "mugcd", "sptnet"]


@pytest.mark.parametrize("method", tiered(KINDS, METHODS))
def test_two_ranks_train_as_one(shared_runs: SharedRuns, tmp_path: Path, method: str) -> None:
    """Every method with its own start, epochs and end; the limits are those of docs/scale.md."""
    one, two = shared_runs.whole(method), tmp_path / "run"
    assert together(shared_runs.words(method, two), tmp_path / "logs") == [0, 0], said(tmp_path / "logs", 2)
    if METHODS[method].trains:
        assert first_loss(one) == pytest.approx(first_loss(two), rel=1e-5)
    tensors = [load_file(run / "model" / "model.safetensors") for run in (one, two)]
    shapes = [{name: value.shape for name, value in each.items()} for each in tensors]
    assert shapes[0] == shapes[1]
    assert apart(*tensors) <= 1e-3
    categories = [[row["category"] for row in rows(run / "predictions.csv")] for run in (one, two)]
    assert categories[0] == categories[1]


def apart(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    """The largest difference, relative to the largest entry of its layer: gradients of some biases are rounding alone."""
    layers: dict[str, list[str]] = {}
    for name in one:
        layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    scale = {layer: max(largest(one[name]) for name in names) for layer, names in layers.items()}
    return max(
        gap(one[name], two[name]) / max(scale[layer], 1e-30) for layer, names in layers.items() for name in names
    )


def gap(one: Tensor, two: Tensor) -> float:
    """The largest difference; NaN, which says that a number is not known, equals NaN."""
    unknown = one.isnan() & two.isnan()
    return float((one - two).masked_fill(unknown, 0).abs().max().nan_to_num(nan=torch.inf))


def largest(one: Tensor) -> float:
    return float(one.nan_to_num().abs().max())


def first_loss(run: Path) -> float:
    """The loss of step 1, of the first stage if there are two."""
    stage = run / "first" if (run / "first").exists() else run
    lines = map(json.loads, (stage / "metrics.jsonl").read_text("utf-8").splitlines())
    return next(line["loss"] for line in lines if line["step"] == 1)


def test_fresh_views_and_an_estimated_k(job: Job, shared_csv: Path, tmp_path: Path) -> None:
    """Without a bank, and with all that happens before the first step: standardised features, K, a warm start."""
    runs = {"alone": tmp_path / "alone", "two": tmp_path / "two"}
    for name, run in runs.items():
        settings = {"schedule__steps": 3, "heads__warm_start": "true", "schedule__batch": 5}
        words = train_arguments(shared_csv, run, "--k", "auto", "--cache", tmp_path / "cache", **settings)
        if name == "alone":
            assert debgcd(words, tmp_path / "log") == 0, (tmp_path / "log").read_text()
        else:
            assert together(words, tmp_path / "logs") == [0, 0], said(tmp_path / "logs", 2)
    one, two = (scores(run) for run in runs.values())
    assert one["k"] == two["k"] >= 2
    for split in ("unlabelled", "test"):
        assert one[split]["gcd"] == two[split]["gcd"]
        # of the eight pairs of a known and a new test image, rounding may break a tie
        assert one[split]["auroc"] == pytest.approx(two[split]["auroc"], abs=1 / 16)
    one, two = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in runs.values()
    )
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (one, two)]
    assert len(losses[0]) == 3 and losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_more_ranks_than_images_in_a_batch(shared_csv: Path, job: Job, tmp_path: Path) -> None:
    """Four ranks, batches of three: one of them has no work, and nothing waits for it."""
    words = train_arguments(
        shared_csv,
        tmp_path / "run",
        "--bank",
        "on",
        "--cache",
        job.folder / "cache",
        schedule__batch=3,
        schedule__steps=2,
    )
    assert together(words, tmp_path / "logs", 4) == [0] * 4, said(tmp_path / "logs", 4)


def test_evaluation_on_eight_ranks_is_that_of_one(job: Job, tmp_path: Path) -> None:
    """To the last digit, and so is a prediction."""
    run = job.folder / "whole"
    before, written = (run / "evaluation.json").read_bytes(), (run / "evaluation.json").stat().st_mtime_ns
    small = replaced("debgcd.tokens.sources.CENTRE_BATCH", 2)  # type: ignore[arg-type]  # so that each rank has images
    codes = together(["evaluate", run], tmp_path / "logs", 8, dict.fromkeys(range(8), small))
    assert codes == [0] * 8, said(tmp_path / "logs", 8)
    assert (run / "evaluation.json").read_bytes() == before
    assert (run / "evaluation.json").stat().st_mtime_ns > written


def test_rank_0_writes_the_report_when_the_others_have_ended(job: Job, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(job.folder / "whole", run)
    others = multiprocessing.get_context("fork").Semaphore(0)

    def written(run: Run, out: Path, cache: Path) -> None:
        assert others.acquire(timeout=60) and distributed.count() == 1
        out.touch()

    def ended() -> int:
        code = command(["resume", run])()
        others.release()
        return code

    first = command(["resume", run], replaced("debgcd.report.page.write_report", written))
    assert ranked([first, ended], tmp_path) == [0, 0], said(tmp_path, 2)
    assert "report: " in said(tmp_path, 2)[0] and (run / "report.html").exists() and not said(tmp_path, 2)[1]


def hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def impatient(timeout: float, then: Hook | None = None) -> Callable[[], None]:
    """From here on a silent rank is waited for one second instead of `timeout`; a busy machine may take longer to get here."""

    def change() -> None:
        import torch.distributed as dist

        backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        assert backend.options._timeout == timedelta(seconds=timeout)  # as the run's configuration says
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
        distributed.set_timeout(1)
        if then is not None:
            then()

    return change


def fail() -> None:
    raise DataError("planted")


FAULTS: dict[str, Callable[[], Any]] = {"kill": die, "raise": fail, "hang": hang}
SOME = [("hang", 8, 1)]  # torchrun's test below kills one, those of bad input raise
ALL = [(fault, step, rank) for fault in FAULTS for step in range(1, STEPS + 1) for rank in range(2)]


@pytest.mark.parametrize(("fault", "step", "rank"), tiered(SOME, ALL))
def test_a_rank_that_fails_ends_all_and_nothing_is_lost(
    job: Job, tmp_path: Path, fault: str, step: int, rank: int
) -> None:
    run = tmp_path / "run"
    begun = time.monotonic()
    actions = {rank: FAULTS[fault]}
    if fault == "hang":
        actions = {i: impatient(500, actions.get(i)) for i in range(2)}
    hooks = {i: at_call("debgcd.train.loop.step", step, action) for i, action in actions.items()}
    codes = together(job.words(run, run__timeout=500), tmp_path / "failed", hooks=hooks)
    assert time.monotonic() - begun < 60
    assert all(codes), codes
    told = sentences(tmp_path / "failed")
    assert len(told) == 1 and ("planted" in told[0]) == (fault == "raise"), (codes, told)
    if fault == "raise":
        assert codes[rank] == 3
    else:
        assert told[0].endswith(f"; to continue: debgcd resume {run}")
    assert not (run / "predictions.csv").exists()
    saved = [int(place.name[5:]) for place in sorted((run / "checkpoints").glob("step-*"))]
    assert saved[-1:] == ([3 * ((step - 1) // 3)] if step > 3 else [])  # the last one before the fault
    job.resume(run, tmp_path / "resumed")


@pytest.mark.parametrize("rank", tiered([1], [0, 1]))
def test_a_signal_to_one_rank_stops_all_after_one_checkpoint(job: Job, tmp_path: Path, rank: int) -> None:
    run = tmp_path / "run"
    hook = at_call("debgcd.train.loop.step", 5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert together(job.words(run), tmp_path / "stopped", hooks={rank: hook}) == [130, 130]
    assert sentences(tmp_path / "stopped") == [f"debgcd: stopped; to continue: debgcd resume {run}"]
    assert [place.name for place in sorted((run / "checkpoints").glob("step-*"))] == ["step-00000003", "step-00000005"]
    job.resume(run, tmp_path / "resumed")


@soak
def test_another_number_of_ranks_goes_on_and_says_so(job: Job, tmp_path: Path) -> None:
    run = tmp_path / "run"
    hook = at_call("debgcd.train.loop.step", 5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert together(job.words(run), tmp_path / "stopped", hooks={0: hook}) == [130, 130]
    assert debgcd(["resume", run, "--no-report"], tmp_path / "log") == 0
    assert "ranks: 1, were 2 when the run began; results agree to rounding" in (tmp_path / "log").read_text()
    one, two = (load_file(each / "model" / "model.safetensors") for each in (run, job.folder / "whole"))
    for name in one:
        assert gap(one[name], two[name]) <= 1e-4 * largest(one[name]), name


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DYING = """
import os, signal, sys
from debgcd.system import distributed
from debgcd.cli import main
from debgcd.tokens import bank, image_cache, sources
from debgcd.train import loop
# a new process does not inherit the block size of the undisturbed run
sources.CENTRE_BATCH = bank.BUILD_BATCH = image_cache.IMAGES_PER_BATCH = {block}
step, calls = loop.step, []
def planted(*words):
    calls.append(1)
    if len(calls) == 5 and distributed.rank() == 1 and not distributed.restarted():
        os.kill({whom}, signal.{what})
    return step(*words)
loop.step = planted
sys.exit(main(sys.argv[1:]))
"""


def torchrun(words: Sequence[str], folder: Path, whom: str, what: str, restarts: int) -> tuple[int, str]:
    (folder / "dying.py").write_text(SETTLE_QUICKLY + DYING.format(whom=whom, what=what, block=sources.CENTRE_BATCH))
    command = [*TORCHRUN, "--max-restarts", str(restarts), str(folder / "dying.py"), *words]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=surroundings, check=False)
    return done.returncode, done.stderr


def agent(words: Sequence[str], folder: Path, whom: str, what: str, restarts: int) -> tuple[int, str]:
    """What torchrun calls, with forks as ranks: nothing has to be loaded again."""

    def planted() -> None:
        if distributed.rank() == 1 and not distributed.restarted():
            os.kill(getattr(os, whom[3:-2])(), getattr(signal, what))

    def rank() -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the agent's handler
        sys.exit(command(words, at_call("debgcd.train.loop.step", 5, planted))())

    def work() -> int:
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": folder.name}
        elastic_launch(LaunchConfig(1, 1, 2, max_restarts=restarts, start_method="fork", **place), rank)()
        return 0

    code = forked(work, folder / "log", 300)
    return code, (folder / "log").read_text("utf-8")


Launch = Callable[[Sequence[str], Path, str, str, int], tuple[int, str]]
LAUNCHES = tiered([agent], [agent, torchrun])


@pytest.mark.parametrize("launch", LAUNCHES)
def test_torchrun_restarts_what_was_killed(job: Job, tmp_path: Path, launch: Launch) -> None:
    """The same command goes on where the run stands (TORCHELASTIC_RESTART_COUNT)."""
    code, told = launch(job.words(tmp_path / "run"), tmp_path, "os.getpid()", "SIGKILL", 1)
    assert code == 0, told
    assert result(tmp_path / "run") == job.result
    assert logged_steps(tmp_path / "run") == list(range(1, STEPS + 1))


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_signal_to_torchrun_reaches_all_ranks(job: Job, tmp_path: Path, launch: Launch) -> None:
    code, told = launch(job.words(tmp_path / "run"), tmp_path, "os.getppid()", "SIGTERM", 0)
    assert code != 0
    assert told.count("debgcd: stopped; to continue: debgcd resume") == 1, told
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert len(saved) == 2 and saved[0].name == "step-00000003" and saved[1].name > "step-00000004"
    job.resume(tmp_path / "run", tmp_path / "resumed")


def test_a_restart_does_not_go_on_with_a_run_that_was_there_before(
    job: Job, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused at first; after the restart it would end well, with results of other images."""
    run = job.folder / "whole"
    before = result(run)
    surroundings = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for attempt in ("0", "1"):
        for name, value in (surroundings | {"TORCHELASTIC_RESTART_COUNT": attempt}).items():
            monkeypatch.setenv(name, value)
        found = command(*job.words(run))
        assert found.code == 2 and f"the run directory {run} is not empty" in found.complaint
    assert result(run) == before


def by_hand(works: Sequence[Callable[[], int]], folder: Path) -> list[int]:
    """Without torchrun: rank 0 has the store that all talk through."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return ranked(works, folder, MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="False")


def test_rank_0_ends_last_where_it_has_the_store(job: Job, tmp_path: Path) -> None:
    def work() -> int:
        with distributed.joined():
            time.sleep(0 if distributed.rank() else 0.3)  # the other one looks now and then whether it is there
            distributed.barrier()
        return 0

    assert by_hand([work, work], tmp_path) == [0, 0], said(tmp_path, 2)
    (tmp_path / "run").touch()
    codes = by_hand([command(job.words(tmp_path / "run"))] * 2, tmp_path)
    (line,) = sentences(tmp_path)
    assert codes[0] == 2 and codes[1] and "is a file; choose another run directory with -o" in line


# Bad input.


def test_a_rank_without_an_address(
    command: Callable[..., Any], shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    found = command("train", shared_folder, "-o", "nowhere")
    assert found.code == 2 and "RANK is set but MASTER_ADDR is not; start with torchrun" in found.complaint
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "many")
    assert command("train", shared_folder, "-o", "nowhere").code == 2
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("RANK", "2")
    found = command("train", shared_folder, "-o", "nowhere")
    assert found.code == 2 and "RANK is 2 but WORLD_SIZE is 2" in found.complaint
    monkeypatch.setenv("RANK", "1")
    found = command("train", shared_folder, "--nonsense")
    assert found.code == 2 and not found.err  # rank 0 says it


def test_what_went_wrong_is_told_before_a_signal_ends_the_rank(tmp_path: Path) -> None:
    """torchrun sends it to all ranks as soon as one has failed, so it may come at the same time."""
    hook = at_call("debgcd.cli._complain", 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert debgcd(["train", tmp_path / "nothing"], tmp_path / "rank-0.log", hook) == 2
    (line,) = sentences(tmp_path, 1)
    assert "nothing at" in line


def test_a_signal_while_a_rank_parts_does_not_change_its_exit_code(job: Job, tmp_path: Path) -> None:
    """torchrun tells the others to end as soon as one has ended."""

    def stopped() -> None:
        at_call("debgcd.train.loop.step", 2, lambda: os.kill(os.getpid(), signal.SIGTERM))()
        at_call("debgcd.system.distributed._part", 1, lambda: os.kill(os.getpid(), signal.SIGTERM))()

    codes = together(job.words(tmp_path / "run"), tmp_path / "stopped", hooks={0: stopped, 1: stopped})
    assert codes == [130, 130], said(tmp_path / "stopped", 2)


def test_a_port_in_use(job: Job, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def work() -> int:
            port = str(other.getsockname()[1])
            os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            return command(job.words(tmp_path / "run"))()

        assert forked(work, tmp_path / "rank-0.log") == 2
    (line,) = sentences(tmp_path, 1)
    assert "is in use by another program; choose another MASTER_PORT" in line


def replaced(target: str, value: Callable[..., Any]) -> Hook:
    def install() -> None:
        import pkgutil

        where, _, name = target.rpartition(".")
        setattr(pkgutil.resolve_name(where), name, value)

    return install


def test_ranks_that_run_other_code(job: Job, tmp_path: Path) -> None:
    """Two of three, and still one sentence."""
    hooks = dict.fromkeys((1, 2), replaced("debgcd.system.distributed.code", lambda: "another"))
    codes = together(job.words(tmp_path / "run"), tmp_path / "logs", 3, hooks)
    (line,) = sentences(tmp_path / "logs", 3)
    assert "runs another debgcd or torch than rank 0" in line
    assert all(codes) and codes[int(line.split()[2])] == 2  # debgcd: rank 1 on ...


def test_ranks_that_see_other_images(job: Job, tmp_path: Path) -> None:
    def other(path: Path) -> bytes:
        return b"x" * 32

    def install() -> None:
        replaced("debgcd.data.fingerprints.file_digest", other)()
        replaced("debgcd.data.fingerprints._known", lambda paths, cache: {})()

    codes = together(job.words(tmp_path / "run"), tmp_path / "logs", hooks={1: install})
    (line,) = sentences(tmp_path / "logs")
    assert codes[1] == 3 and "rank 1 on" in line and "images have changed since the run began" in line


def test_a_run_directory_that_a_rank_cannot_see(job: Job, tmp_path: Path) -> None:
    words = [job.words(tmp_path / name) for name in ("here", "there")]

    def elsewhere() -> int:
        replaced("debgcd.train.train.VISIBLE_WITHIN", 0.5)()  # type: ignore[arg-type]
        return command(words[1])()

    codes = ranked([command(words[0]), elsewhere], tmp_path)
    (line,) = sentences(tmp_path)
    assert codes[1] == 3 and "rank 1 on" in line and f"rank 0 writes to {tmp_path / 'there'} are not seen here" in line


def test_a_cache_that_a_rank_cannot_see(job: Job, tmp_path: Path) -> None:
    nothing = store.Index(np.empty(0, np.int64), np.empty((0, 1), np.uint32))
    unseen = replaced("debgcd.system.store._look", lambda folder, recipe: (nothing, 0))
    codes = together(job.words(tmp_path / "run"), tmp_path / "logs", hooks={1: unseen})
    (line,) = sentences(tmp_path / "logs")
    assert codes[1] == 3 and "rank 1 on" in line and "on a disk that all ranks share" in line


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in (("count", 4), ("local_rank", 3), ("rank", 3)):
        monkeypatch.setattr(distributed, name, lambda value=value: value)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(UsageError, match="LOCAL_RANK is 3, but there are 2 GPUs here"):
        pick_device("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto").type == "cpu"  # ranks cannot talk by mps


# Predictions, in parts.


def rows(table: Path) -> list[dict[str, str]]:
    with open(table, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_predictions_of_two_ranks_in_parts(job: Job, shared_folder: Path, tmp_path: Path) -> None:
    """The same rows whatever the number of ranks and the size of parts, to rounding; after a kill, to the byte."""
    run, source = job.folder / "whole", shared_folder / "unlabelled"
    small = replaced("debgcd.infer.predict.UNIT", 3)  # type: ignore[arg-type]
    assert debgcd(["predict", run, source, "-o", tmp_path / "one.csv"], tmp_path / "log") == 0
    words = ["predict", run, source, "-o"]
    assert together([*words, tmp_path / "whole.csv"], tmp_path / "logs", hooks={0: small, 1: small}) == [0, 0]

    def killed() -> None:
        small()
        at_call("debgcd.infer.predict.Parts.add", 3)()

    words.append(str(tmp_path / "two.csv"))
    codes = together(words, tmp_path / "killed", hooks={0: killed, 1: small})
    assert all(codes) and not (tmp_path / "two.csv").exists()
    assert together(words, tmp_path / "again", hooks={0: small, 1: small}) == [0, 0], said(tmp_path / "again", 2)
    assert "12 images are done already: going on" in said(tmp_path / "again", 2)[0]
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not list(tmp_path.glob(".*"))
    for one, two in zip(rows(tmp_path / "one.csv"), rows(tmp_path / "two.csv"), strict=True):
        for name in one:
            if name in ("confidence", "novelty") or name.endswith("_p"):
                assert float(one[name]) == pytest.approx(float(two[name]), abs=1e-5)
            else:
                assert one[name] == two[name]


def test_predictions_as_parquet(job: Job, shared_folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run, source = job.folder / "whole", shared_folder / "unlabelled"

    def work(name: str) -> Callable[[], int]:
        return command(["predict", run, source, "-o", tmp_path / name], replaced("debgcd.infer.predict.UNIT", 5))  # type: ignore[arg-type]

    for name in ("out.parquet", "out.csv"):
        assert forked(work(name), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    table, text = parquet.read_table(tmp_path / "out.parquet").to_pydict(), rows(tmp_path / "out.csv")
    assert list(table) == list(text[0]) and len(table["path"]) == len(text) == 14
    for i, row in enumerate(text):
        assert table["path"][i] == row["path"] and table["known"][i] == (row["known"] == "true")
        assert f"{table['confidence'][i]:.6f}" == row["confidence"] and str(table["category"][i]) == row["category"]
