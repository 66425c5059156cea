"""Processes that die on purpose. A fork has torch loaded already, so it costs a run and not seconds of importing."""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import debgcd.infer.predict
import debgcd.train.train
from debgcd.model.lite import load_lite
from debgcd.system.machine import versions

# read before the first fork, not in each
load_lite(1)
versions()

Hook = Callable[[], Any]


def forked(work: Callable[[], int], log: Path, seconds: float = 60) -> int:
    """Run `work` in a process of its own: its exit code, or minus the signal that ended it. What it prints is in `log`."""
    return forked_together([(work, log)], seconds)[0]


def forked_together(works: Sequence[tuple[Callable[[], int], Path]], seconds: float = 60) -> list[int]:
    """As `forked`, several at the same time."""
    children = [_fork(work, log) for work, log in works]
    return [_wait(child, log, seconds) for child, (_, log) in zip(children, works, strict=True)]


def ranked(
    works: Sequence[Callable[[], int]], folder: Path, seconds: float = 120, grace: float = 5, **environment: str
) -> list[int]:
    """Run each work as one rank of a job, as torchrun does: if one fails, the others are told to stop, then killed.

    Their exit codes, or minus signals; what they print is in folder/rank-0.log, ...
    """
    host, port = _store_host()
    common = {"WORLD_SIZE": str(len(works)), "LOCAL_WORLD_SIZE": str(len(works)), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}

    def placed(rank: int, work: Callable[[], int]) -> Callable[[], int]:
        def run() -> int:
            os.environ.update(common | environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            return work()

        return run

    children = {_fork(placed(i, work), folder / f"rank-{i}.log"): i for i, work in enumerate(works)}
    codes: dict[int, int] = {}
    end, told = time.monotonic() + seconds, False
    while len(codes) < len(works):
        for child, rank in children.items():
            if rank not in codes and (status := os.waitpid(child, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(status[1])
        left = [child for child, rank in children.items() if rank not in codes]
        if any(codes.values()) and not told:
            told, end = True, min(end, time.monotonic() + grace)
            for child in left:
                os.kill(child, signal.SIGTERM)
        if time.monotonic() > end:
            for child in left:
                os.kill(child, signal.SIGKILL)
            assert told, f"the ranks did not end in {seconds} s: {said(folder, len(works))}"
        time.sleep(0.005)
    os.kill(host, signal.SIGKILL)
    os.waitpid(host, 0)
    return [codes[rank] for rank in range(len(works))]


def _store_host() -> tuple[int, str]:
    """A process with the store that torchrun would have, and its port: with its thread here, a fork could copy a held lock."""
    from torch.distributed import TCPStore

    read, write = os.pipe()
    host = os.fork()
    if not host:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(write, str(store.port).encode())
        while True:
            signal.pause()
    try:
        return host, os.read(read, 10).decode()
    finally:
        os.close(read)
        os.close(write)


def said(folder: Path, ranks: int) -> list[str]:
    """What each rank of a job printed."""
    return [(folder / f"rank-{i}.log").read_text("utf-8") for i in range(ranks)]


def _fork(work: Callable[[], int], log: Path) -> int:
    log.touch()  # a rank that is told to stop as soon as it begins has said nothing
    child = os.fork()
    if not child:
        code = 99
        try:
            os.setsid()
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout = sys.stderr = open(log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (ends with the process)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def _wait(child: int, log: Path, seconds: float) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the process did not end in {seconds} s: {log.read_text('utf-8')}")


def debgcd(arguments: Sequence[object], log: Path, hook: Hook | None = None) -> int:
    """The command in a fork; `hook` is called there first, to plant what goes wrong."""
    return forked(command(arguments, hook), log)


def command(arguments: Sequence[object], hook: Hook | None = None) -> Callable[[], int]:
    """The command as work for a fork; `hook` as for `debgcd`."""

    def work() -> int:
        from debgcd.cli import main

        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
        if hook is not None:
            hook()
        return main([str(word) for word in arguments])

    return work


def die() -> None:
    """As if the machine's power failed: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(target: str, number: int, action: Callable[[], Any] = die, after: bool = False) -> Hook:
    """A hook that does `action` before (or after) the number-th call, counted from 1, of what `target` names."""

    def install() -> None:
        where, _, name = target.rpartition(".")
        owner = pkgutil.resolve_name(where)
        original = getattr(owner, name)
        count = 0

        def replacement(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == number and not after:
                action()
            result = original(*arguments, **named)
            if count == number and after:
                action()
            return result

        setattr(owner, name, replacement)

    return install


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def result(run: Path) -> tuple[str, str, str]:
    """What a finished run ended in: hashes of model, last checkpoint, predictions."""
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    return (
        sha256(run / "model" / "model.safetensors"),
        sha256(last / "state.safetensors"),
        sha256(run / "predictions.csv"),
    )


def logged_steps(run: Path) -> list[int]:
    """The steps of metrics.jsonl in their order, without the lines of evaluations."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line["step"] for line in lines if "loss" in line]
