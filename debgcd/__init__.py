"""debgcd finds the categories that your labels do not cover yet.

    >>> from debgcd import Discoverer
    >>> discoverer = Discoverer(k=10).fit(paths, labels)     # -1, None or NaN: unlabelled     # doctest: +SKIP

The command line is `debgcd --help`; `docs/paper.md` maps the paper's equations to functions.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from debgcd.discoverer import Discoverer

try:
    __version__ = version("debgcd")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0"

__all__ = ["Discoverer", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Discoverer":  # on first use: torch takes seconds to import
        from debgcd.discoverer import Discoverer

        return Discoverer
    raise AttributeError(f"module 'debgcd' has no attribute {name!r}")
