"""The view bank: the trunk's tokens of random views and the centre crop of every image, computed once and kept on disk.

Only the tail changes in training, so the trunk's output for a view never does: with the bank a step costs the tail and
the heads alone. The paper computes fresh views at every step instead, so results say `views: bank V`. The file is named by a
hash of all that it depends on, so that another seed, method or ablation on the same images and kinds of views reuses it. The
bank holds V views of each kind, and a draw picks among those of the kind it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.config.schema import ViewsConfig
from debgcd.data.fingerprints import read_contents
from debgcd.data.image.crop import Picture
from debgcd.data.loader import Images, Item, from_files, in_thread, load_batches
from debgcd.data.sampler import Draws, uniform
from debgcd.data.views import CENTRE, PLAIN, TWO_PLAIN, CropParams, Kinds, random_crops
from debgcd.model.backbone import Backbone
from debgcd.system.progress import Report, say
from debgcd.system.store import Recipe, Store, missing_bytes, open_store
from debgcd.tokens.sources import centre_batches

FORMAT = 4  # raise it when the meaning of a bank's bytes changes
FOLDER = "banks"
BUILD_BATCH = 16  # images whose views go through the trunk together
# Largest difference between stored and recomputed tokens, relative to their norm. A trunk in bfloat16 is well below it, another
# image or model far above.
TOLERANCE = 0.05


class Bank:
    """The stored views of N images. One that cannot be read, or is not what was stored, is computed again."""

    def __init__(self, store: Store, shape: Sequence[int], again: Callable[[int], dict[int, NDArray[np.int16]]]):
        """shape: (N, views, ...). again: computes all views of this image and of those that were stored along with it."""
        self._store, self._again = store, again
        self.shape = tuple(shape)
        self._mended: dict[int, NDArray[np.int16]] = {}  # by image, what the store does not take back
        self._said = False

    def __getitem__(self, at: tuple[NDArray[np.int64], NDArray[np.int64] | int]) -> NDArray[np.int16]:
        """The bfloat16 bits of one view of each of these images: (n, ...)."""
        images, views = np.broadcast_arrays(*at)
        found = np.empty((images.size, *self.shape[2:]), np.int16)
        for row, image, view in zip(found, images.flat, views.flat, strict=True):
            row[...] = self._view(int(image), int(view) % self.shape[1])
        return found.reshape(*images.shape, *self.shape[2:])

    def _view(self, image: int, view: int) -> NDArray[np.int16]:
        stored = None if image in self._mended else self._store.read(image, view)
        if stored is not None:
            return stored.view(np.int16).reshape(self.shape[2:])
        return self._mended[image][view] if image in self._mended else self._mend(image)[view]

    def _mend(self, image: int) -> NDArray[np.int16]:
        """All views of an image, computed again along with those that were stored together with it."""
        if not self._said:
            say(f"view bank: {self._store.folder} has damaged views; computing those again", every_rank=True)
            self._said = True
        records = self._again(image)
        self._mended |= {number: views for number, views in records.items() if not self._store.restore(number, views)}
        return records[image]


class BankTokens:
    """Tokens from a bank; a draw picks a stored view of each of `kinds` as a function of (seed, draw)."""

    def __init__(self, bank: Bank, seed: int, device: torch.device, kinds: Kinds = TWO_PLAIN):
        self._bank = bank
        self._seed, self._device, self._kinds = seed, device, kinds

    def random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        return self._random(draws) if isinstance(draws, Sequence) else in_thread(self._random(draws))

    def _random(self, draws: Iterable[Draws]) -> Iterator[Tensor]:
        stored = stored_kinds(self._kinds)
        views = (self._bank.shape[1] - 1) // len(stored)
        first_of_kind = [stored.index(kind) * views for kind in self._kinds]
        for batch in draws:
            picked = pick_views(self._seed, batch.draw, self._kinds, views)
            columns = [first + view for first, view in zip(first_of_kind, picked, strict=True)]
            yield torch.cat([self._read(batch.image, column) for column in columns])

    def centre(self, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
        for batch in centre_batches(numbers):
            yield self._read(batch, -1)

    def kept_views(self, numbers: NDArray[np.int64]) -> Iterator[Iterable[Tensor]] | None:
        stored = stored_kinds(self._kinds)
        views = (self._bank.shape[1] - 1) // len(stored)
        if not views or PLAIN not in stored:
            return None
        first = stored.index(PLAIN) * views
        # the centre crop comes last
        columns = [*range(first, first + views), -1]
        return ((self._read(batch, column) for column in columns) for batch in centre_batches(numbers))

    def _read(self, images: NDArray[np.int64], column: NDArray[np.int64] | int) -> Tensor:
        """The tokens of one stored view per image: (B, ...) float32 on the device."""
        bits = torch.from_numpy(self._bank[images, column])
        if self._device.type == "cuda":
            bits = bits.pin_memory()
        return bits.view(torch.bfloat16).to(self._device, non_blocking=True).float()


def stored_kinds(kinds: Kinds) -> Kinds:
    """The distinct kinds in the bank's order, which is by name and so the same for every method."""
    return tuple(sorted(set(kinds), key=lambda kind: kind.name))


def pick_views(seed: int, draw: NDArray[np.int64], kinds: Kinds, views: int) -> NDArray[np.int64]:
    """For each of N draws, a random stored view for each entry of `kinds`, numbered within its kind: (len(kinds), N).

    Entries of the same kind get different views; every ordered choice is equally likely. views: stored views per kind.
    """
    picked: list[NDArray[np.int64]] = []
    for position, kind in enumerate(kinds):
        same = [earlier for earlier, other in zip(picked, kinds, strict=False) if other == kind]
        if len(same) >= views:
            raise ValueError(
                f"a draw needs {kinds.count(kind)} different views of one kind, but the bank holds {views}"
            )
        number = (uniform(seed, _stream(position), draw) * (views - len(same))).astype(np.int64)
        if same:
            # `number` counts the views not yet picked, beginning after the first picked one
            for taken in np.sort((np.array(same) - same[0]) % views, axis=0):
                number = number + (number >= taken)
            number = (same[0] + number) % views
        picked.append(number)
    return np.array(picked)


def _stream(position: int) -> str:
    """The name of the random stream that picks a draw's first view, its second view, ..."""
    return f"bank/{('first', 'second')[position] if position < 2 else position + 1}"


def bank_bytes(images: int, views: ViewsConfig, shape: tuple[int, ...], kinds: Kinds = TWO_PLAIN) -> int:
    """The size of a bank on disk."""
    return images * _rows(views, kinds) * int(np.prod(shape)) * 2


def _rows(views: ViewsConfig, kinds: Kinds) -> int:
    """Views of each image in a bank, including the centre crop."""
    return len(stored_kinds(kinds)) * views.bank_views + 1


def open_bank(
    backbone: Backbone,
    paths: Sequence[Picture],
    views: ViewsConfig,
    cache: Path,
    workers: int,
    on_progress: Report,
    kinds: Kinds = TWO_PLAIN,
) -> Bank:
    """The bank of these images, computed if the cache does not hold it: (N, kinds · V + 1, ...).

    An image's views are ordered by kind, as in `stored_kinds`, and the centre crop comes last.
    """
    recipe = _recipe(backbone, paths, views, kinds, cache, workers)

    def again(image: int) -> dict[int, NDArray[np.int16]]:
        batch = recipe.batches()[image // recipe.batch]
        (records,) = recipe.compute([batch])
        return dict(zip(batch, records, strict=True))

    return Bank(open_store(cache / FOLDER, recipe, on_progress), recipe.facts["shape"], again)


def missing_views(
    backbone: Backbone, paths: Sequence[Picture], views: ViewsConfig, cache: Path, kinds: Kinds = TWO_PLAIN
) -> int:
    """The number of bytes that `open_bank` would write; 0 if the cache holds the bank."""
    recipe = _recipe(backbone, paths, views, kinds, cache)
    return missing_bytes(cache / FOLDER, recipe)


def _recipe(
    backbone: Backbone,
    paths: Sequence[Picture],
    views: ViewsConfig,
    kinds: Kinds,
    cache: Path,
    workers: int = 0,
) -> Recipe:
    """How the store computes, names and checks the bank of these images."""
    images, contents = from_files(paths, views), read_contents(paths, cache)
    shape, stored, rows = backbone.token_shape(views.crop), stored_kinds(kinds), _rows(views, kinds)

    def compute(batches: Sequence[range]) -> Generator[list[NDArray[np.int16]]]:
        numbered = [np.array(batch) for batch in batches]
        decoders = workers if len(batches) > 1 else 0
        for numbers, tokens in zip(numbered, _passes(backbone, images, numbered, views, stored, decoders), strict=True):
            contents.require_unchanged(numbers)
            # a CNN's tokens may be in channels-last order
            tokens = tokens.to(torch.bfloat16).contiguous()
            yield list(tokens.view(torch.int16).cpu().numpy())

    def check(store: Store) -> bool:
        """Recompute one view of each kind and the centre crop of two images; returns whether the stored ones are close."""
        numbers, per_kind = recipe.sample(2), max(1, views.bank_views)
        chosen = [*range(recipe.sample(3)[2] % per_kind, rows - 1, per_kind), rows - 1]
        kept = [store.read(number, view) for number in numbers for view in chosen]
        if any(view is None for view in kept):
            return False
        bits = torch.from_numpy(np.array(kept)).view(torch.bfloat16).float()
        (computed,) = _passes(backbone, images, [np.array(numbers)], views, stored, 0, chosen)
        computed, bits = computed.cpu().flatten(2), bits.view(*computed.shape[:2], -1)
        return bool(((bits - computed).norm(dim=2) <= TOLERANCE * computed.norm(dim=2)).all())

    facts = {
        "format": FORMAT,
        "weights": backbone.identity.sha256,
        "tail_blocks": backbone.tail_blocks,
        "images": contents.sha256,
        "decode": views.decode,
        "upright": views.upright,
        "precision": backbone.precision,
        "resize": views.short_side,
        "size": views.crop,
        "views": views.bank_views,
        "seed": views.seed,
        "type": "bfloat16",
        "shape": [len(paths), rows, *shape],
    }
    if stored != (PLAIN,):
        # left out for plain views alone, so that banks from before there were other kinds keep their names
        facts["kinds"] = [kind.name for kind in stored]
    size = bank_bytes(len(paths), views, shape, kinds)
    otherwise = "views.bank: off"
    recipe = Recipe("view bank", facts, len(paths), size, compute, check, otherwise, BUILD_BATCH, rows)
    return recipe


def _passes(
    backbone: Backbone,
    images: Images,
    batches: Sequence[NDArray[np.int64]],
    views: ViewsConfig,
    stored: Kinds,
    workers: int,
    chosen: Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """For each batch of image numbers, the tokens of all stored views or of those in `chosen`: (B, V, ...)."""
    every = (*(kind for kind in stored for _ in range(views.bank_views)), PLAIN)
    chosen = range(len(every)) if chosen is None else chosen
    kinds = tuple(every[view] for view in chosen)

    def items() -> Iterator[list[Item]]:
        for numbers in batches:
            crops = _stored_crops(views, stored, numbers)[:, list(chosen)]
            yield [(int(number), crop, kinds) for number, crop in zip(numbers, crops, strict=True)]

    for batch in load_batches(images, items(), workers):
        yield backbone.trunk(batch.flatten(0, 1)).unflatten(0, batch.shape[:2])


def _stored_crops(views: ViewsConfig, stored: Kinds, numbers: NDArray[np.int64]) -> CropParams:
    """The crops of all views that a bank holds of these images, each a function of (views.seed, kind, image, view)."""
    streams = ("view" if kind == PLAIN else f"view/{kind.name}" for kind in stored)
    crops = [random_crops(views.seed, numbers, views.bank_views, stream) for stream in streams]
    return np.concatenate([*crops, np.tile(CENTRE, (len(numbers), 1, 1))], axis=1)
