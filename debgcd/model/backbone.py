"""The interface of all backbones: a frozen trunk and a tuned tail.

    images (uint8) -> trunk -> tokens -> tail -> feature

The trunk never changes during training, so its output for a given view is constant. It runs without gradient, and its
tokens can be cached (see `tokens/bank.py`). Only the tail, the last n blocks, is tuned."""

from __future__ import annotations

import math
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from debgcd.errors import UsageError
from debgcd.system import distributed

Precision = Literal["fp32", "bf16"]


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" takes CUDA or Apple's GPU where there is one. Each rank has a GPU of its own."""
    if name == "auto":
        # ranks cannot communicate by mps
        other = "mps" if torch.backends.mps.is_available() and distributed.count() == 1 else "cpu"
        name = "cuda" if torch.cuda.is_available() else other
    if name == "cuda" and distributed.count() > 1:
        gpus = torch.cuda.device_count()
        if distributed.local_rank() >= gpus:
            raise UsageError(
                f"LOCAL_RANK is {distributed.local_rank()}, but there are {gpus} GPUs here; start one process per GPU, or use the "
                "device cpu"
            )
        name = f"cuda:{distributed.local_rank()}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"the device {name!r} cannot be used here: {str(error).splitlines()[0]}; try cpu") from error
    return device


def pick_precision(wanted: Literal["auto", "fp32", "bf16"], device: torch.device) -> Precision:
    """The trunk's precision on this device; "auto" takes bfloat16 where the device computes faster in it."""
    if wanted == "auto":
        return "bf16" if gains_from_bf16(device) else "fp32"
    return wanted


def gains_from_bf16(device: torch.device) -> bool:
    """Whether the device has bfloat16 in hardware; other CPUs emulate it, hundreds of times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, name, bool)() for name in checks)
    return False


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context in which the trunk runs."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


CHUNK = 2**19  # numbers, of pixels or tokens, that a core of a CPU takes through trunk or tail together


def chunk_rows(rows: Tensor) -> int:
    """The most rows of a chunk: what the network computes from them should fit into the processor's caches.

    Larger tensors are also slow to get: the C library gives them back to the system, which hands out zeroed pages again.
    """
    return max(1, CHUNK // max(1, math.prod(rows.shape[1:])))


@dataclass(frozen=True)
class Identity:
    """Identifies the pretrained weights. A run stores this instead of the frozen weights."""

    name: str  # "lite0", a hub id, or a path
    revision: str | None  # commit on the hub, if any
    sha256: str  # of the weight files


@dataclass(frozen=True)
class TrunkSplit:
    """Where a method's frozen trunk ends: how many of the last blocks are tuned, and what learns before them."""

    tuned: int  # blocks whose weights learn; they are the tail
    early: str = ""  # what learns before the tail (e.g. "pixels"): then the trunk's tokens change and cannot be kept


class Backbone(nn.Module):
    """A pretrained network, split into trunk and tail.

    Subclasses set the attributes, freeze all parameters except those of `tuned`, and define `tokens` and `tail`.
    """

    identity: Identity
    width: int  # size of the feature
    tail_blocks: int  # blocks after the trunk, all of them tuned
    standardise: bool  # whether heads need standardised features: a CNN's pooled output is positive and not centred
    tuned: nn.ModuleList  # the last n blocks, and nothing else
    unpretrained: str = ""  # how names in `tuned` begin that no other run has: prompts
    pixel_mean: Tensor  # (3, 1, 1), on the scale 0..255
    pixel_std: Tensor  # (3, 1, 1)
    precision: Precision = "fp32"  # of the trunk

    def __init__(self) -> None:
        super().__init__()
        self._token_shapes: dict[int, tuple[int, ...]] = {}

    def token_shape(self, size: int) -> tuple[int, ...]:
        """The shape of the tokens of one image of `size` pixels a side; a pass of the trunk the first time."""
        if size not in self._token_shapes:
            pixels = torch.zeros(1, 3, size, size, dtype=torch.uint8)
            self._token_shapes[size] = tuple(self.trunk(pixels).shape[1:])
        return self._token_shapes[size]

    def trunk(self, images: Tensor) -> Tensor:
        """The tokens of images, without gradient: (N, 3, H, W) uint8 -> (N, ...) float."""
        parts = [self._frozen(images)] if self.pixel_mean.device.type != "cpu" else self._on_cores(images)
        return torch.cat(parts)  # a copy made outside inference mode, which autograd may save

    def _on_cores(self, images: Tensor) -> list[Tensor]:
        """The tokens of images, in chunks."""
        # Small chunks fit into the CPU caches, and a core that works on its own chunk never waits for the others. This is
        # much faster than one large batch with every operation spread over all cores.
        cores = torch.get_num_threads()
        rounds = -(-len(images) // (chunk_rows(images) * cores))
        chunks = images.tensor_split(max(1, min(rounds * cores, len(images))))  # the same number of chunks per core
        if len(chunks) == 1:
            return [self._frozen(images)]
        try:
            with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return list(pool.map(self._frozen, chunks))
        finally:
            torch.set_num_threads(cores)  # otherwise new threads would inherit the pool's setting of 1

    def _frozen(self, images: Tensor) -> Tensor:
        device = self.pixel_mean.device
        with torch.inference_mode(), autocast(device, self.precision):
            return self.tokens(
                (images.to(device, non_blocking=True).float() - self.pixel_mean) / self.pixel_std
            ).float()

    def features(self, tokens: Tensor) -> Tensor:
        """Raw features of tokens, with gradient: (N, ...) -> (N, width). On a CPU the tail takes them in chunks."""
        if not tokens.is_cpu or torch.compiler.is_compiling():  # a graph must serve any N
            return self.tail(tokens)
        together = chunk_rows(tokens) * torch.get_num_threads()  # each operation is spread over all cores
        chunks = tokens.tensor_split(max(1, -(-len(tokens) // together)))
        return torch.cat([self.tail(chunk) for chunk in chunks]) if len(chunks) > 1 else self.tail(tokens)

    @abstractmethod
    def tokens(self, pixels: Tensor) -> Tensor:
        """The frozen part: normalised pixels (N, 3, H, W) -> input of the tail."""

    @abstractmethod
    def tail(self, tokens: Tensor) -> Tensor:
        """The tuned part: tokens -> raw features (N, width)."""

    def train(self, mode: bool = True) -> Backbone:
        """Stay in evaluation mode: batch statistics are never updated and dropout is never used."""
        return super().train(False)
