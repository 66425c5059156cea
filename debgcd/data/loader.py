"""Decoding in worker processes: images in, uint8 views out. Workers hold no randomness; a view is a function of its draw."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from debgcd.config import ViewsConfig
from debgcd.data.cores import cores
from debgcd.data.decode import Unusable, decode
from debgcd.data.sampler import Draws
from debgcd.data.views import CENTRE, Cuts, cut_view, random_cuts, resize_short_side
from debgcd.errors import DataError

# An item to load: the image's number and the cuts of its views, (V, 3).
Item = tuple[int, Cuts]


class Images(Dataset[Tensor | str]):
    """Image files by number; an item gives its views, (V, 3, size, size) uint8, or the reason why it cannot.

    The reason is returned and not raised: what a worker process raises arrives here as the text of a traceback.
    """

    def __init__(self, paths: Sequence[Path], views: ViewsConfig):
        self._paths, self._views = paths, views

    def __getitem__(self, item: Item) -> Tensor | str:
        number, cuts = item
        try:
            image = resize_short_side(decode(self._paths[number], self._views.resize), self._views.resize)
        except Unusable as error:
            return f"{self._paths[number]} could be read when the run began but not now ({error}); put the file back and resume"
        return torch.stack([cut_view(image, cut, self._views.size) for cut in cuts])


def default_workers() -> int:
    """As many decoding processes as there are cores for them; none on a single core."""
    return 0 if cores() == 1 else min(cores(), 16)


def load_batches(images: Images, batches: Iterable[list[Item]], workers: int) -> Iterator[Tensor]:
    """The views of each batch of items in order, (len(batch), V, 3, size, size), decoded ahead by `workers` processes."""
    loader = DataLoader(
        images,
        batch_sampler=batches,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        collate_fn=_together,
        worker_init_fn=_leave_interrupts_to_the_parent,
    )
    for views in loader:
        if isinstance(views, str):
            raise DataError(views)
        yield views


def _together(views: list[Tensor | str]) -> Tensor | str:
    """The views of a batch as one tensor; or the first reason why there is none."""
    return next((entry for entry in views if isinstance(entry, str)), None) or default_collate(views)


def random_items(seed: int, draws: Iterable[Draws]) -> Iterator[list[Item]]:
    """Items of the two random views of each draw of each batch."""
    for batch in draws:
        cuts = random_cuts(seed, batch.draw)
        yield list(zip(batch.image.tolist(), cuts, strict=True))


def centre_items(numbers: NDArray[np.int64], batch: int) -> Iterator[list[Item]]:
    """Items of the centre crops of the images with these numbers, in batches."""
    for start in range(0, len(numbers), batch):
        yield [(int(number), CENTRE) for number in numbers[start : start + batch]]


def _leave_interrupts_to_the_parent(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides when to stop
