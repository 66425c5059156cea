"""The processes that work on one job, numbered from 0: this one alone, or those that torchrun started.

    torchrun --nproc-per-node 8 -m debgcd train photos/ -o runs/photos

Every function that exchanges something is a collective: all ranks call it, in the same order. With one rank each of them is
the identity, so callers have no second code path. Tensors travel by nccl between GPUs and by gloo between CPUs; short
messages and waiting go through torchrun's key-value store. A collective fails on every rank if another rank has failed, has
ended, or shows no sign of life for the timeout (`run.timeout`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from debgcd import __version__
from debgcd.errors import DebgcdError, UsageError
from debgcd.system.files import parse_json

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = 600.0  # seconds, until a run's configuration says otherwise
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # as torchrun sets them
AGENT = "TORCHELASTIC_USE_AGENT_STORE"  # "True": the launcher has the store
TURN = "DEBGCD_TURN"  # names one of several jobs that share a store, such as the runs of `debgcd reproduce`


def launched() -> bool:
    """Whether a launcher such as torchrun started this process."""
    return "RANK" in os.environ


def restarted() -> bool:
    """Whether torchrun started the job again after a failure (`--max-restarts`)."""
    return launched() and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def launch() -> str | None:
    """Names the launcher of this process, which is the same after a restart; None if there was none."""
    if not launched():
        return None
    launcher = f"{os.environ.get('TORCHELASTIC_RUN_ID')} {socket.gethostname()} {os.getppid()}"
    return hashlib.sha256(launcher.encode()).hexdigest()[:16]


def place() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        raise UsageError(
            f"RANK is set but {missing[0]} is not; start with torchrun, set all of {', '.join(NEEDED)}, or unset RANK"
        )
    try:
        number, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        int(os.environ["MASTER_PORT"]), int(os.environ.get("LOCAL_RANK", "0"))
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE, LOCAL_RANK and MASTER_PORT must be whole numbers ({error})") from error
    if not 0 <= number < ranks:
        raise UsageError(f"RANK is {number} but WORLD_SIZE is {ranks}; ranks are numbered from 0 to WORLD_SIZE - 1")
    return number, ranks


def open_store() -> Any:
    """The key-value store that torchrun started, else one that rank 0 starts."""
    import torch.distributed as dist

    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=TIMEOUT)))  # type: ignore[attr-defined]
    except (RuntimeError, ValueError, OSError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise UsageError(f"{where} is in use by another program; choose another MASTER_PORT") from error
        raise UsageError(
            f"rank {os.environ['RANK']} cannot reach the other ranks at {where}; check MASTER_ADDR and MASTER_PORT, and that "
            f"all {os.environ['WORLD_SIZE']} ranks were started"
        ) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # what was said before a restart is still in the store
    return dist.PrefixStore(f"debgcd/{attempt}/{os.environ.get(TURN, '')}", store)  # type: ignore[attr-defined]


def code() -> str:
    """A hash of what this rank runs."""
    import torch

    digest = hashlib.sha256(f"{__version__} {torch.__version__}".encode())
    folder = Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


BEAT = 1.0  # seconds between two signs of life
PARTING = 5.0  # seconds that rank 0 waits at the end for ranks that do not end

T = TypeVar("T")


class Lost(DebgcdError):
    """Another rank failed, exited or stopped responding; its own log has the reason."""


@dataclass
class Group:
    """A rank's place among several."""

    store: Any
    rank: int
    count: int
    timeout: float = TIMEOUT
    connected: bool = False
    beaten: float = 0.0
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of messages, alike on all ranks


_group: ContextVar[Group | None] = ContextVar("ranks", default=None)


def rank() -> int:
    """This process's rank. Rank 0 writes files and prints."""
    group = _group.get()
    return 0 if group is None else group.rank


def count() -> int:
    """How many ranks there are."""
    group = _group.get()
    return 1 if group is None else group.count


def local_rank() -> int:
    """The rank on this machine, which is the number of the GPU to use."""
    return int(os.environ.get("LOCAL_RANK", "0")) if count() > 1 else 0


def local_count() -> int:
    """How many ranks share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if count() > 1 else 1


def my_slice(items: int, unit: int = 1) -> slice:
    """This rank's slice of `items`, in whole units except at the end. If any rank has items, rank 0 has."""
    units = -(-items // unit)
    start, end = (-(-units * i // count()) * unit for i in (rank(), rank() + 1))
    return slice(start, end)


@contextmanager
def joined() -> Iterator[None]:
    """Take this rank's place among those that the environment names."""
    if not launched():
        yield
        return
    number, ranks = place()
    if ranks == 1:
        yield
        return
    group = Group(open_store(), number, ranks)
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)
        with suppress(RuntimeError):
            _part(group)


def _part(group: Group) -> None:
    """End the connection. Without torchrun rank 0 has the store, and others could not tell how the job ended: it goes last."""
    if group.connected:
        import torch.distributed as dist

        dist.destroy_process_group()
    if group.rank:
        group.store.add("parted", 1)
    elif os.environ.get(AGENT) != "True":
        end = time.monotonic() + PARTING
        while group.store.add("parted", 0) < group.count - 1 and time.monotonic() < end:
            time.sleep(0.01)


def leave() -> bool:
    """End collective work with a last barrier; True on rank 0, which may go on alone."""
    leads = rank() == 0
    barrier()
    _group.set(None)
    return leads


def require_same_code() -> None:
    """Refuse a rank that runs another version than rank 0."""
    if count() > 1 and from_rank0(code) != code():
        raise UsageError("runs another debgcd or torch than rank 0; install the same version")


def surroundings(turn: str) -> dict[str, str]:
    """What a process needs in its environment to take this rank's place in a job of its own, which all ranks name alike."""
    return {TURN: turn, AGENT: "True"} if count() > 1 else {}


def set_timeout(seconds: float) -> None:
    """How long to wait for a rank that shows no sign of life."""
    group = _group.get()
    if group is not None:
        group.timeout = seconds


def announce_failure() -> bool:
    """Tell the other ranks that this one ends with an error; returns whether it is the first, which alone prints."""
    group = _group.get()
    if group is None:
        return True
    with suppress(RuntimeError):
        me = str(group.rank)
        return bool(group.store.compare_set("failed", "", me).decode() == me)
    return group.rank < 2  # without a store ranks cannot agree; rank 0, which hosts it, may have ended


def heartbeat() -> None:
    """A heartbeat for ranks that wait; cheap, called wherever work makes progress."""
    group = _group.get()
    if group is not None and time.monotonic() - group.beaten > BEAT:
        group.beaten = time.monotonic()
        with covered(group):
            group.store.add("alive", 1)


# Messages: JSON, through the store. Ranks may arrive at any time, as long as some rank shows signs of life.


def all_gather(value: Any) -> list[Any]:
    """The values of all ranks, in rank order."""
    group = _group.get()
    if group is None:
        return [value]
    number = next(group.numbers)
    keys = [f"{number}/{i}" for i in range(group.count)]
    with covered(group):
        group.store.set(keys[group.rank], json.dumps(value))
        _wait(group, keys)
        return [parse_json(group.store.get(key)) for key in keys]


def barrier() -> None:
    """Wait for all ranks."""
    all_gather(None)


def from_rank0(work: Callable[[], T]) -> T:
    """What `work` returns on rank 0, as JSON data; it runs there alone."""
    group = _group.get()
    if group is None:
        return work()
    key = f"{next(group.numbers)}/first"
    value = work() if group.rank == 0 else None
    with covered(group):
        if group.rank == 0:
            group.store.set(key, json.dumps(value))
        _wait(group, [key])
        return parse_json(group.store.get(key))


def run_on_rank0(work: Callable[..., object], *together: Callable[[], T]) -> None:
    """Run `work` on rank 0 alone; for each collective in `together` it is given a function that runs it on all ranks."""
    group = _group.get()
    if group is None:
        work(*together)
    elif group.rank == 0:

        def call(number: int) -> T:
            from_rank0(lambda: number)
            return together[number]()

        work(*(partial(call, number) for number in range(len(together))))
        from_rank0(lambda: -1)
    else:
        # rank 0 sends the number of each collective before it, and -1 at the end
        while (number := from_rank0(lambda: -1)) >= 0:
            together[number]()


def _wait(group: Group, keys: list[str]) -> None:
    seen, since, pause = -1, time.monotonic(), 0.0005
    while not group.store.check(keys):
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
        if pause < 0.05:
            continue
        if group.store.check(["failed"]) and not group.store.check(keys):  # it may have spoken before it failed
            raise Lost(f"rank {group.store.get('failed').decode()} failed")
        signs = group.store.add("alive", 0)
        if signs != seen:
            seen, since = signs, time.monotonic()
        elif time.monotonic() - since > group.timeout:
            silent = [key.split("/")[1].replace("first", "0") for key in keys if not group.store.check([key])]
            raise Lost(
                f"no sign of life from rank {', '.join(silent)} for {group.timeout:g} s (run.timeout); it hangs or has ended"
            )


@contextmanager
def covered(group: Group) -> Iterator[None]:
    """Turn torch's errors about other ranks into one sentence."""
    try:
        yield
    except RuntimeError as error:  # torch.distributed's errors are some of these
        # without the place in gloo's source
        reason = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0]).partition(". ")[0]
        raise Lost(
            f"another rank has ended, or did not answer within {group.timeout:g} s (run.timeout): {reason}"
        ) from error


# Tensors: of the same shapes on all ranks unless stated.


def gather(rows: Tensor) -> Tensor:
    """(n, ...) -> (ranks, n, ...), with gradient.

    Every rank computes the same loss of all rows, so the gradient that reaches its own rows is already complete and nothing
    is sent back. It is multiplied by the number of ranks because `average` divides by it: parameters that a loss uses
    directly, without `gather`, have their whole gradient on every rank.
    """
    group = _group.get()
    if group is None:
        return rows[None]
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(group.count)]
    with connected(group):
        dist.all_gather(parts, rows.detach().contiguous())
    if rows.requires_grad:
        own = rows.view_as(rows)
        own.register_hook(lambda gradient: gradient * group.count)
        parts[group.rank] = own
    return torch.stack(parts)


def average(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The mean over all ranks, of tensors of one type, in one transfer."""
    group = _group.get()
    if group is None:
        return list(tensors)
    import torch
    import torch.distributed as dist

    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    with connected(group):
        dist.all_reduce(flat)
    parts = (flat / group.count).split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Copy rank 0's values into these tensors."""
    group = _group.get()
    if group is None:
        return
    import torch.distributed as dist

    barrier()
    with connected(group):
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def collect(rows: Tensor, everyone: bool = True) -> Tensor:
    """The rows of all ranks, which may have different numbers of them, in their order; else only rank 0 gets any."""
    group = _group.get()
    if group is None:
        return rows
    import torch
    import torch.distributed as dist

    shapes = all_gather([len(rows), *rows.shape[1:]])  # also waits: ranks may take long to compute their rows
    sizes = [shape[0] for shape in shapes]
    if not max(sizes):
        return rows
    inner = max(shapes)[1:]  # a rank without rows may not know their shape
    padded = rows.new_zeros(max(sizes), *inner)
    if len(rows):
        padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    with connected(group):
        if everyone:
            dist.all_gather(parts, padded)
        else:
            dist.gather(padded, parts if group.rank == 0 else None)
    if group.rank and not everyone:
        return rows[:0]
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def blobs(content: bytes) -> list[bytes]:
    """The bytes of each rank, on rank 0; on others nothing."""
    group = _group.get()
    if group is None:
        return [content]
    import numpy as np
    import torch

    sizes = all_gather(len(content))
    whole = collect(torch.from_numpy(np.array(memoryview(content))), everyone=False)
    ends = list(itertools.accumulate(sizes))
    data = whole.numpy().tobytes()
    return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)] if group.rank == 0 else []


@contextmanager
def connected(group: Group) -> Iterator[None]:
    """Around what torch.distributed sends; the first time, the ranks are connected."""
    import torch
    import torch.distributed as dist

    if not group.connected:
        barrier()
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank())
        with covered(group):
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(
                backend,
                store=group.store,
                rank=group.rank,
                world_size=group.count,
                timeout=timedelta(seconds=group.timeout),
            )
        group.connected = True
    with covered(group):
        yield
