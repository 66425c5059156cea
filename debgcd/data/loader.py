"""Load the views of batches in worker processes. Workers have no random state: a view is a function of its draw."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from multiprocessing import get_start_method
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from debgcd.config.schema import ViewsConfig
from debgcd.data.fingerprints import gone
from debgcd.data.image.crop import Picture
from debgcd.data.image.decode import Unusable, decoded
from debgcd.data.sampler import Draws
from debgcd.data.views import CENTRE, PLAIN, TWO_PLAIN, CropParams, Kinds, crop_view, random_crops, resize_short_side
from debgcd.errors import DataError
from debgcd.system import distributed
from debgcd.system.machine import begin_patient_worker, cores, fresh_workers

T = TypeVar("T")

SHARED_MEMORY = re.compile(r"shared memory|/torch_|bus error", re.IGNORECASE)  # in PyTorch's errors when it is full

# An item to load: an image's number, the crop parameters of its views, (V, PARTS), and the kind of each view.
Item = tuple[int, CropParams, Kinds]

# Maps an image's number to its resized pixels, (3, h, w) uint8; raises a DataError if it cannot. Workers get a copy.
Opener = Callable[[int], Tensor]


class Files:
    """Opens images by decoding their files."""

    def __init__(self, paths: Sequence[Picture], views: ViewsConfig):
        self.paths, self.views = paths, views

    def __call__(self, number: int) -> Tensor:
        fast = self.views.short_side if self.views.decode == "fast" else None
        try:
            with decoded(self.paths[number], fast, self.views.upright) as pixels:
                return resize_short_side(pixels, self.views.short_side)
        except Unusable as error:
            raise gone(self.paths[number], error) from error


class Images(Dataset[Tensor | str]):
    """Maps an item to its views, (V, 3, size, size) uint8, or to the reason why the image cannot be used.

    The reason is returned and not raised, because an error raised in a worker reaches the main process as a traceback's text.
    """

    def __init__(self, opener: Opener, size: int):
        self._opener, self._size = opener, size

    def __getitem__(self, item: Item) -> Tensor | str:
        number, crops, kinds = item
        try:
            image = self._opener(number)
        except DataError as error:
            return str(error)
        return torch.stack([crop_view(image, crop, self._size, kind) for crop, kind in zip(crops, kinds, strict=True)])


def from_files(paths: Sequence[Picture], views: ViewsConfig) -> Images:
    """Images that are decoded whenever they are needed."""
    return Images(Files(paths, views), views.crop)


def default_workers() -> int:
    """The number of decoding processes: this rank's share of the machine's cores, at most 16; 0 on a single core."""
    own = cores() // distributed.local_count()
    return 0 if own < 2 else min(own, 16)


def load_batches(images: Images, batches: Iterable[list[Item]], workers: int) -> Iterator[Tensor]:
    """The views of each batch of items in order, (len(batch), V, 3, size, size), decoded ahead by `workers` processes."""
    return ahead(images, batches, workers, _stack, pinned=torch.cuda.is_available())


def ahead(
    dataset: Dataset[Any],
    batches: Iterable[list[Any]],
    workers: int,
    join: Callable[[list[Any]], Any],
    pinned: bool = False,
) -> Iterator[Any]:
    """The results of `join` for the values of each batch, computed ahead by `workers` processes.

    A result that is text is raised as a DataError. pinned: results are in pinned memory, for copies to a GPU that do not block.
    """
    loader = DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        # where Python does not fork, a worker must not import the caller's script
        multiprocessing_context=fresh_workers() if workers and get_start_method() != "fork" else None,
        collate_fn=join,
        worker_init_fn=_begin,
        pin_memory=pinned,
    )
    with _shared_memory():
        for batch in loader:
            if isinstance(batch, str):
                raise DataError(batch)
            yield batch


@contextmanager
def _shared_memory() -> Iterator[None]:
    """Say in a sentence that workers cannot hand their batches over, as in a container with 64 MB for that."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not SHARED_MEMORY.search(str(error)):
            raise
        raise DataError(
            "decoding processes are short of shared memory (/dev/shm); give the container more (docker run --shm-size), or "
            "decode without processes",
            setting="workers",
            then=" 0",
        ) from error


def in_thread(items: Iterable[T], depth: int = 2) -> Iterator[T]:
    """The same items, computed ahead in a thread, so that reading from disk overlaps with the caller's work."""
    # `distributed` keeps the rank in a context variable
    source, context = iter(items), copy_context()

    def take() -> list[T]:
        return context.run(lambda: list(itertools.islice(source, 1)))

    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(take) for _ in range(depth))
        while item := waiting.popleft().result():
            waiting.append(pool.submit(take))
            yield from item


def first_reason(items: Sequence[object]) -> str | None:
    """The first value that is text, the reason why an image cannot be used; None if there is none."""
    return next((item for item in items if isinstance(item, str)), None)


def _stack(views: list[Tensor | str]) -> Tensor | str:
    """The views of a batch as one tensor, or the first reason."""
    return first_reason(views) or default_collate(views)


def random_items(seed: int, draws: Iterable[Draws], kinds: Kinds = TWO_PLAIN) -> Iterator[list[Item]]:
    """For each batch of draws, its items with random views, one of each of these kinds."""
    for batch in draws:
        crops = random_crops(seed, batch.draw, len(kinds))
        yield [(int(number), crop, kinds) for number, crop in zip(batch.image, crops, strict=True)]


def centre_items(numbers: NDArray[np.int64], batch: int) -> Iterator[list[Item]]:
    """The items of the centre crops of these images, in batches."""
    for start in range(0, len(numbers), batch):
        yield [(int(number), CENTRE, (PLAIN,)) for number in numbers[start : start + batch]]


def _begin(worker: int) -> None:
    begin_patient_worker()
