"""Copies among the images, and class names that look the same: found before training, because no training can tell them apart."""

from __future__ import annotations

import io
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import csr_array, vstack
from scipy.sparse.csgraph import connected_components

from debgcd.data.fingerprints import read_contents
from debgcd.data.manifest import Manifest
from debgcd.data.thumbnails import Thumbnail, thumbnails
from debgcd.system.progress import Report

PRINT = 8  # side of a fingerprint
RMS = 0.03  # root mean square difference of near-duplicates at 8 × 8 pixels, values in 0..1
MOST = 20_000  # images; of more only exact copies are sought


@dataclass(frozen=True)
class Copies:
    """Images that are one and the same, or nearly: the same 8 × 8 pixels. A chain of similar images is one group."""

    files: list[str]
    labels: list[str | None]
    exact: bool

    @property
    def contradict(self) -> bool:
        """Whether they have different labels."""
        return len(set(self.labels) - {None}) > 1

    @property
    def known_and_asked(self) -> bool:
        """Whether some have a label and others none."""
        return None in self.labels and any(label is not None for label in self.labels)


def find_copies(manifest: Manifest, cache: Path, report: Report | None = None) -> list[Copies]:
    """Exact copies, then near-duplicates that are not exact; images of one group of the manifest are expected to be alike."""
    digests = read_contents(manifest.paths, cache).own_digests()
    same: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        same[digest].append(row)
    exact = [rows for rows in same.values() if len(rows) > 1]
    near: list[list[int]] = []
    if len(manifest) <= MOST:
        first = np.array([rows[0] for rows in same.values()])
        pictures = thumbnails([manifest.paths[row] for row in first], cache, report)
        near = [first[group].tolist() for group in duplicates(fingerprints(pictures))]
    return [
        Copies([str(manifest.paths[row]) for row in rows], [manifest.labels[row] for row in rows], kind)
        for groups, kind in ((exact, True), (near, False))
        for rows in groups
        if len({manifest.groups[row] or row for row in rows}) > 1
    ]


def copies_in_words(found: Sequence[Copies]) -> list[str]:
    """What to do about copies, one sentence for each kind of them."""
    lines = []
    for exact, what in ((True, "exact copies"), (False, "near-duplicates")):
        some = [one for one in found if one.exact == exact]
        if some:
            count, example = sum(len(one.files) for one in some), " and ".join(map(repr, some[0].files[:2]))
            groups = "1 group" if len(some) == 1 else f"{len(some)} groups"
            lines.append(f"{what}: {count} images in {groups}, e.g. {example}")
    torn = [one for one in found if one.contradict]
    if torn:
        given = dict(zip(torn[0].labels, torn[0].files, strict=True))
        example = " and ".join(f"{file!r} ({label!r})" for label, file in given.items() if label is not None)
        lines.append(f"copies with different labels: {len(torn)}, e.g. {example}; correct a label, or leave them out")
    both = [one for one in found if one.known_and_asked and not one.contradict]
    if both:
        lines.append(
            f"labelled images with a copy among the unlabelled ones: {len(both)}, e.g. {both[0].files[0]!r} and "
            f"{both[0].files[1]!r}; their answer is known, remove the unlabelled copy"
        )
    return lines


def names_alike(names: Iterable[str]) -> list[list[str]]:
    """Class names that differ only in case, spaces, hyphens, or in how Unicode writes the same letters."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(names)):
        alike[re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip()].append(name)
    return [some for some in alike.values() if len(some) > 1]


def names_in_words(names: Iterable[str]) -> list[str]:
    """One sentence per group of class names that look the same, with what to do; escaped where they cannot be told apart."""
    lines = []
    for some in names_alike(names):
        composed = {unicodedata.normalize("NFC", name) for name in some}
        written = [ascii(name) if len(composed) < len(some) else repr(name) for name in some]
        why = "Unicode writes the same letters in two ways" if len(composed) == 1 else "their names look the same"
        lines.append(
            f"{' and '.join(written)} are different classes, but {why}; if they are one, give all of their images one name"
        )
    return lines


def fingerprints(thumbnails: Sequence[Thumbnail]) -> NDArray[np.float32]:
    """(N, 192) colours in 0..1 of an image at 8 × 8 pixels, to find near-duplicates; nan without a thumbnail."""
    prints = np.full((len(thumbnails), PRINT * PRINT * 3), np.nan, np.float32)
    for i, thumbnail in enumerate(thumbnails):
        if isinstance(thumbnail, bytes):
            small = (
                Image.open(io.BytesIO(thumbnail), formats=["WEBP"])
                .convert("RGB")
                .resize((PRINT, PRINT), Image.Resampling.BOX)
            )
            prints[i] = np.asarray(small, np.float32).ravel() / 255
    return prints


def duplicates(prints: NDArray[np.float32], block: int = 1024) -> list[list[int]]:
    """Groups of near-duplicate images by their fingerprints (N, d); NaN: left out. A chain of similar images is one group."""
    usable = np.flatnonzero(~np.isnan(prints[:, 0]))
    if not len(usable):
        return []
    points = prints[usable]
    length = (points**2).sum(1)
    near = []
    for start in range(0, len(points), block):
        rows = slice(start, start + block)
        squared = length[rows, None] + length - 2 * points[rows] @ points.T
        near.append(csr_array(squared < RMS**2 * points.shape[1]))
    _, group = connected_components(vstack(near), directed=False)
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.searchsorted(group[order], np.arange(1, int(group.max()) + 1)))
    return [usable[rows].tolist() for rows in parts if len(rows) > 1]
