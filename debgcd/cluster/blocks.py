"""Points as k-means reads them: one block at a time, never copied as a whole, so that memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

ELEMENTS = 2**20  # of the larger of a block's two matrices: it fits into a core's cache
FEWEST_ROWS = 256  # with fewer, loading the other matrix dominates a product's time
SUMMED = 2**14  # points sorted by cluster and summed together
IN_FLOAT32 = 256  # terms summed in float32 before float64 takes over
LARGEST_NORM = 1e18  # squared distances still fit into float32

Each = Callable[[Callable[[slice], None], Iterable[slice]], Iterable[None]]  # map, possibly in several threads


@dataclass(frozen=True)
class Points:
    """The points of a clustering, read relative to their mean, the middle.

    This keeps float32's precision where all points lie far from the origin and close together.
    """

    raw: Tensor  # (N, d), float32 or float64
    middle: Tensor  # (d,)

    def block(self, rows: Tensor) -> Tensor:
        """The points of ascending rows minus the middle: (n,) -> (n, d)."""
        first, last = int(rows[0]), int(rows[-1])
        slice_ = last - first + 1 == len(rows)  # a view instead of a gathered copy
        points = self.raw[first : last + 1] if slice_ else self.raw[rows]
        return points - self.middle

    def blocks(self, count: int, columns: int) -> list[slice]:
        """`count` rows in blocks for a product with a (d, columns) matrix; the block size depends only on the shapes."""
        return slices(count, max(FEWEST_ROWS, ELEMENTS // max(columns, self.raw.shape[1])))

    def add_sums(self, total: Tensor, rows: Tensor, cluster: Tensor) -> None:
        """Add the raw points of `rows` (m,) to the sums (K, d) of their clusters (m,), in place.

        Each cluster's points are added in a fixed order: unlike index_add, the same on every run and device.
        """
        if not len(rows):
            return
        order = cluster.argsort(stable=True)
        rows, cluster = rows[order], cluster[order]
        size = torch.bincount(cluster, minlength=len(total))
        runs = torch.arange(0, len(rows), IN_FLOAT32, device=rows.device)
        cuts = torch.cat([(size.cumsum(0) - size)[size > 0], runs]).unique()
        parts = embedding_bag(rows, self.raw, cuts, mode="sum")
        size = torch.bincount(cluster[cuts], minlength=len(total))
        every = torch.arange(len(parts), device=rows.device)
        total += embedding_bag(every, parts.double(), size.cumsum(0) - size, mode="sum")


def slices(count: int, size: int) -> list[slice]:
    """0..count in slices of `size`."""
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def read(points: Tensor) -> Points:
    """Check the points and find their middle, block by block."""
    norms = points.new_empty(len(points))
    total = points.new_zeros(points.shape[1], dtype=torch.float64)
    for here in slices(len(points), max(FEWEST_ROWS, ELEMENTS // max(1, points.shape[1]))):
        block = points[here]
        norms[here] = torch.linalg.vector_norm(block, dim=1)
        total += block.sum(0)
    if not bool((norms < LARGEST_NORM).all()):
        raise ValueError("points must be finite and not too large to square; check the features")
    return Points(points, (total / max(1, len(points))).to(points.dtype))


@contextmanager
def one_thread_each(device: torch.device) -> Iterator[Each]:
    """A `map` with one single-threaded worker per core on a CPU: cores with their own blocks never wait for each other."""
    cores = torch.get_num_threads()
    if device.type != "cpu" or cores == 1:
        yield map
        return
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(cores)  # the workers' setting is global
