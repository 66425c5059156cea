"""The scale of an experiment: complete data sets, or subsets for a machine without a GPU."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from debgcd.data.manifest import Manifest


@dataclass(frozen=True)
class Small:
    """The subset of each data set that `--scale small` uses."""

    sets: tuple[str, ...] = ("cifar10", "pets", "cub")  # those that can be downloaded without registration
    classes: int = 50
    images: int = 1500  # training images


def part(manifest: Manifest, classes: int, images: int) -> Manifest:
    """A subset with at most `classes` classes, known and new alternating, and about `images` training images.

    Keeps every n-th labelled, unlabelled and test image per class, so the proportions stay the same. Deterministic: depends
    only on the manifest, not on a seed.
    """
    known = list(manifest.classes)
    new = sorted({truth for truth in manifest.truths if truth is not None} - set(known))
    chosen = set(_in_turn(known, new)[:classes])
    groups: dict[tuple[str, bool, str], list[int]] = defaultdict(list)
    for row, (truth, label, split) in enumerate(zip(manifest.truths, manifest.labels, manifest.splits, strict=True)):
        name = truth if truth is not None else label
        if name is not None and name in chosen:
            groups[name, label is not None, split].append(row)
    training = sum(len(rows) for (_, _, split), rows in groups.items() if split == "train")
    share = min(1.0, images / training) if training else 1.0
    kept = [row for rows in groups.values() for row in _spread(rows, share)]
    return manifest.select(sorted(kept))


def classes_of(manifest: Manifest) -> int:
    """The true number of classes, known and new."""
    return len(set(manifest.truths) - {None} | set(manifest.classes))


def _in_turn(known: list[str], new: list[str]) -> list[str]:
    """First known, first new, second known, ...; then the rest of the longer list."""
    pairs = [name for pair in zip(known, new, strict=False) for name in pair]
    shorter = min(len(known), len(new))
    return pairs + known[shorter:] + new[shorter:]


def _spread(rows: list[int], share: float) -> list[int]:
    """Evenly spaced rows, at least one."""
    count = max(1, round(share * len(rows)))
    return [rows[i * len(rows) // count] for i in range(count)]
