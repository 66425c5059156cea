"""What the environment says of this process's place in a job: who launched it, where the others are, what it runs."""

from __future__ import annotations

import hashlib
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

from debgcd import __version__
from debgcd.errors import UsageError

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
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=TIMEOUT)))
    except (RuntimeError, ValueError, OSError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise UsageError(f"{where} is in use by another program; choose another MASTER_PORT") from error
        raise UsageError(
            f"rank {os.environ['RANK']} cannot reach the other ranks at {where}; check MASTER_ADDR and MASTER_PORT, and that "
            f"all {os.environ['WORLD_SIZE']} ranks were started"
        ) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # what was said before a restart is still in the store
    return dist.PrefixStore(f"debgcd/{attempt}/{os.environ.get(TURN, '')}", store)


def code() -> str:
    """A hash of what this rank runs."""
    import torch

    digest = hashlib.sha256(f"{__version__} {torch.__version__}".encode())
    folder = Path(__file__).parents[2]
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()
