"""Where to compute, and in which precision the frozen trunk runs.

Tail, heads and losses stay in single precision, since nothing here shows that training keeps its accuracy in bfloat16.
"""

from __future__ import annotations

import torch

from debgcd.errors import UsageError


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" takes CUDA or Apple's GPU where there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"the device {name!r} cannot be used here: {str(error).splitlines()[0]}; try cpu") from error
    return device


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 where the device computes faster in it; other CPUs would emulate it, hundreds of times slower."""
    if device.type == "cuda":
        gains = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        gains = any(
            getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        )
    else:
        gains = False
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=gains)
