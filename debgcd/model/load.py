"""From a name to a backbone."""

from __future__ import annotations

from pathlib import Path

from debgcd.errors import DataError, UsageError
from debgcd.model.backbone import Backbone, Precision
from debgcd.model.lite import VARIANTS, load_lite

DEFAULT = "facebook/dino-vitb16"


def load_backbone(
    name: str,
    *,
    tuned_blocks: int,
    image_size: int,
    tail_blocks: int | None = None,
    revision: str | None = None,
    cache: Path | None = None,
    precision: Precision = "fp32",
) -> Backbone:
    """A backbone of `VARIANTS` ("lite0", ...), or the ViT of a hub id, a folder or a .pth file; its trunk computes in this precision.

    tail_blocks: how many of the last blocks come after the frozen trunk; None: those that are tuned.
    """
    tail = tuned_blocks if tail_blocks is None else tail_blocks
    if tail < tuned_blocks:
        raise UsageError(
            f"backbone.tail_blocks is {tail}, fewer than the {tuned_blocks} tuned blocks; use {tuned_blocks}"
        )
    if name in VARIANTS:
        backbone: Backbone = load_lite(tuned_blocks, tail, name)
    else:
        from debgcd.model.vit import load_vit  # transformers takes seconds to import

        backbone = load_vit(
            name, tuned_blocks=tuned_blocks, tail_blocks=tail, image_size=image_size, revision=revision, cache=cache
        )
    backbone.precision = precision
    return backbone


def load_default(
    *, tuned_blocks: int, tail_blocks: int, image_size: int, cache: Path | None, precision: Precision
) -> tuple[Backbone, str]:
    """The paper's backbone if it is cached or can be downloaded, else lite0; and one line that says which and why."""
    try:
        backbone = load_backbone(
            DEFAULT,
            tuned_blocks=tuned_blocks,
            tail_blocks=tail_blocks,
            image_size=image_size,
            cache=cache,
            precision=precision,
        )
        return backbone, f"backbone: {DEFAULT} (the paper's; choose another with --backbone)"
    except DataError:
        offline = load_backbone(
            "lite0", tuned_blocks=tuned_blocks, tail_blocks=tail_blocks, image_size=image_size, precision=precision
        )
        return offline, (
            f"backbone: lite0, because {DEFAULT} is neither cached nor reachable (choose another with --backbone)"
        )
