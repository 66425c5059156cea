"""From a name to a backbone: Lite weights, the Hugging Face hub's format, or DINO's own `.pth` files converted to it.

`transformers` is imported only inside functions, because importing it takes seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import inspect
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from debgcd.errors import DataError, UsageError
from debgcd.model.backbone import Backbone, Identity, Precision
from debgcd.model.lite import VARIANTS, load_lite
from debgcd.model.vit import IMAGENET_MEAN, IMAGENET_STD, VitBackbone
from debgcd.system.files import read_json, readable
from debgcd.system.machine import optional, package_missing

DEFAULT = "facebook/dino-vitb16"
# of --quality best: Apache-2.0 and 88 MB, while DINOv3's weights are given out only to accounts that accept their own licence
BEST, BEST_BUILT_IN = "facebook/dinov2-small", "lite2"
VIT = "vit"  # the extra with `transformers`
DINO = "facebook/dino-vit"
EPSILON = 1e-6  # of LayerNorm in DINO's and DINOv2's own code; the hub's DINO has 1e-12, the default of its ViT
AGAIN = "download it again"

# The hub's model_type -> prefix of the class names in `transformers`.
FAMILIES = {
    "vit": "ViT",
    "dinov2": "Dinov2",
    "dinov2_with_registers": "Dinov2WithRegisters",
    "dinov3_vit": "DINOv3ViT",
}

# Tensors that do not affect the CLS feature: they may be missing or unexpected.
_UNUSED_HUB = re.compile(r"(^|\.)(mask_token$|pooler\.|classifier\.|head\.)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def load_backbone(
    name: str,
    *,
    tuned_blocks: int,
    image_size: int,
    revision: str | None = None,
    cache: Path | None = None,
    precision: Precision = "fp32",
) -> Backbone:
    """A backbone of `VARIANTS` ("lite0", ...), or the ViT of a hub id, a folder or a .pth file; its trunk computes in this precision."""
    if name in VARIANTS:
        backbone: Backbone = load_lite(tuned_blocks, name)
    else:
        backbone = load_vit(name, tuned_blocks=tuned_blocks, image_size=image_size, revision=revision, cache=cache)
    backbone.precision = precision
    return backbone


def load_default(
    *, tuned_blocks: int, image_size: int, cache: Path | None, precision: Precision
) -> tuple[Backbone, str]:
    """The paper's backbone if it is cached or can be downloaded, else lite0; and one line that says which and why."""
    how: dict[str, Any] = {"tuned_blocks": tuned_blocks, "image_size": image_size, "precision": precision}
    if (why := _out_of_reach(DEFAULT, cache)) is None:
        backbone = load_backbone(DEFAULT, cache=cache, **how)
        return backbone, f"backbone: {DEFAULT} (the paper's; choose another with --backbone)"
    return load_backbone("lite0", **how), f"backbone: lite0, because {why} (choose another with --backbone)"


def best_backbone(cache: Path | None) -> tuple[str, str]:
    """The name of the backbone of `--quality best`, downloaded if it is one of the hub, and one line that says which and why."""
    if (why := _out_of_reach(BEST, cache)) is None:
        return BEST, f"quality: best takes {BEST}, which is on this machine now"
    return BEST_BUILT_IN, f"quality: best takes {BEST_BUILT_IN}, because {why}"


def _out_of_reach(name: str, cache: Path | None) -> str | None:
    """Why a model of the hub cannot be used; None if it can, and is now in the cache."""
    if importlib.util.find_spec("transformers") is None:
        return package_missing("transformers", VIT, name)
    try:
        download(name, cache=cache)
    except DataError:
        return f"{name} is neither cached nor reachable"
    return None


def load_vit(
    name: str,
    *,
    tuned_blocks: int,
    image_size: int,
    revision: str | None = None,
    cache: Path | None = None,
) -> VitBackbone:
    """The backbone `name`: a local folder, a `.pth` or `.pt` file, or a hub id.

    `revision` and `cache` apply only to hub ids. `image_size` may be any multiple of the patch size.
    """
    path = Path(name).expanduser()
    commit = None
    optional("transformers", VIT, f"backbone {name}")  # before anything is downloaded
    if path.suffix in {".pth", ".pt"} and not path.is_dir():
        source = Pretrained(*read_original(path), files=[path])
    elif path.is_dir():
        source = read_folder(path)
    elif re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        folder = download(name, revision, cache)
        source, commit = read_folder(folder), folder.name if _COMMIT.fullmatch(folder.name) else None
        if name.startswith(DINO):
            source = replace(source, config={**source.config, "layer_norm_eps": EPSILON})
    else:
        raise UsageError(
            f"backbone {name!r} is neither a folder nor a .pth file nor a hub id such as facebook/dino-vitb16; check the name"
        )
    model = _build(source, name, tuned_blocks, image_size)
    identity = Identity(name=name, revision=commit, sha256=_sha256(source.files))
    return VitBackbone(
        model,
        identity,
        tuned_blocks=tuned_blocks,
        image_size=image_size,
        mean=source.mean,
        std=source.std,
    )


def _build(source: Pretrained, name: str, tuned_blocks: int, image_size: int) -> Any:
    kind = str(source.config.get("model_type"))
    if kind not in FAMILIES:
        raise DataError(f"backbone {name} has the unsupported model_type {kind}; use one of: {', '.join(FAMILIES)}")
    modeling = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    cls = getattr(modeling, FAMILIES[kind] + "Model")
    try:
        config = cls.config_class.from_dict(source.config)
    except Exception as error:  # an untrusted file, and each version of transformers validates it differently
        raise DataError(f"config.json of {name} is not valid ({line(error)}); download the model again") from error
    if not isinstance(config.patch_size, int) or config.num_channels != 3:
        raise DataError(f"backbone {name} does not take RGB images in square patches; choose one that does")
    _check_sizes(name, config.num_hidden_layers, config.patch_size, tuned_blocks, image_size)
    try:
        with _quiet():
            model, report = cls.from_pretrained(
                None,
                config=config,
                state_dict=source.tensors,
                dtype=torch.float32,
                attn_implementation="sdpa",
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # to report all of them below, not only the first
                **({"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(cls).parameters else {}),
            )
    except Exception as error:  # as above
        raise DataError(
            f"the weights of {name} do not fit its configuration ({line(error)}); download it again"
        ) from error
    problems = {
        "missing": report["missing_keys"],
        "unexpected": report["unexpected_keys"],
        # transformers 4 lists names, transformers 5 lists names with both shapes
        "wrong shape": [key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]],
    }
    named = {what: some(key for key in keys if not _UNUSED_HUB.search(key)) for what, keys in problems.items()}
    if any(named.values()):
        said = "; ".join(f"{what}: {keys}" for what, keys in named.items() if keys)
        raise DataError(f"the tensors of {name} do not match a {kind} model ({said}); use the published weights")
    return model


def _check_sizes(name: str, depth: int, patch: int, tuned_blocks: int, image_size: int) -> None:
    if not 0 <= tuned_blocks <= depth:
        raise UsageError(f"tuned_blocks is {tuned_blocks}, but {name} has {depth} blocks; use 0 to {depth}")
    if image_size % patch or image_size <= 0:
        below = max(image_size, 0) // patch * patch
        nearest = f"{below} or {below + patch}" if below else f"{patch}"
        raise UsageError(
            f"image_size {image_size} is not a multiple of {patch}, the patch size of {name}; use {nearest}"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the loading report of `transformers`; problems are raised as errors instead."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)  # type: ignore[attr-defined]
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _sha256(files: Iterable[Path]) -> str:
    """Hash of the concatenated files."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


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
        with readable(file, AGAIN, SafetensorError):
            tensors.update(load_file(file))
    return Pretrained(config, tensors, files, *pixel_statistics(folder / "preprocessor_config.json"))


def download(
    name: str,
    revision: str | None = None,
    cache: Path | None = None,
    what: str = "backbone",
    patterns: Sequence[str] = ("*.safetensors", "*.json"),
) -> Path:
    """The local folder of a hub model, named after its commit; downloads the model only if it is not cached.

    what: a word for it in errors; patterns: the files that are fetched.
    """
    from huggingface_hub import snapshot_download

    place = cache / "hub" if cache else None
    try:
        folder = Path(snapshot_download(name, revision=revision, cache_dir=place, local_files_only=True))
        if (folder / "config.json").is_file() and _weight_files(folder):
            return folder
    except (OSError, ValueError, DataError):
        pass  # not cached, or only partly after an interrupted download
    try:
        return Path(snapshot_download(name, revision=revision, cache_dir=place, allow_patterns=list(patterns)))
    except Exception as error:  # the hub client raises its own errors, those of its HTTP library and OSErrors
        reason = type(error.__cause__ or error).__name__
        at = f"{name} at revision {revision}" if revision else name
        advice = "give a local folder or .pth file, set HF_ENDPOINT to a hub you can reach, or use the built-in lite0"
        if what != "backbone":
            advice = "give a local folder, or set HF_ENDPOINT to a hub you can reach"
        raise DataError(
            f"{what} {at} is not on this machine and cannot be downloaded from the model hub ({reason}); {advice}"
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
        raise DataError(f"{index} has no weight_map from tensors to files next to it; {AGAIN}")
    files = [folder / shard for shard in sorted(set(shards.values()))]
    if absent := some(file.name for file in files if not file.is_file()):
        raise DataError(f"weight files are missing in {folder}: {absent}; download them again")
    return files


def pixel_statistics(
    path: Path, usual_mean: tuple[float, ...] = IMAGENET_MEAN, usual_std: tuple[float, ...] = IMAGENET_STD
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation for normalising pixels (in 0..1); the usual ones if the file gives none."""
    content = _read_json(path) if path.is_file() else {}
    mean, std = content.get("image_mean", usual_mean), content.get("image_std", usual_std)
    for values in (mean, std):
        three = isinstance(values, list | tuple) and len(values) == 3
        if not three or not all(isinstance(value, int | float) for value in values):
            raise DataError(f"image_mean and image_std in {path} must each be three numbers; correct the file")
    if min(std) <= 0:
        raise DataError(f"image_std in {path} must be above zero; correct the file")
    return tuple(mean), tuple(std)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise DataError(f"no {path.name} in {path.parent}; give a folder in the hub's format")
    with readable(path, AGAIN):
        content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} does not hold a JSON object; {AGAIN}")
    return content


def line(error: BaseException) -> str:
    """The first line of an error, for quoting in a message."""
    return next(iter(str(error).splitlines()), "").rstrip(".:") or type(error).__name__


def some(names: Iterable[str]) -> str:
    """The first five names, sorted, and the number of further ones; empty if there are none."""
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


# A chunked DINOv2 (`blocks.<chunk>.<block>.`) numbers its blocks globally, so the chunk can be dropped.
_BLOCK = re.compile(r"^blocks\.(?:\d+\.)?(\d+)\.(?=[a-z])")
_WRAPPER = re.compile(r"^(module\.)?(backbone\.)?")
# Parts used only in pretraining; features do not depend on them.
_UNUSED = re.compile(r"^(head|dino_head|ibot_head)\.|^mask_token$")

_OUTSIDE = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "register_tokens": "embeddings.register_tokens",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
    "norm.weight": "layernorm.weight",
    "norm.bias": "layernorm.bias",
}
_ATTENTION = {"attn.proj": "attention.output.dense"}
_VIT = _ATTENTION | {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
_DINOV2 = _ATTENTION | {
    "norm1": "norm1",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.w12": "mlp.weights_in",
    "mlp.w3": "mlp.weights_out",
    "ls1.gamma": "layer_scale1.lambda1",
    "ls2.gamma": "layer_scale2.lambda1",
}


def read_original(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The model's configuration and its tensors, both in the hub's format."""
    tensors = _state_dict(path)
    needed = ("cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.norm1.weight")
    if missing := [name for name in needed if name not in tensors]:
        raise DataError(
            f"{path} has no tensor {', '.join(missing)}, so it is not a DINO or DINOv2 vision transformer; "
            "give one of their published .pth files, or a folder with config.json and model.safetensors"
        )
    try:
        config = _config(tensors)
        return config, _rename(tensors, _VIT if config["model_type"] == "vit" else _DINOV2)
    except (KeyError, IndexError, ValueError, RuntimeError, ZeroDivisionError) as error:
        raise DataError(
            f"{path} has tensors that do not fit a DINO or DINOv2 vision transformer ({error}); download it again"
        ) from error


def _state_dict(path: Path) -> dict[str, Tensor]:
    """The named tensors of the file, without wrapper prefixes and pretraining heads; never runs code from the file."""
    if not path.is_file():
        raise DataError(f"no file {path}; check the path of the backbone")
    try:
        # A full DINO checkpoint also contains its arguments. A Namespace holds only values, so allowing it is safe.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or malicious file can make the unpickler raise anything
        raise DataError(
            f"{path} is damaged or contains pickled objects other than tensors, which debgcd never loads; "
            "save only the model's state dict, or download the file again"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("teacher"), dict):
        content = content["teacher"]  # the moving average of the student, which the authors publish as the weights
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise DataError(
            f"{path} is not a state dict (names to tensors, or one under the key 'teacher'); "
            "save it with torch.save(model.state_dict(), ...)"
        )
    plain = {_WRAPPER.sub("", str(name)): tensor for name, tensor in content.items()}
    return {_BLOCK.sub(r"blocks.\1.", name): t for name, t in plain.items() if not _UNUSED.search(name)}


def _config(tensors: dict[str, Tensor]) -> dict[str, Any]:
    width, channels, _, patch = tensors["patch_embed.proj.weight"].shape
    if width % 64:
        raise ValueError(f"width {width} is not a multiple of 64")
    side = math.isqrt(tensors["pos_embed"].shape[1] - 1)
    swiglu = "blocks.0.mlp.w12.weight" in tensors
    hidden = tensors["blocks.0.mlp.w12.weight" if swiglu else "blocks.0.mlp.fc1.weight"].shape[0]
    common = {
        "hidden_size": width,
        "num_hidden_layers": 1 + max(int(match[1]) for name in tensors if (match := _BLOCK.match(name))),
        "num_attention_heads": width // 64,  # true of all published sizes
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "layer_norm_eps": EPSILON,
    }
    if "blocks.0.ls1.gamma" not in tensors:
        return common | {"model_type": "vit", "intermediate_size": hidden}
    # w12 stacks gate and value, each two thirds of the hidden size given by the ratio.
    dinov2 = {"mlp_ratio": round(hidden * 0.75 / width) if swiglu else hidden // width, "use_swiglu_ffn": swiglu}
    if "register_tokens" not in tensors:
        return common | dinov2 | {"model_type": "dinov2"}
    registers = tensors["register_tokens"].shape[1]
    return common | dinov2 | {"model_type": "dinov2_with_registers", "num_register_tokens": registers}


def _rename(tensors: dict[str, Tensor], inside: dict[str, str]) -> dict[str, Tensor]:
    """Rename tensors to the hub's names; an unknown tensor keeps its name and is later reported as unexpected."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if (match := _BLOCK.match(name)) is None:
            renamed[_OUTSIDE.get(name, name)] = tensor
            continue
        prefix, rest = f"encoder.layer.{match[1]}.", name[match.end() :]
        part, _, kind = rest.rpartition(".")
        if part == "attn.qkv":
            for which, rows in zip(("query", "key", "value"), tensor.chunk(3), strict=False):
                renamed[f"{prefix}attention.attention.{which}.{kind}"] = rows.contiguous()  # (width, width) of (3w, w)
        elif rest in inside:
            renamed[prefix + inside[rest]] = tensor
        elif part in inside:
            renamed[f"{prefix}{inside[part]}.{kind}"] = tensor
        else:
            renamed[name] = tensor
    return renamed
