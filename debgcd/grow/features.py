"""The features of a run's images by its network: computed once, kept in the cache."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.data.scan import scan
from debgcd.errors import DataError
from debgcd.infer.infer import features
from debgcd.run.directory import IMAGES, Run, open_run, unusable_images
from debgcd.system.files import read_sealed, write_sealed
from debgcd.system.progress import progress, say
from debgcd.train.train import open_setup

FOLDER = "features"
FORMAT = 1  # raise it when the meaning of a file's bytes changes
SUFFIX = f".features-{FORMAT}"

Ids = NDArray[np.int64]
Answer = TypeVar("Answer")


def run_features(run: Run, cache: Path) -> Tensor:
    """(N, width) features of the training images of a run, in half precision; 0 for those that cannot be used any more.

    Those of images that were added come with their batch.
    """
    own = _own_features(open_run(run.folder), cache)
    return torch.cat([own, *(torch.from_numpy(batch.features()) for batch in run.added)])


def _own_features(run: Run, cache: Path) -> Tensor:
    place = cache / FOLDER / f"{_key(run)}{SUFFIX}"
    if place.is_file():
        try:
            return torch.from_numpy(np.load(io.BytesIO(read_sealed(place)), allow_pickle=False))
        except ValueError:
            say(f"features of {run.folder}: {place} is damaged; computing them again")
    there, found = of_readable(run, cache, lambda there: _ask(run, there, cache))
    if not len(there):
        raise DataError("none of the images can be read")
    rows = np.zeros((len(run.manifest.training_rows), found.shape[1]), np.float16)
    rows[there] = found.half().numpy()
    content = io.BytesIO()
    np.save(content, rows, allow_pickle=False)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(place, content.getvalue())
    return torch.from_numpy(rows)


def of_readable(run: Run, cache: Path, ask: Callable[[Ids], Answer]) -> tuple[Ids, Answer]:
    """The numbers of the training images that are still what they were, and the result of `ask` for them."""
    paths = run.manifest.training_paths
    there = np.flatnonzero([not why for why in unusable_images(run, run.manifest.training_rows, cache)])
    try:
        return there, ask(there)
    except DataError:  # an image cannot be decoded here; which one, only a look at each can tell
        usable = set(scan(run.manifest.select(run.manifest.training_rows[there])).paths)
        there = np.flatnonzero([path in usable for path in paths])
        return there, ask(there)


def _ask(run: Run, there: Ids, cache: Path) -> Tensor:
    setup = open_setup(run, run.manifest.select(run.manifest.training_rows[there]), cache)
    parts, done = [], 0
    with progress("computing features") as report:
        for tokens in setup.tokens.centre(np.arange(len(there))):
            parts.append(features(setup.network, [tokens]).cpu())
            done += len(tokens)
            report(done, len(there))
    return torch.cat(parts) if parts else torch.empty(0, setup.network.backbone.width)


def _key(run: Run) -> str:
    """By the run's model and its images."""
    with open(run.model / "model.safetensors", "rb") as file:
        model = hashlib.file_digest(file, "sha256").hexdigest()
    images = hashlib.sha256((run.folder / IMAGES).read_bytes()).hexdigest()
    return hashlib.sha256(f"{model} {images}".encode()).hexdigest()[:32]
