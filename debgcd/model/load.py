"""From a name to a backbone."""

from __future__ import annotations

from pathlib import Path

from debgcd.errors import DataError
from debgcd.model.backbone import Backbone
from debgcd.model.lite import load_lite

DEFAULT = "facebook/dino-vitb16"


def load_backbone(
    name: str, *, tuned_blocks: int, image_size: int, revision: str | None = None, cache: Path | None = None
) -> Backbone:
    """The backbone "lite0", or the ViT of a hub id, a folder or a .pth file."""
    if name == "lite0":
        return load_lite(tuned_blocks)
    from debgcd.model.vit import load_vit  # transformers takes seconds to import

    return load_vit(name, tuned_blocks=tuned_blocks, image_size=image_size, revision=revision, cache=cache)


def load_default(*, tuned_blocks: int, image_size: int, cache: Path | None) -> tuple[Backbone, str]:
    """The paper's backbone if it is cached or can be downloaded, else lite0; and one line that says which and why."""
    try:
        backbone = load_backbone(DEFAULT, tuned_blocks=tuned_blocks, image_size=image_size, cache=cache)
        return backbone, f"backbone: {DEFAULT} (the paper's; choose another with --backbone)"
    except DataError:
        return load_lite(tuned_blocks), (
            f"backbone: lite0, because {DEFAULT} is neither cached nor reachable (choose another with --backbone)"
        )
