"""so_far.safetensors in a model folder: the images of all its categories as voters (novelty/so_far.py)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from debgcd.novelty.so_far import SoFar
from debgcd.system.files import readable

SO_FAR = "so_far.safetensors"


def write_so_far(folder: Path, so_far: SoFar) -> str:
    """Write the file; returns its sha256."""
    content = so_far_bytes(so_far)
    (folder / SO_FAR).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def so_far_bytes(so_far: SoFar) -> bytes:
    """The content of the file."""
    return save_tensors({name: value.cpu().contiguous() for name, value in so_far.state_dict().items()})


def read_so_far(folder: Path, sha256: str | None, width: int) -> SoFar | None:
    """The voters of a model for features of this width; None for a model that was written without them."""
    if sha256 is None:
        return None
    with readable(folder / SO_FAR, "restore it or train again", SafetensorError):
        content = (folder / SO_FAR).read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError("its sha256 does not match")
        return so_far_of(content, width)


def so_far_of(content: bytes, width: int) -> SoFar:
    """The voters in the content of the file."""
    tensors = load_tensors(content)
    so_far = SoFar(width, len(tensors["points"]))
    try:
        so_far.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError("it does not fit the model") from error
    return so_far
