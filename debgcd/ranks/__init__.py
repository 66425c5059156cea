"""The processes that work on one job, numbered from 0: this one alone, or those that torchrun started.

    torchrun --nproc-per-node 8 -m debgcd train photos/ -o runs/photos

Every function that exchanges something is a collective: all ranks call it, in the same order. With one rank each of them is
the identity, so callers have no second code path. Tensors travel by nccl between GPUs and by gloo between CPUs; short
messages and waiting go through torchrun's key-value store. A collective fails on every rank if another rank has failed, has
ended, or shows no sign of life for the timeout (`run.timeout`).
"""

from debgcd.ranks.group import (
    Lost,
    alive,
    count,
    failed,
    first,
    joined,
    leave,
    led,
    local_count,
    local_rank,
    meet,
    objects,
    rank,
    require_same_code,
    set_timeout,
    share,
    surroundings,
)
from debgcd.ranks.place import launch, launched, restarted
from debgcd.ranks.tensors import average, blobs, broadcast, collect, gather

__all__ = [
    "Lost",
    "alive",
    "average",
    "blobs",
    "broadcast",
    "collect",
    "count",
    "failed",
    "first",
    "gather",
    "joined",
    "launch",
    "launched",
    "leave",
    "led",
    "local_count",
    "local_rank",
    "meet",
    "objects",
    "rank",
    "require_same_code",
    "restarted",
    "set_timeout",
    "share",
    "surroundings",
]
