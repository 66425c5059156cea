"""Tensors between ranks: of the same shapes on all of them unless stated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from debgcd.system.distributed.group import Group, all_gather, barrier, covered, current, local_rank

if TYPE_CHECKING:
    from torch import Tensor


def gather(rows: Tensor) -> Tensor:
    """(n, ...) -> (ranks, n, ...), with gradient.

    Every rank computes the same loss of all rows, so the gradient that reaches its own rows is already complete and nothing
    is sent back. It is multiplied by the number of ranks because `average` divides by it: parameters that a loss uses
    directly, without `gather`, have their whole gradient on every rank.
    """
    group = current()
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
    group = current()
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
    group = current()
    if group is None:
        return
    import torch.distributed as dist

    barrier()
    with connected(group):
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def collect(rows: Tensor, everyone: bool = True) -> Tensor:
    """The rows of all ranks, which may have different numbers of them, in their order; else only rank 0 gets any."""
    group = current()
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
    group = current()
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
