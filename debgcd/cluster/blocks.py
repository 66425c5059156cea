"""Points of any number as k-means reads them: a block at a time, never copied as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

ELEMENTS = 2**20  # of the larger of a block's two matrices: it stays in a core's cache
FEWEST_ROWS = 256  # below, a product spends its time on fetching the other factor
SUMMED = 2**14  # points sorted by cluster and summed together
IN_FLOAT32 = 256  # of them added in float32 before the sum goes on in float64
LARGEST_NORM = 1e18  # squares of distances still fit into float32

Each = Callable[[Callable[[slice], None], Iterable[slice]], Iterable[None]]  # map, maybe in several threads


@dataclass(frozen=True)
class Points:
    """The points of a clustering: as given, or scaled to unit length; read relative to their middle.

    Differences from the middle keep float32's digits where all points lie far from the origin and near each other.
    """

    raw: Tensor  # (N, d), float32 or float64
    scale: Tensor | None  # (N,) what makes a point's length one; zero for a point without length; None: as given
    middle: Tensor  # (d,)

    def block(self, rows: Tensor) -> Tensor:
        """The points of ascending rows less the middle: (n,) -> (n, d)."""
        first, last = int(rows[0]), int(rows[-1])
        slice_ = last - first + 1 == len(rows)  # a view instead of a gathered copy
        points = self.raw[first : last + 1] if slice_ else self.raw[rows]
        if self.scale is not None:
            points = points * self.scale[rows, None]
        return points - self.middle

    def blocks(self, count: int, columns: int) -> list[slice]:
        """`count` rows in blocks for a product with a (d, columns) matrix; the size depends on the shapes alone."""
        return slices(count, max(FEWEST_ROWS, ELEMENTS // max(columns, self.raw.shape[1])))

    def add_sums(self, total: Tensor, rows: Tensor, cluster: Tensor) -> None:
        """Add the points of `rows` (m,) to the sums of their clusters (m,), in place; not less the middle: (K, d).

        Each cluster's points are added one after the other: unlike index_add, the same on every run and device.
        """
        if not len(rows):
            return
        order = cluster.argsort(stable=True)
        rows, cluster = rows[order], cluster[order]
        size = torch.bincount(cluster, minlength=len(total))
        runs = torch.arange(0, len(rows), IN_FLOAT32, device=rows.device)
        cuts = torch.cat([(size.cumsum(0) - size)[size > 0], runs]).unique()
        weights = None if self.scale is None else self.scale[rows]
        parts = embedding_bag(rows, self.raw, cuts, mode="sum", per_sample_weights=weights)
        size = torch.bincount(cluster[cuts], minlength=len(total))
        every = torch.arange(len(parts), device=rows.device)
        total += embedding_bag(every, parts.double(), size.cumsum(0) - size, mode="sum")


def slices(count: int, size: int) -> list[slice]:
    """0..count in pieces of `size`."""
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def read(points: Tensor, *, unit: bool) -> Points:
    """Check the points and find their scale and their middle, block by block."""
    norms = points.new_empty(len(points))
    scale = torch.zeros_like(norms) if unit else None
    total = points.new_zeros(points.shape[1], dtype=torch.float64)
    for here in slices(len(points), max(FEWEST_ROWS, ELEMENTS // max(1, points.shape[1]))):
        block = points[here]
        norms[here] = torch.linalg.vector_norm(block, dim=1)
        if scale is not None:
            scale[here] = torch.where(norms[here] > 0, 1 / norms[here], 0)
            block = block * scale[here, None]
        total += block.sum(0)
    if not bool((norms < LARGEST_NORM).all()):
        raise ValueError("points hold values that are not finite, or too large to square")
    return Points(points, scale, (total / max(1, len(points))).to(points.dtype))


@contextmanager
def one_thread_each(device: torch.device) -> Iterator[Each]:
    """A `map` that gives each core blocks of its own on a CPU: a core that works alone never waits for another one."""
    cores = torch.get_num_threads()
    if device.type != "cpu" or cores == 1:
        yield map
        return
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(cores)  # the setting of the last thread would remain
