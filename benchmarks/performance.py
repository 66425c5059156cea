"""Speed and memory, for docs/performance.md: all parts of `debgcd bench`, the trunk's share of the machine's speed, memory, scaling.

.venv/bin/python benchmarks/performance.py            writes benchmarks/results/performance.json and the table in the page

Takes about an hour; nothing is downloaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from grid import write_between
from memory import measure_memory, measure_scaling
from torch import Tensor, nn

from debgcd.model.backbone import Backbone, chunk_rows
from debgcd.reproduce.bench.measure import MEASURES, run
from debgcd.reproduce.bench.networks import TUNED_BLOCKS, ours, random_images, trunk_type
from debgcd.reproduce.bench.session import HEAD, Line, Session, Shape, Work, cells
from debgcd.system.files import write_json
from debgcd.system.machine import cores
from debgcd.system.progress import progress, say
from debgcd.system.text_table import markdown_table

ROOT = Path(__file__).resolve().parent.parent
FILE, PAGE = ROOT / "benchmarks" / "results" / "performance.json", ROOT / "docs" / "performance.md"

LEAST_SHARE = 0.7  # of the speed of bare products, for ViT-B/16

# The trunk as a share of the machine's own rate of matrix products. The reference is a trunk of bare products with the
# same shapes, number type and threads.

Product = tuple[int, int, int, int, int]  # count; batch, rows, inner and columns of the product for one image


def measure_trunk(session: Session) -> list[Line]:
    lines = []
    for shape in session.shapes:
        with progress(f"trunk, {shape.name}") as report:
            trunk = ours(session, shape, TUNED_BLOCKS).network.backbone
            size = session.sizes.views.crop
            bare = Products(products(shape, size, shape.depth - TUNED_BLOCKS))
            count = chunk_rows(random_images(1, size)) * cores()  # one chunk for each core, on both sides
            images, empty = random_images(count, size), random_images(count, 1)
            works = {
                "ours": Work(lambda: trunk.trunk(images), count),  # noqa: B023 (called within this iteration)
                "bare": Work(lambda: bare.trunk(empty), count),  # noqa: B023
            }
            seconds = session.seconds(works, report)
        own, other = (bare.flops / seconds[name] / 1e9 for name in works)
        what = f"{shape.name}, products of {shape.depth - TUNED_BLOCKS} blocks in {trunk_type()}, against bare products"
        lines.append(
            Line("trunk", what, "GFLOP/s", own, other, at_least=LEAST_SHARE if shape.name == "ViT-B/16" else None)
        )
    return lines


def products(shape: Shape, size: int, blocks: int) -> list[Product]:
    """The matrix products of a trunk with this number of blocks, for one image."""
    patches, width = (size // shape.patch) ** 2, shape.width
    rows, head = patches + 1, width // shape.heads
    return [
        (1, 1, patches, 3 * shape.patch**2, width),
        (4 * blocks, 1, rows, width, width),  # query, key, value, output
        (blocks, shape.heads, rows, head, rows),
        (blocks, shape.heads, rows, rows, head),
        (blocks, 1, rows, width, shape.hidden),
        (blocks, 1, rows, shape.hidden, width),
    ]


class Products(Backbone):
    """A trunk of bare products; being a backbone, it is split into chunks and threads like the real one."""

    def __init__(self, wanted: list[Product]):
        super().__init__()
        self._wanted = wanted
        self.flops = sum(2 * count * batch * m * k * n for count, batch, m, k, n in wanted)  # per image
        self.tuned = nn.ModuleList()
        self.register_buffer("pixel_mean", torch.zeros(3, 1, 1))
        self.register_buffer("pixel_std", torch.ones(3, 1, 1))

    def tokens(self, pixels: Tensor) -> Tensor:
        """(N, 3, 1, 1): only N matters. Results go to one buffer, so that the allocator is not timed."""
        kind, rows = getattr(torch, trunk_type()), len(pixels)
        for count, batch, m, k, n in self._wanted:
            if batch == 1:  # one weight for all rows of all images
                a, b, out = (torch.ones(sides, dtype=kind) for sides in ((rows * m, k), (k, n), (rows * m, n)))
            else:
                a, b, out = (torch.ones(rows * batch, *sides, dtype=kind) for sides in ((m, k), (k, n), (m, n)))
            for _ in range(count):
                torch.matmul(a, b, out=out)
        return pixels

    def tail(self, tokens: Tensor) -> Tensor:
        raise TypeError("bare products have no tail")


PARTS: dict[str, Callable[[Session], list[Line]]] = {
    "step": MEASURES["step"],
    "trunk": measure_trunk,
    **MEASURES,
    "memory": measure_memory,
    "scaling": measure_scaling,
}


def markdown(results: dict[str, Any]) -> str:
    """All lines, their notes, and the machine and versions they were measured with."""
    rows: list[list[str]] = []
    notes: dict[str, int] = {}
    for line in results["lines"]:
        row = cells(line)
        if line["note"]:
            row[1] += f" [{notes.setdefault(line['note'], len(notes) + 1)}]"
        rows.append(row)
    lines = [markdown_table(HEAD, rows, (0, 1)), "", *(f"[{i}] {note}.  " for note, i in notes.items())]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines.append(
        f"\nMeasured {results['date']} on {results['processor']}, {results['cores']} cores, {results['threads']} threads, "
        f"trunk in {results['trunk']}; median of {results['repeats']}, the ways taking turns.\n{versions}."
    )
    return "\n".join(lines)


def show(lines: list[Line]) -> None:
    for line in lines:
        say("  ".join(cells(line.to_json())))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="debgcd-performance-") as folder:
        results = run(Session(Path(folder)), PARTS, show)
    write_json(FILE, results)
    write_between(PAGE, "benchmarks/performance.py", markdown(results))


if __name__ == "__main__":
    main()
