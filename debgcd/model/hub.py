"""Pretrained weights in the Hugging Face hub's format, read from a folder or downloaded first.

Only JSON and safetensors files are read: other formats can contain code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from debgcd.errors import DataError
from debgcd.system.files import read_json

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Pretrained:
    """A model as stored in files: its configuration, its tensors under the hub's names, and its pixel statistics."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    files: list[Path]  # of the tensors
    mean: tuple[float, ...] = IMAGENET_MEAN  # of red, green and blue, in 0..1
    std: tuple[float, ...] = IMAGENET_STD


def read_folder(folder: Path) -> Pretrained:
    """Read a folder with config.json and model.safetensors (or shards and their index)."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config, files = _read_json(folder / "config.json"), _weight_files(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except (SafetensorError, OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read as safetensors ({line(error)}); download it again") from error
    return Pretrained(config, tensors, files, *_pixel_statistics(folder / "preprocessor_config.json"))


def download(name: str, revision: str | None = None, cache: Path | None = None) -> Path:
    """The local folder of a hub model, named after its commit; downloads the model only if it is not cached."""
    from huggingface_hub import snapshot_download

    place = cache / "hub" if cache else None
    patterns = ["*.safetensors", "*.json"]
    try:
        folder = Path(snapshot_download(name, revision=revision, cache_dir=place, local_files_only=True))
        if (folder / "config.json").is_file() and _weight_files(folder):
            return folder
    except (OSError, ValueError, DataError):
        pass  # not cached, or only partly after an interrupted download
    try:
        return Path(snapshot_download(name, revision=revision, cache_dir=place, allow_patterns=patterns))
    except Exception as error:  # the hub client raises its own errors, those of its HTTP library and OSErrors
        reason = type(error.__cause__ or error).__name__
        at = f"{name} at revision {revision}" if revision else name
        raise DataError(
            f"backbone {at} is not on this machine and cannot be downloaded from the model hub ({reason}); give a "
            "local folder or .pth file, set HF_ENDPOINT to a hub you can reach, or use the built-in lite0"
        ) from error


def _weight_files(folder: Path) -> list[Path]:
    """The single safetensors file, or all shards sorted by name."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise DataError(
            f"no model.safetensors in {folder} (other formats are not read, because they can contain code); "
            "save the model there with save_pretrained"
        )
    shards = _read_json(index).get("weight_map")
    # Only plain file names: a path could point outside the folder.
    if not isinstance(shards, dict) or not all(isinstance(s, str) and Path(s).name == s for s in shards.values()):
        raise DataError(f"{index} has no weight_map from tensors to files next to it; download it again")
    files = [folder / shard for shard in sorted(set(shards.values()))]
    if absent := some(file.name for file in files if not file.is_file()):
        raise DataError(f"weight files are missing in {folder}: {absent}; download them again")
    return files


def _pixel_statistics(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation for normalising pixels (in 0..1); ImageNet's if the folder gives none."""
    content = _read_json(path) if path.is_file() else {}
    mean, std = content.get("image_mean", IMAGENET_MEAN), content.get("image_std", IMAGENET_STD)
    for values in (mean, std):
        three = isinstance(values, list | tuple) and len(values) == 3
        if not three or not all(isinstance(value, int | float) for value in values):
            raise DataError(f"image_mean and image_std in {path} must each be three numbers; correct the file")
    if min(std) <= 0:
        raise DataError(f"image_std in {path} must be above zero; correct the file")
    return tuple(mean), tuple(std)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        raise DataError(f"no {path.name} in {path.parent}; give a folder in the hub's format") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON ({line(error)}); download it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} does not hold a JSON object; download it again")
    return content


def line(error: BaseException) -> str:
    """The first line of an error, for quoting in a message."""
    return next(iter(str(error).splitlines()), "").rstrip(".:") or type(error).__name__


def some(names: Iterable[str]) -> str:
    """The first five names, sorted, and the number of further ones; empty if there are none."""
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
