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

# loaded before the first fork, not in each: torch's optimisers load _dynamo when the first one is made
import torch._dynamo  # noqa: F401

import debgcd.inference.predict
import debgcd.train.start

Hook = Callable[[], Any]


def forked(work: Callable[[], int], log: Path, seconds: float = 60) -> int:
    """Run `work` in a process of its own: its exit code, or minus the signal that ended it. What it prints is in `log`."""
    return forked_together([(work, log)], seconds)[0]


def forked_together(works: Sequence[tuple[Callable[[], int], Path]], seconds: float = 60) -> list[int]:
    """As `forked`, several at the same time."""
    children = [_fork(work, log) for work, log in works]
    return [_wait(child, log, seconds) for child, (_, log) in zip(children, works, strict=True)]


def _fork(work: Callable[[], int], log: Path) -> int:
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
