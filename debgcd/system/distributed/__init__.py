"""The processes that work on one job, numbered from 0: this one alone, or those that torchrun started.

    torchrun --nproc-per-node 8 -m debgcd train photos/ -o runs/photos

Every function that exchanges something is a collective: all ranks call it, in the same order. With one rank each of them is
the identity, so callers have no second code path. Tensors travel by nccl between GPUs and by gloo between CPUs; short
messages and waiting go through torchrun's key-value store. A collective fails on every rank if another rank has failed, has
ended, or shows no sign of life for the timeout (`run.timeout`).

`group` joins, sends messages and waits; `tensors` gathers with gradient, averages, broadcasts.
"""

from debgcd.system.distributed.group import (
    Lost,
    all_gather,
    barrier,
    count,
    failed,
    from_rank0,
    heartbeat,
    joined,
    launch,
    launched,
    leave,
    local_count,
    local_rank,
    my_slice,
    rank,
    require_same_code,
    restarted,
    run_on_rank0,
    set_timeout,
    surroundings,
)
from debgcd.system.distributed.tensors import average, blobs, broadcast, collect, gather

__all__ = [
    "Lost",
    "all_gather",
    "average",
    "barrier",
    "blobs",
    "broadcast",
    "collect",
    "count",
    "failed",
    "from_rank0",
    "gather",
    "heartbeat",
    "joined",
    "launch",
    "launched",
    "leave",
    "local_count",
    "local_rank",
    "my_slice",
    "rank",
    "require_same_code",
    "restarted",
    "run_on_rank0",
    "set_timeout",
    "surroundings",
]
