"""parts.safetensors in a model folder: the parts of categories that a reviewer split (model/parts.py), by the categories' ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from debgcd.model.parts import Parts
from debgcd.run.categories import Category
from debgcd.system.files import parse_json, readable, write_bytes

PARTS = "parts.safetensors"


def write_parts(folder: Path, of: Sequence[str], to: Sequence[str], means: Tensor, review: str = "") -> None:
    """of, to: ids, see `Parts`. review: a digest of what the parts were computed from."""
    means = means.float().cpu().contiguous()
    facts = {"of": list(of), "to": list(to), "review": review, "sha256": _sha256(means)}
    write_bytes(folder / PARTS, save_tensors({"means": means}, {"debgcd": json.dumps(facts)}))


def read_parts(folder: Path, categories: Sequence[Category], width: int) -> Parts | None:
    """The parts of these categories; None if none was split. A part whose category is no more, after an undo, is left out."""
    if not (folder / PARTS).exists():
        begun = any(one.begun for one in categories)
        return Parts((), (), torch.empty(0, width), len(categories)) if begun else None
    with readable(folder / PARTS, "delete it to predict without splits", SafetensorError):
        facts, means = _read(folder / PARTS)
        pairs = list(zip(facts["of"], facts["to"], strict=True))
        if means.shape != (len(pairs), width) or _sha256(means) != facts["sha256"]:
            raise ValueError("it is not what was written")
    number = {one.id: one.category for one in categories}
    kept = [i for i, pair in enumerate(pairs) if set(pair) <= set(number)]
    of, to = ([number[pairs[i][side]] for i in kept] for side in (0, 1))
    return Parts(of, to, means[kept], len(categories))


def parts_review(folder: Path) -> str | None:
    """The digest that `write_parts` was given; None without a file that can be read."""
    try:
        return str(_read(folder / PARTS)[0]["review"])
    except (OSError, ValueError, LookupError, TypeError, SafetensorError):
        return None


def _read(path: Path) -> tuple[dict[str, Any], Tensor]:
    with safe_open(path, "pt") as file:
        return parse_json((file.metadata() or {})["debgcd"]), file.get_tensor("means")


def _sha256(means: Tensor) -> str:
    return hashlib.sha256(means.numpy().tobytes()).hexdigest()
