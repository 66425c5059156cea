"""The machine and its software: cores, processor, versions, the cache folder."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from debgcd.errors import UsageError
from debgcd.system import distributed

PACKAGES = (
    "debgcd",
    "torch",
    "transformers",
    "numpy",
    "scipy",
    "scikit-learn",
    "pillow",
    "simplejpeg",
    "safetensors",
)


def cache_folder(given: str | os.PathLike[str] | None) -> Path:
    """The folder given, else $DEBGCD_CACHE, else ~/.cache/debgcd."""
    chosen = given or os.environ.get("DEBGCD_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path.home() / ".cache" / "debgcd"
    except RuntimeError as error:  # HOME is not set, and the system does not know this user
        raise UsageError(
            "there is no home folder for the cache; choose another cache folder",
            setting="cache",
            then=", or set DEBGCD_CACHE",
        ) from error


def cores() -> int:
    """Cores available to this process; in a container often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The model name of the CPU where the system provides it, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


@cache
def versions() -> Mapping[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def environment() -> dict[str, Any]:
    """environment.json of a run: platform, versions and ranks, to explain later why a number differs; and who launched it."""
    found = {"platform": platform.platform(), "cpu": platform.machine(), "ranks": distributed.count(), **versions()}
    launch = distributed.launch()
    return found if launch is None else {**found, "launch": launch}


def facts() -> dict[str, Any]:
    """When and on what a measurement was made."""
    import torch  # here, because torch takes seconds to import and the rest of this module does not need it

    return {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # e.g. AVX2; in a cloud, one name stands for many processors
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }
