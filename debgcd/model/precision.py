"""Where to compute, and in which precision the frozen trunk runs.

Tail, heads and losses stay in single precision, since nothing here shows that training keeps its accuracy in bfloat16.
"""

from __future__ import annotations

from typing import Literal

import torch

from debgcd.errors import UsageError
from debgcd.system import distributed

Precision = Literal["fp32", "bf16"]


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" takes CUDA or Apple's GPU where there is one. Each rank has a GPU of its own."""
    if name == "auto":
        other = (
            "mps" if torch.backends.mps.is_available() and distributed.count() == 1 else "cpu"
        )  # ranks cannot talk by mps
        name = "cuda" if torch.cuda.is_available() else other
    if name == "cuda" and distributed.count() > 1:
        there = torch.cuda.device_count()
        if distributed.local_rank() >= there:
            raise UsageError(
                f"LOCAL_RANK is {distributed.local_rank()}, but there are {there} GPUs here; start one process per GPU, or use the "
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
