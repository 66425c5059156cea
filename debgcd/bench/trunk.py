"""Which share of the machine's own rate of matrix products the trunk reaches.

The yardstick is a trunk that does nothing but the products: same shapes, same type, same arrangement of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from debgcd.bench.lines import Line, compare
from debgcd.bench.networks import ours, random_images, trunk_type
from debgcd.bench.session import Session, Shape
from debgcd.bench.timing import Work
from debgcd.machine import cores
from debgcd.model.backbone import CHUNK, Backbone
from debgcd.progress import progress

GOALS = {"ViT-B/16": 0.7}
TUNED_BLOCKS = 2

Product = tuple[int, int, int, int, int]  # how often; batch, rows, inner and columns of one image's product


def measure(session: Session) -> list[Line]:
    lines = []
    for shape in session.shapes:
        with progress(f"trunk, {shape.name}") as report:
            trunk = ours(session, shape, TUNED_BLOCKS).network.backbone
            bare = Products(products(shape, session.sizes.views.size, shape.depth - TUNED_BLOCKS))
            count = CHUNK * cores()  # the same amount for every core
            images, empty = random_images(count, session.sizes.views.size), random_images(count, 1)
            works = {
                "ours": Work(lambda: trunk.trunk(images), count),  # noqa: B023 (called within this turn)
                "bare": Work(lambda: bare.trunk(empty), count),  # noqa: B023
            }
            seconds = session.seconds(works, report)
        rates = {name: bare.flops / seconds[name] / 1e9 for name in works}
        what = f"{shape.name}, products of {shape.depth - TUNED_BLOCKS} blocks in {trunk_type()}, against bare products"
        lines.append(compare("trunk", what, "GFLOP/s", rates["ours"], rates["bare"], at_least=GOALS.get(shape.name)))
    return lines


def products(shape: Shape, size: int, blocks: int) -> list[Product]:
    """The matrix products of a trunk of so many blocks, for one image."""
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
    """A trunk of bare products; as a backbone it is cut into chunks and spread over threads as the real one is."""

    def __init__(self, wanted: list[Product]):
        super().__init__()
        self._wanted = wanted
        self.flops = sum(2 * often * batch * m * k * n for often, batch, m, k, n in wanted)  # of one image
        self.tuned = nn.ModuleList()
        self.register_buffer("pixel_mean", torch.zeros(3, 1, 1))
        self.register_buffer("pixel_std", torch.ones(3, 1, 1))

    def tokens(self, pixels: Tensor) -> Tensor:
        """(N, 3, 1, 1): only N counts. Results go to one place, since the machine's rate is not that of its allocator."""
        kind, rows = getattr(torch, trunk_type()), len(pixels)
        for often, batch, m, k, n in self._wanted:
            if batch == 1:  # one weight for all rows of all images
                a, b, out = (torch.ones(sides, dtype=kind) for sides in ((rows * m, k), (k, n), (rows * m, n)))
            else:
                a, b, out = (torch.ones(rows * batch, *sides, dtype=kind) for sides in ((m, k), (k, n), (m, n)))
            for _ in range(often):
                torch.matmul(a, b, out=out)
        return pixels

    def tail(self, tokens: Tensor) -> Tensor:
        raise TypeError("there is no tail to bare products")
