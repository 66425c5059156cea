"""The categories of a run: known classes first, then discovered ones, with ids that never change their meaning."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Category:
    """One category; `id` is the class's name or new-01, ...; `name` is what people call it and may be edited."""

    category: int
    id: str
    name: str
    known: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def categories(classes: Sequence[str], k: int) -> list[Category]:
    """Categories 0..M-1 for the known classes in this order, M..k-1 as new-01, new-02, ..."""
    found = [Category(i, name, name, True) for i, name in enumerate(classes)]
    digits = max(2, len(str(k - len(classes))))
    ids = (f"new-{number:0{digits}d}" for number in itertools.count(1))
    free = (new for new in ids if new not in set(classes))  # a class may be called new-01: one found and kept before
    found += [Category(i, new, new, False) for i, new in zip(range(len(classes), k), free, strict=False)]
    return found
