"""Vision transformers (DINO, DINOv2 with and without registers, DINOv3), split into trunk and tail.

The models are those of Hugging Face `transformers`, given by hub id, local folder or the authors' `.pth` file. That library
is imported only inside functions, because importing it takes seconds.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from debgcd.errors import DataError, UsageError
from debgcd.model.backbone import Backbone, Identity
from debgcd.model.folded import Rotation, cls_attention, cls_row, first_block
from debgcd.model.weights import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Pretrained,
    download,
    line,
    read_folder,
    read_original,
    some,
)

# The hub's model_type -> prefix of the class names in `transformers`.
FAMILIES = {
    "vit": "ViT",
    "dinov2": "Dinov2",
    "dinov2_with_registers": "Dinov2WithRegisters",
    "dinov3_vit": "DINOv3ViT",
}

# Tensors that do not affect the CLS feature: they may be missing or unexpected.
_UNUSED = re.compile(r"(^|\.)(mask_token$|pooler\.|classifier\.|head\.)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class VitBackbone(Backbone):
    """A vision transformer, split before its last `tail_blocks` blocks; the feature is the normalised CLS row."""

    standardise = False
    tuned: nn.ModuleList

    def __init__(
        self,
        model: Any,
        identity: Identity,
        *,
        tuned_blocks: int,
        tail_blocks: int | None = None,
        image_size: int,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        depth = model.config.num_hidden_layers
        # Names of parts differ between families and versions, but each model has one list of blocks and one outer LayerNorm.
        blocks = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth)
        self.identity = identity
        self.width = model.config.hidden_size
        self.heads = model.config.num_attention_heads
        self.image_size, self.patch = image_size, model.config.patch_size
        self.embeddings = model.embeddings
        self.rotary = getattr(model, "rope_embeddings", None)  # DINOv3: positions are encoded in every block
        self.tail_blocks = tuned_blocks if tail_blocks is None else tail_blocks
        self.frozen = nn.ModuleList(blocks[: depth - self.tail_blocks])
        self.late = nn.ModuleList(blocks[depth - self.tail_blocks : depth - tuned_blocks])
        self.tuned = nn.ModuleList(blocks[depth - tuned_blocks :])
        self.norm = next(m for m in model.children() if isinstance(m, nn.LayerNorm))
        # ViT resizes its position embeddings only on request; the other families have no such switch.
        asks = "interpolate_pos_encoding" in inspect.signature(self.embeddings.forward).parameters
        self._resize: dict[str, bool] = {"interpolate_pos_encoding": True} if asks else {}
        self.register_buffer("pixel_mean", 255 * torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", 255 * torch.tensor(std).view(3, 1, 1), persistent=False)
        self.requires_grad_(False)
        self.tuned.requires_grad_(True)
        self.eval()

    def tokens(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) normalised pixels -> (N, 1 + registers + patches, width), or only the CLS row if there is no tail."""
        if pixels.shape[-2:] != (self.image_size, self.image_size):
            got = "×".join(map(str, pixels.shape[-2:]))
            raise ValueError(f"images are {got}, but this backbone was loaded for image_size {self.image_size}")
        tokens = self.embed(pixels)
        return self.through(self.frozen, tokens) if self.tail_blocks else self._cls_row([*self.frozen], tokens)[:, None]

    def tail(self, tokens: Tensor) -> Tensor:
        """Output of `tokens` -> the CLS row, (N, width)."""
        return self.norm(self._cls_row([*self.late, *self.tuned], tokens) if self.tail_blocks else tokens[:, 0])

    @torch.no_grad()
    def attention(self, tokens: Tensor) -> Tensor:
        """Attention of the last block's CLS token over the patches: output of `tokens` -> (N, heads, rows, columns)."""
        if not self.tail_blocks:
            raise UsageError("attention needs at least one tuned block: without one, the trunk keeps only the CLS row")
        blocks = [*self.late, *self.tuned]
        last = self.through(blocks[:-1], tokens)
        seen = cls_attention(blocks[-1], last, self.heads, self._rotation(tokens))
        side = self.image_size // self.patch
        return seen[:, :, -side * side :].unflatten(2, (side, side))

    def _cls_row(self, blocks: Sequence[nn.Module], tokens: Tensor) -> Tensor:
        """The CLS row after at least one block: (N, width)."""
        return cls_row(blocks[-1], self.through(blocks[:-1], tokens), self.heads, self._rotation(tokens))

    def embed(self, pixels: Tensor) -> Tensor:
        """Normalised pixels -> the tokens before the first block."""
        return self.embeddings(pixels, **self._resize)

    def through(self, blocks: Iterable[nn.Module], tokens: Tensor) -> Tensor:
        """The tokens after these blocks."""
        rotation = self._rotation(tokens)
        positions = {} if rotation is None else {"position_embeddings": rotation}
        for block in blocks:
            learns = torch.is_grad_enabled() and next(block.parameters()).requires_grad
            forward = partial(first_block, block) if learns and not tokens.requires_grad else block
            tokens = forward(tokens, **positions)
        return tokens

    def _rotation(self, tokens: Tensor) -> Rotation | None:
        if self.rotary is None:
            return None
        # only the size, device and dtype of this tensor are used
        return self.rotary(tokens.new_empty(1, 3, self.image_size, self.image_size))


def load_vit(
    name: str,
    *,
    tuned_blocks: int,
    image_size: int,
    tail_blocks: int | None = None,
    revision: str | None = None,
    cache: Path | None = None,
) -> VitBackbone:
    """The backbone `name`: a local folder, a `.pth` or `.pt` file, or a hub id.

    `revision` and `cache` apply only to hub ids. `image_size` may be any multiple of the patch size.
    """
    path = Path(name).expanduser()
    commit = None
    if path.suffix in {".pth", ".pt"} and not path.is_dir():
        source = Pretrained(*read_original(path), files=[path])
    elif path.is_dir():
        source = read_folder(path)
    elif re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        folder = download(name, revision, cache)
        source, commit = read_folder(folder), folder.name if _COMMIT.fullmatch(folder.name) else None
    else:
        raise UsageError(
            f"backbone {name!r} is neither a folder nor a .pth file nor a hub id such as facebook/dino-vitb16; check the name"
        )
    model = _build(source, name, tuned_blocks if tail_blocks is None else tail_blocks, image_size)
    identity = Identity(name=name, revision=commit, sha256=_sha256(source.files))
    return VitBackbone(
        model,
        identity,
        tuned_blocks=tuned_blocks,
        tail_blocks=tail_blocks,
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
    named = {what: some(key for key in keys if not _UNUSED.search(key)) for what, keys in problems.items()}
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
    logging.set_verbosity(logging.CRITICAL)
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
