"""The image cache: every image decoded and resized once, its pixels kept on disk, for runs with fresh views at every step.

The pixels are stored without loss, so results are the same bytes with and without the cache. The file is named by a hash of
what it depends on; another run on the same images reuses it.
"""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from debgcd import __version__
from debgcd.config.schema import ViewsConfig
from debgcd.data.fingerprints import read_contents
from debgcd.data.image.crop import Picture
from debgcd.data.loader import Files, Opener, ahead, first_reason
from debgcd.errors import DataError
from debgcd.system.files import amount
from debgcd.system.progress import Report, say
from debgcd.system.store import Recipe, Store, missing_bytes, open_store

FOLDER = "images"
FORMAT = 2  # raise it when the meaning of a cache's bytes changes
IMAGES_PER_BATCH = 32  # that a worker returns together
SHAPE = np.dtype("<u4")  # a record is h and w in this type, then the pixels, (3, h, w)
DRAWS_WORTH_KEEPING = 2.0  # with more draws per image in a run, a cache saves time


class CachedOpener:
    """Opens images from a cache; one that cannot be read, or is not what was stored, is decoded again."""

    def __init__(self, store: Store, files: Files):
        self._store, self._files, self._said = store, files, False

    def __call__(self, number: int) -> Tensor:
        record = self._store.read(number)
        if record is not None:
            return _unpack(record)
        if not self._said:
            say(f"image cache: {self._store.folder} has damaged images; decoding those again", every_rank=True)
            self._said = True
        image = self._files(number)
        self._store.restore(number, _pack(image))
        return image


class _Records(Dataset[NDArray[np.uint8] | str]):
    """Images by number, as records."""

    def __init__(self, files: Files):
        self._files = files

    def __getitem__(self, number: int) -> NDArray[np.uint8] | str:
        try:
            return _pack(self._files(number))
        except DataError as error:
            return str(error)


def decide_image_cache(
    wanted: Literal["auto", "on", "off"], images: int, resize: int, draws: float, cache: Path
) -> bool:
    """Whether a run keeps the pixels of its images; "auto": if that saves time and they fit into a quarter of the free disk.

    draws: how often the run draws each image for fresh views, on average.
    """
    if wanted == "off" or not draws or (wanted == "auto" and draws <= DRAWS_WORTH_KEEPING):
        return False
    cache.mkdir(parents=True, exist_ok=True)
    size, free = about_bytes(images, resize), shutil.disk_usage(cache).free
    keep = wanted == "on" or size <= free / 4
    say(
        f"image cache: {'on' if keep else 'off'} (about {amount(size)} for {images} images of {resize} px; "
        f"{amount(free)} free in {cache})"
    )
    return keep


def about_bytes(images: int, resize: int) -> int:
    """The size of a cache, assuming an average aspect ratio of 4 : 3; resize: short side in pixels."""
    return images * 3 * resize * resize * 4 // 3


def open_image_cache(
    paths: Sequence[Picture], views: ViewsConfig, cache: Path, workers: int, on_progress: Report
) -> Opener:
    """An opener for these images, which are decoded now if the cache does not hold them."""
    recipe = _recipe(paths, views, cache, workers)
    return CachedOpener(open_store(cache / FOLDER, recipe, on_progress), Files(paths, views))


def missing_pixels(paths: Sequence[Picture], views: ViewsConfig, cache: Path) -> int:
    """About the number of bytes that `open_image_cache` would write."""
    return missing_bytes(cache / FOLDER, _recipe(paths, views, cache))


def _recipe(paths: Sequence[Picture], views: ViewsConfig, cache: Path, workers: int = 0) -> Recipe:
    """How the store computes, names and checks the cache of these images."""
    files, contents = Files(paths, views), read_contents(paths, cache)

    def compute(batches: Sequence[range]) -> Generator[list[NDArray[np.uint8]]]:
        loaded = ahead(_Records(files), [list(batch) for batch in batches], workers, _joined)
        for numbers, (blob, ends) in zip(batches, loaded, strict=True):
            contents.require_unchanged(numbers)
            yield np.split(blob.numpy(), ends[:-1])

    def check(store: Store) -> bool:
        return all(_same(store.read(number), _pack(files(number))) for number in recipe.sample(2))

    facts = {
        "format": FORMAT,
        "images": contents.sha256,
        "resize": views.short_side,
        "decode": views.decode,
        "upright": views.upright,
        "decoders": _decoders(),
    }
    size, otherwise = about_bytes(len(paths), views.short_side), "run.image_cache: off"
    recipe = Recipe("image cache", facts, len(paths), size, compute, check, otherwise, IMAGES_PER_BATCH)
    return recipe


def _joined(records: list[NDArray[np.uint8] | str]) -> tuple[Tensor, NDArray[np.int64]] | str:
    """A batch's records as one tensor, which a worker returns without a copy, and the end of each; or why an image failed."""
    reason = first_reason(records)
    if reason is not None:
        return reason
    arrays = [record for record in records if not isinstance(record, str)]
    return torch.from_numpy(np.concatenate(arrays)), np.cumsum([len(array) for array in arrays])


def _same(kept: NDArray[np.uint8] | None, computed: NDArray[np.uint8]) -> bool:
    return kept is not None and np.array_equal(kept, computed)


def _pack(image: Tensor) -> NDArray[np.uint8]:
    return np.concatenate([np.array(image.shape[1:], SHAPE).view(np.uint8), image.numpy().ravel()])


def _unpack(record: NDArray[np.uint8]) -> Tensor:
    height, width = record[:8].view(SHAPE).tolist()
    return torch.from_numpy(record[8:]).view(3, height, width)


def _decoders() -> dict[str, str]:
    """The versions of the packages that decode and resize: other versions may give other pixels."""
    decoders = {"debgcd": __version__}
    for name in ("pillow", "pillow-heif", "simplejpeg", "torch"):
        try:
            decoders[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            decoders[name] = ""
    return decoders
