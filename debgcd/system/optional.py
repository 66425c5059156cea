"""Packages that only some features need."""

from __future__ import annotations

import importlib
from typing import Any

from debgcd.errors import UsageError


def optional(module: str, extra: str | None, what: str) -> Any:
    """Import a module of an optional package, or say what needs it and how to install it.

    extra: the extra of debgcd that installs the package; None: it is installed by its own name.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ImportError as error:
        wanted = package if extra is None else f"'debgcd[{extra}]'"
        raise UsageError(f"{what} needs the package {package}; install it with: pip install {wanted}") from error
