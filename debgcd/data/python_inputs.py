"""What a Python caller gives as images or labels -> a list of paths, or of arrays; anything else is refused in words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from debgcd.data.image.decode import to_rgb
from debgcd.errors import DataError, UsageError

Paths = list[str | os.PathLike[str]]
Arrays = list[NDArray[Any]]

_KINDS: dict[str, tuple[type, ...]] = {
    "paths": (str, os.PathLike),
    "arrays": (np.ndarray,),
    "PIL images": (Image.Image,),
    "tensors": (Tensor,),
}


def given_images(X: Any) -> Paths | Arrays:
    """The images of a list, array, tensor or column: paths as they are, everything else as arrays that `from_arrays` takes.

    All must be of one kind: paths, arrays, PIL images or tensors. A tensor is (H, W), (3, H, W) or (H, W, 3).
    """
    _refuse_one_image(X)
    items = given_column("X", X["path"] if _is_frame(X) and "path" in X.columns else X)
    if not items:
        raise DataError("no images in X; give at least one")
    kinds = [_kind(item, i) for i, item in enumerate(items)]
    other = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise UsageError(f"X mixes {kinds[0]} and {kinds[other]} (items 0 and {other}); give images of one kind")
    if kinds[0] == "PIL images":
        return [_from_pil(item, i) for i, item in enumerate(items)]
    if kinds[0] == "tensors":
        return [_from_tensor(item, i) for i, item in enumerate(items)]
    return items


def given_column(name: str, values: Any) -> list[Any]:
    """The values of a list, array, tensor, generator, series or table of one column."""
    if _is_frame(values):
        columns = [str(column) for column in values.columns]
        if len(columns) != 1:
            one = columns[0] if columns else "path"
            listed = ", ".join(columns[:5]) + (", ..." if len(columns) > 5 else "")
            raise UsageError(
                f"{name} is a table with {len(columns)} columns ({listed}); pass one of them, e.g. table[{one!r}]"
            )
        values = values.iloc[:, 0]
    single = isinstance(values, str | bytes | os.PathLike | Mapping)
    unordered = isinstance(values, set | frozenset)
    if single or unordered or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise UsageError(f"{name} must be a list with one entry per image, not a {type(values).__name__}")
    return list(values)


def labels_of_frame(X: Any, groups: Any) -> tuple[Any, Any]:
    """Labels and groups where the caller gave no labels: the columns `label` and, unless groups were given, `group` of X."""
    if not _is_frame(X) or "label" not in X.columns:
        raise UsageError(
            "y is missing: give a label per image, -1 or None where it has none, or a table with a column label"
        )
    return X["label"], X["group"] if groups is None and "group" in X.columns else groups


def _is_frame(values: Any) -> bool:
    """Whether this is a data frame, without importing pandas."""
    return hasattr(values, "columns") and hasattr(values, "iloc")


def _refuse_one_image(X: Any) -> None:
    """One image is refused rather than guessed at: the answer would be an array of one all the same."""
    shape = tuple(getattr(X, "shape", ()))
    if isinstance(X, str | os.PathLike):
        one = f"the single path {os.fspath(X)!r}"
    elif isinstance(X, Image.Image):
        one = "a single PIL image"
    elif (isinstance(X, Tensor) and shape[:1] == (3,) and len(shape) == 3) or (
        isinstance(X, Tensor | np.ndarray) and not _holds_paths(X) and (len(shape) == 2 or shape[2:] in ((3,), (4,)))
    ):
        one = f"a single image of shape {shape}"
    else:
        return
    raise UsageError(f"X must be a list of images, got {one}; put it into a list, e.g. predict([image])")


def _holds_paths(X: Tensor | NDArray[Any]) -> bool:
    return isinstance(X, np.ndarray) and X.dtype.kind in "OUST"


def _kind(item: Any, i: int) -> str:
    for kind, types in _KINDS.items():
        if isinstance(item, types):
            return kind
    raise UsageError(f"item {i} of X is {_short(item)}; give paths, arrays, PIL images or tensors")


def _short(item: Any) -> str:
    return "None" if item is None else f"a {type(item).__name__}"


def _from_pil(image: Image.Image, i: int) -> NDArray[Any]:
    """RGB as a file with this image would be decoded."""
    try:
        return to_rgb(ImageOps.exif_transpose(image), image.format or "")
    except Exception as error:  # a file that Pillow has opened and not read yet may be broken in any way
        raise DataError(f"item {i} of X cannot be read ({type(error).__name__}: {error}); leave it out") from error


def _from_tensor(tensor: Tensor, i: int) -> NDArray[Any]:
    if tensor.ndim == 3 and tensor.shape[0] == 3:
        tensor = tensor.permute(1, 2, 0)
    elif tensor.ndim != 2 and (tensor.ndim != 3 or tensor.shape[2] != 3):
        raise DataError(f"item {i} of X has the shape {tuple(tensor.shape)}; give (H, W), (3, H, W) or (H, W, 3)")
    if tensor.is_floating_point():
        tensor = tensor.to(torch.float32)  # numpy has no bfloat16
    return tensor.detach().cpu().numpy()
