"""Batches of images that came to a finished run: RUN/added/0001/, ...; a line of decisions.jsonl makes one count, undoing it makes it ignored.

A batch never changes, and the run's own files never change for it. Its files are listed with their hashes in batch.json, whose own
hash is in the log.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from torch import Tensor

from debgcd.data.manifest import Manifest
from debgcd.data.sources import read_manifest
from debgcd.errors import DataError
from debgcd.novelty.so_far import SoFar
from debgcd.run.predictions import COLUMNS, Table, read_predictions
from debgcd.run.so_far_file import SO_FAR, so_far_of
from debgcd.system.files import new_folder, parse_json, readable, write_bytes, write_json

ADDED = "added"
FACTS = "batch.json"
FORMAT = 1  # raise it when what is in a batch's folder changes its meaning
NUMBER = re.compile(r"[0-9]{4,9}")
MANIFEST, DIGESTS, PREDICTIONS = "manifest.csv", "images.sha256", "predictions.csv"
HEADS, FEATURES = "heads.safetensors", "features.npy"


@dataclass(frozen=True)
class Batch:
    """A batch on disk; what is read from it is compared with its hash."""

    folder: Path
    categories: tuple[str, ...]  # ids that are new with it
    first: int  # the number of the first of these in the network
    files: Mapping[str, str]  # sha256 by name

    @property
    def number(self) -> str:
        return self.folder.name

    @cached_property
    def assigned(self) -> dict[str, str]:
        """The category's id per image."""
        table = self.predictions(("path", "id"))
        return dict(zip(table["path"], table["id"], strict=True))

    @cached_property
    def manifest(self) -> Manifest:
        self._content(MANIFEST)
        return read_manifest(self.folder / MANIFEST)

    @property
    def digests(self) -> list[str]:
        """The lines of images.sha256."""
        return self._content(DIGESTS).decode("utf-8").split("\n")[:-1]

    def predictions(self, columns: Collection[str] = tuple(COLUMNS)) -> Table:
        self._content(PREDICTIONS)
        return read_predictions(self.folder / PREDICTIONS, columns)

    def heads(self) -> dict[str, Tensor]:
        """The tensors of the network that have more rows since, by name."""
        return load_tensors(self._content(HEADS))

    def so_far(self, width: int) -> SoFar:
        """The images of the run with this batch as voters."""
        return so_far_of(self._content(SO_FAR), width)

    def features(self) -> NDArray[np.float16]:
        """(N, width) by the run's network."""
        return np.load(io.BytesIO(self._content(FEATURES)), allow_pickle=False)

    def _content(self, name: str) -> bytes:
        content = (self.folder / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != self.files[name]:
            raise DataError(f"{self.folder / name} is not what was added; {_advice(self.folder)}")
        return content


def read_batch(run: Path, line: Mapping[str, Any]) -> Batch:
    """The batch that a line of the log is about."""
    number = line.get("batch")
    if not isinstance(number, str) or not NUMBER.fullmatch(number):
        raise DataError(f"decisions.jsonl: {number!r:.80} is not the number of a batch; correct the line or delete it")
    folder = run / ADDED / number
    with readable(folder, _advice(folder)):
        content = (folder / FACTS).read_bytes()
        if hashlib.sha256(content).hexdigest() != line.get("sha256"):
            raise ValueError(f"{FACTS} is not what was added")
        facts = parse_json(content)
        if facts["format"] != FORMAT:
            raise ValueError(f"it has format {facts['format']}, this version of debgcd reads {FORMAT}")
        return Batch(folder, tuple(facts["categories"]), int(facts["first"]), dict(facts["files"]))


def _advice(folder: Path) -> str:
    return f"restore it, or leave it out: debgcd add {folder.parent.parent} --undo"


def write_batch(
    run: Path, number: str, categories: Collection[str], first: int, files: Mapping[str, bytes]
) -> dict[str, Any]:
    """Write a batch, complete or not at all; returns what its line in the log says of it."""
    folder = run / ADDED / number
    folder.parent.mkdir(exist_ok=True)
    with new_folder(folder) as new:
        for name, content in files.items():
            write_bytes(new / name, content)
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        write_json(new / FACTS, {"format": FORMAT, "categories": list(categories), "first": first, "files": hashes})
        sha256 = hashlib.sha256((new / FACTS).read_bytes()).hexdigest()
    return {"act": "add", "batch": number, "sha256": sha256, "categories": list(categories)}


def drop_batch(run: Path, number: str) -> None:
    """Delete a batch that no line of the log is about."""
    shutil.rmtree(run / ADDED / number, ignore_errors=True)


def joined(manifest: Manifest, batches: Collection[Batch]) -> Manifest:
    """The images of a run, then those of the batches."""
    every = [manifest, *(batch.manifest for batch in batches)]
    return replace(
        manifest,
        paths=tuple(path for each in every for path in each.paths),
        labels=tuple(label for each in every for label in each.labels),
        truths=tuple(truth for each in every for truth in each.truths),
        splits=tuple(split for each in every for split in each.splits),
        groups=tuple(group for each in every for group in each.groups),
    )
