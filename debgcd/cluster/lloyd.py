"""Lloyd's iterations for all restarts together: assign and average until nothing changes."""

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


SAME = 1e-6  # relative distance below which two points count as equal


@dataclass(frozen=True)
class Fixed:
    """What never changes: the free points, and the labelled part of each cluster."""

    free: Tensor  # (n,) ascending rows
    sums: Tensor  # (K, d) float64, of the labelled points of each cluster
    counts: Tensor  # (K,)


@dataclass(frozen=True)
class Finished:
    """The result of one restart: centres relative to the middle, and the clusters of the free points."""

    restart: int
    centres: Tensor  # (K, d)
    chosen: Tensor  # (n,)


@dataclass(frozen=True)
class _State:
    """The A active restarts, updated block by block.

    A score is half the squared distance to a centre minus half the squared norm of the point. Only the own score and a
    lower bound on all others are kept: the bound tells which points have to be compared with unmoved centres.
    """

    chosen: Tensor  # (n, A) the cluster of each point
    own: Tensor  # (n, A) its score
    others: Tensor  # (n, A) lower bound on the scores of all other clusters

    def of(self, restarts: Tensor) -> _State:
        return _State(self.chosen[:, restarts], self.own[:, restarts], self.others[:, restarts])


def fix(points: Points, label: Tensor, k: int) -> tuple[Fixed, Tensor]:
    """The labelled part of each cluster, and its mean relative to the middle: (K, d)."""
    rows = (label >= 0).nonzero()[:, 0]
    sums = points.middle.new_zeros(k, len(points.middle), dtype=torch.float64)
    for here in slices(len(rows), SUMMED):
        points.add_sums(sums, rows[here], label[rows[here]])
    counts = torch.bincount(label[rows], minlength=k)
    mean = sums / counts.clamp_min(1)[:, None]
    return Fixed((label < 0).nonzero()[:, 0], sums, counts), (mean - points.middle).to(points.middle.dtype)


def lloyd(
    points: Points,
    fixed: Fixed,
    centres: Tensor,
    *,
    iterations: int,
    each: Each,
    advance: Callable[[float], None],
) -> Iterator[Finished]:
    """Every restart from its first centres (R, K, d) to convergence: R times `Finished`, in the order they converge.

    An empty cluster takes the free point farthest from its centre that is not alone in its cluster; if there is none, the
    centre stays. A restart also ends when clusters are empty while every point lies on its centre: with more clusters
    than distinct points, copies would change places forever. At the limit of iterations, points are assigned once more,
    so that each is with its nearest centre.
    """
    restarts, k, _ = centres.shape
    n, device = len(fixed.free), centres.device
    centres = centres.clone()
    active = torch.arange(restarts, device=device)
    moved = torch.ones(restarts, k, dtype=torch.bool, device=device)
    infinite = torch.full((n, restarts), torch.inf, dtype=centres.dtype, device=device)
    state = _State(torch.zeros(n, restarts, dtype=torch.int64, device=device), infinite, infinite.clone())
    for iteration in range(iterations):
        before = state.chosen.clone() if iteration else -torch.ones_like(state.chosen)
        for share in _assign(points, fixed.free, state, centres, moved, each):
            advance(iteration + share)
        counts = _count(state.chosen, k) + fixed.counts
        settled = torch.zeros(len(active), dtype=torch.bool, device=device)
        for a in (counts == 0).any(1).nonzero()[:, 0].tolist():
            settled[a] = not _fill_empty(points, fixed, state.chosen[:, a], counts[a], centres[a])
        changed = state.chosen != before
        if iteration:
            moved, restart = torch.zeros_like(moved), changed.nonzero()[:, 1]
            moved[restart, state.chosen[changed]] = True
            moved[restart, before[changed]] = True
        _average(points, fixed, state.chosen, counts, moved, centres)
        moving = changed.any(0) & ~settled
        for a in (~moving).nonzero()[:, 0].tolist():
            yield Finished(int(active[a]), centres[a].clone(), state.chosen[:, a].clone())
        if not bool(moving.all()):
            left = moving.nonzero()[:, 0]
            active, centres, moved, state = active[left], centres[left], moved[left], state.of(left)
        if not len(active):
            return
    for _ in _assign(points, fixed.free, state, centres, moved, each):
        pass  # the final assignment
    for a, restart_number in enumerate(active.tolist()):
        yield Finished(restart_number, centres[a].clone(), state.chosen[:, a].clone())


def _count(chosen: Tensor, k: int) -> Tensor:
    """Free points per cluster: (n, A) -> (A, K)."""
    restarts = chosen.shape[1]
    key = chosen + k * torch.arange(restarts, device=chosen.device)
    return torch.bincount(key.flatten(), minlength=restarts * k).view(restarts, k)


def _assign(points: Points, free: Tensor, state: _State, centres: Tensor, moved: Tensor, each: Each) -> Iterator[float]:
    """Assign every free point to its nearest centre, in place; yields the share of points done.

    All points are compared with the centres that moved: a point whose own centre stayed can only change to one of these.
    A point whose own centre moved is compared with the others only if the bound allows one to be nearer.
    """
    restarts = len(centres)
    most = int(moved.sum(1).max())
    # each restart gets as many columns as the one with most moved centres; surplus columns score infinity
    index = moved.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]  # (A, most)
    halves = centres.square().sum(2) / 2  # (A, K)
    columns = centres.gather(1, index[:, :, None].expand(-1, -1, centres.shape[2])).flatten(0, 1)  # (A * most, d)
    half = halves.gather(1, index).masked_fill(~moved.gather(1, index), torch.inf).flatten()
    restart = torch.arange(restarts, device=centres.device)

    def work(here: slice) -> None:
        x = points.block(free[here])
        chosen, own, others = state.chosen[here], state.own[here], state.others[here]  # (b, A), views
        score = torch.addmm(half, x, columns.T, alpha=-1).view(len(x), restarts, most)
        pick = score.argmin(2, keepdim=True)
        value = score.gather(2, pick)[:, :, 0]
        second = score.scatter_(2, pick, torch.inf).amin(2)
        nearest = index.expand(len(x), -1, -1).gather(2, pick)[:, :, 0]
        own_moved = moved[restart, chosen]
        held = own.masked_fill(own_moved, torch.inf)
        leaves = value < held
        unsure = own_moved & (value > others)
        chosen.copy_(torch.where(leaves, nearest, chosen))
        own.copy_(torch.minimum(value, held))
        # the score of the former centre can be dropped: without this point it moves, and is compared again
        others.copy_(torch.minimum(others, torch.where(leaves, second, value)))
        for a in unsure.any(0).nonzero()[:, 0].tolist():
            look = unsure[:, a].nonzero()[:, 0]
            score = torch.addmm(halves[a], x[look], centres[a].T, alpha=-1)
            pick = score.argmin(1, keepdim=True)
            chosen[look, a], own[look, a] = pick[:, 0], score.gather(1, pick)[:, 0]
            others[look, a] = score.scatter_(1, pick, torch.inf).amin(1)

    blocks = points.blocks(len(free), len(columns))
    for done, _ in enumerate(each(work, blocks), 1):
        yield done / len(blocks)


def _fill_empty(points: Points, fixed: Fixed, chosen: Tensor, counts: Tensor, centres: Tensor) -> bool:
    """Give each empty cluster of one restart the farthest free point that is not alone in its cluster; in place.

    Returns whether this reduced the inertia.
    """
    if not len(fixed.free):
        return False
    parts = [
        (points.block(fixed.free[here]) - centres[chosen[here]]).square().sum(1)
        for here in points.blocks(len(fixed.free), 1)
    ]
    cost = torch.cat(parts)
    empty = (counts == 0).nonzero()[:, 0].tolist()
    better = False
    # points alone in their cluster are skipped: at most one per cluster
    for point in cost.argsort(descending=True, stable=True)[: len(empty) + len(counts)].tolist():
        giver = int(chosen[point])
        if not empty or counts[giver] <= 1:
            continue
        taker = empty.pop(0)
        counts[giver] -= 1
        counts[taker] = 1
        chosen[point] = taker
        better |= bool(cost[point] > (SAME * points.raw[fixed.free[point]].norm()) ** 2)
    return better


def _average(points: Points, fixed: Fixed, chosen: Tensor, counts: Tensor, moved: Tensor, centres: Tensor) -> None:
    """The means of the clusters that moved, written to `centres`: (A, K, d), relative to the middle."""
    restarts, k, _ = centres.shape
    place = moved.flatten().cumsum(0) - 1  # (A * K,) row of a moved cluster's sum
    total = fixed.sums[moved.nonzero()[:, 1]]
    offset = k * torch.arange(restarts, device=chosen.device)
    for here in slices(len(chosen), SUMMED):
        key = chosen[here] + offset  # (b, A)
        wanted = moved.flatten()[key]
        points.add_sums(total, fixed.free[here][wanted.nonzero()[:, 0]], place[key[wanted]])
    count = counts[moved][:, None]
    mean = (total / count.clamp_min(1) - points.middle).to(centres.dtype)
    centres[moved] = torch.where(count == 0, centres[moved], mean)
