"""Where and with what a benchmark was run."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import torch

from debgcd.bench.networks import trunk_type
from debgcd.data.cores import cores
from debgcd.train.run import environment


def facts() -> dict[str, Any]:
    """Date, machine, threads, type and versions."""
    versions = {name: value for name, value in environment().items() if name not in ("platform", "cpu")}
    try:
        versions["simplejpeg"] = importlib.metadata.version("simplejpeg")
    except importlib.metadata.PackageNotFoundError:
        versions["simplejpeg"] = "not installed"
    return {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "trunk": trunk_type(),
        "versions": versions,
    }


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()
