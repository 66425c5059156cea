"""The view bank: the trunk's tokens of V random views and the centre crop of every image, computed once and kept on disk.

Only the tail changes in training, so the trunk's output for a view never does: with the bank a step costs the tail and
the heads alone. It is not the paper's way, which cuts fresh views at every step, so results say `views: bank V`. The file
is named by a hash of all that it depends on; another seed, method or ablation on the same images finds and reuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.data.contents import read_contents
from debgcd.data.draws import uniform
from debgcd.data.loader import Images, Item, from_files, load_batches
from debgcd.data.sampler import Draws
from debgcd.data.views import CENTRE, random_cuts
from debgcd.inference.tokens import CENTRE_BATCH
from debgcd.model.backbone import Backbone
from debgcd.options import ViewsConfig
from debgcd.store import Recipe, Store, exists, open_store

FORMAT = 3  # raise it when the meaning of a bank's bytes changes
FOLDER = "banks"
BUILD_BATCH = 16  # images whose views go through the trunk together
TOLERANCE = 0.05  # of the tokens' length: bfloat16 all through a trunk is well below, another image or model far above


class BankTokens:
    """Tokens from a bank; `draws` pick two of its V views as a function of (seed, draw)."""

    def __init__(self, array: NDArray[np.int16], seed: int, device: torch.device):
        self._array = array  # (N, V + 1, ...) bfloat16 bits, the centre crop last
        self._views, self._seed, self._device = array.shape[1] - 1, seed, device

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
    """The bank of these images, computed if the cache does not hold it: (N, V + 1, ...) bfloat16 bits."""
    recipe = _recipe(backbone, tuned_blocks, paths, views, cache, workers, on_progress)
    return _mapped(open_store(cache / FOLDER, recipe), recipe)


def has_bank(backbone: Backbone, tuned_blocks: int, paths: Sequence[Path], views: ViewsConfig, cache: Path) -> bool:
    """Whether the cache holds the bank of these images."""
    return exists(cache / FOLDER, _recipe(backbone, tuned_blocks, paths, views, cache, 0, lambda done, total: None))


def _recipe(
    backbone: Backbone,
    tuned_blocks: int,
    paths: Sequence[Path],
    views: ViewsConfig,
    cache: Path,
    workers: int,
    on_progress: Callable[[int, int], None],
) -> Recipe:
    images, contents = from_files(paths, views), read_contents(paths, cache)
    shape = token_shape(backbone, views.size)

    def compute(first: int) -> Generator[list[NDArray[np.int16]]]:
        batches = [np.arange(i, min(i + BUILD_BATCH, len(paths))) for i in range(first, len(paths), BUILD_BATCH)]
        on_progress(first, len(paths))
        for numbers, tokens in zip(batches, _passes(backbone, images, batches, views, workers), strict=True):
            contents.require_unchanged(numbers)
            tokens = tokens.to(torch.bfloat16).contiguous()  # a CNN's channels may be last
            yield list(tokens.view(torch.int16).cpu().numpy())
            on_progress(int(numbers[-1]) + 1, len(paths))

    def check(store: Store) -> bool:
        """Some view and the centre crop of two images, through the trunk again."""
        numbers, chosen = np.array(recipe.sample(2)), [recipe.sample(3)[2] % (views.bank_views + 1), views.bank_views]
        (computed,) = _passes(backbone, images, [numbers], views, 0, chosen)
        bits = torch.from_numpy(_mapped(store, recipe)[numbers[:, None], chosen])
        computed, kept = computed.cpu().flatten(2), bits.view(torch.bfloat16).float().flatten(2)
        return bool(((kept - computed).norm(dim=2) <= TOLERANCE * computed.norm(dim=2)).all())

    facts = {
        "format": FORMAT,
        "weights": backbone.identity.sha256,
        "tuned_blocks": tuned_blocks,
        "images": contents.sha256,
        "decode": views.decode,
        "upright": views.upright,
        "precision": backbone.precision,
        "resize": views.resize,
        "size": views.size,
        "views": views.bank_views,
        "seed": views.seed,
        "type": "bfloat16",
        "shape": [len(paths), views.bank_views + 1, *shape],
    }
    size = bank_bytes(len(paths), views, shape)
    recipe = Recipe("view bank", facts, len(paths), size, compute, check, "--bank off")
    return recipe


def _mapped(store: Store, recipe: Recipe) -> NDArray[np.int16]:
    return np.memmap(store.records, dtype=np.int16, mode="r", shape=tuple(recipe.facts["shape"]))


def _passes(
    backbone: Backbone,
    images: Images,
    batches: Sequence[NDArray[np.int64]],
    views: ViewsConfig,
    workers: int,
    chosen: Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """The tokens of all views, or of those chosen, of each batch's images: (B, V, ...)."""

    def items() -> Iterator[list[Item]]:
        for numbers in batches:
            cuts = random_cuts(views.seed, numbers, views.bank_views)
            every = (np.concatenate([cut, CENTRE]) for cut in cuts)
            yield [(int(n), cut if chosen is None else cut[chosen]) for n, cut in zip(numbers, every, strict=True)]

    for batch in load_batches(images, items(), workers):
        yield backbone.trunk(batch.flatten(0, 1)).unflatten(0, batch.shape[:2])
