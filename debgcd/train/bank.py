"""The view bank: the trunk's tokens of V random views and the centre crop of every image, computed once and kept on disk.

Only the tail changes in training, so the trunk's output for a view never does: with the bank a step costs the tail and
the heads alone. It is not the paper's way, which cuts fresh views at every step, so results say `views: bank V`. The file
is named by a hash of all that it depends on; another seed, method or ablation on the same images finds and reuses it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.config import ViewsConfig
from debgcd.data.draws import uniform
from debgcd.data.loader import Images, Item, load_batches
from debgcd.data.sampler import Draws
from debgcd.data.views import CENTRE, random_cuts
from debgcd.errors import DataError
from debgcd.model.backbone import Backbone
from debgcd.train.tokens import CENTRE_BATCH

FORMAT = 1  # raise it when the meaning of a bank's bytes changes
BUILD_BATCH = 16  # images whose views go through the trunk together


class BankTokens:
    """Tokens from a bank; `draws` pick two of its V views as a function of (seed, draw)."""

    def __init__(self, array: NDArray[np.int16], seed: int, device: torch.device):
        self._array, self._seed, self._device = (
            array,
            seed,
            device,
        )  # (N, V + 1, ...) bfloat16 bits, the centre crop last
        self._views = array.shape[1] - 1

    def random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        for batch in draws:
            first, second = pick_two(self._seed, batch.draw, self._views)
            yield torch.cat([self._read(batch.image, first), self._read(batch.image, second)])

    def centre(self, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
        for start in range(0, len(numbers), CENTRE_BATCH):
            yield self._read(numbers[start : start + CENTRE_BATCH], self._views)

    def _read(self, images: NDArray[np.int64], view: NDArray[np.int64] | int) -> Tensor:
        bits = torch.from_numpy(self._array[images, view])
        return bits.view(torch.bfloat16).to(self._device).float()


def pick_two(seed: int, draw: NDArray[np.int64], views: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two different views of `views` for each draw, every ordered pair alike."""
    first = (uniform(seed, "bank/first", draw) * views).astype(np.int64)
    second = (first + 1 + (uniform(seed, "bank/second", draw) * (views - 1)).astype(np.int64)) % views
    return first, second


def token_shape(backbone: Backbone, size: int) -> tuple[int, ...]:
    """The shape of one image's tokens."""
    return tuple(backbone.trunk(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1:])


def bank_bytes(images: int, views: ViewsConfig, shape: tuple[int, ...]) -> int:
    """The size of a bank on disk."""
    return images * (views.bank_views + 1) * int(np.prod(shape)) * 2


def open_bank(
    backbone: Backbone,
    tuned_blocks: int,
    paths: Sequence[Path],
    views: ViewsConfig,
    cache: Path,
    workers: int,
    on_progress: Callable[[int, int], None],
) -> NDArray[np.int16]:
    """The bank of these images, built if the cache does not hold it: (N, V + 1, ...) bfloat16 bits."""
    shape = (len(paths), views.bank_views + 1, *token_shape(backbone, views.size))
    key = _key(backbone, tuned_blocks, paths, views)
    place = cache / "banks" / f"{key}.bank"
    size = bank_bytes(len(paths), views, shape[2:])
    if not (place.exists() and place.stat().st_size == size):
        place.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(place.parent).free
        if size > free:
            raise DataError(
                f"the view bank needs {size / 1e9:.1f} GB in {place.parent} but only {free / 1e9:.1f} GB are free; "
                "make room, use --cache on another disk, or --bank off"
            )
        _build(place, shape, backbone, paths, views, workers, on_progress)
    return np.memmap(place, dtype=np.int16, mode="r", shape=shape)


def _build(
    place: Path,
    shape: tuple[int, ...],
    backbone: Backbone,
    paths: Sequence[Path],
    views: ViewsConfig,
    workers: int,
    on_progress: Callable[[int, int], None],
) -> None:
    beside = place.with_name(f".{place.stem}.{os.getpid()}.tmp")  # two runs may build the same bank at once
    try:
        with open(beside, "wb") as file:
            for done, tokens in _passes(backbone, paths, views, workers):
                file.write(tokens.to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes())
                on_progress(done, len(paths))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)


def _passes(
    backbone: Backbone, paths: Sequence[Path], views: ViewsConfig, workers: int
) -> Iterator[tuple[int, Tensor]]:
    """Images in order, all views of an image together: (how many are done, tokens)."""

    def items() -> Iterator[list[Item]]:
        for start in range(0, len(paths), BUILD_BATCH):
            numbers = np.arange(start, min(start + BUILD_BATCH, len(paths)))
            cuts = random_cuts(views.seed, numbers, views.bank_views)
            yield [(int(n), np.concatenate([cut, CENTRE])) for n, cut in zip(numbers, cuts, strict=True)]

    done = 0
    for batch in load_batches(Images(paths, views), items(), workers):
        done += len(batch)
        yield done, backbone.trunk(batch.flatten(0, 1))


def _key(backbone: Backbone, tuned_blocks: int, paths: Sequence[Path], views: ViewsConfig) -> str:
    """A hash of all that a bank's bytes depend on: weights, cut between trunk and tail, views, and the images' content."""
    facts = [FORMAT, backbone.identity.sha256, tuned_blocks, views.resize, views.size, views.bank_views, views.seed]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for path in paths:
        try:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise DataError(
                f"{path} could be read when the run began but not now ({error.strerror}); put the file back and resume"
            ) from error
    return digest.hexdigest()[:32]
