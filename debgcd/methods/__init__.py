"""Methods of category discovery behind one small protocol, `methods/base.py`.

`METHODS` maps a name to its class. Names are there without importing torch; a class is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from debgcd.errors import UsageError, suggest

if TYPE_CHECKING:
    from debgcd.config.schema import Config
    from debgcd.methods.base import Method, Sizes

# A new method is a file in this folder and a line here.
_PLACES = {
    "debgcd": "debgcd.DebGCD",
    "simgcd": "simgcd.SimGCD",
    "gcd": "gcd.GCD",
    "kmeans": "kmeans.KMeans",
    "sskmeans": "kmeans.SemiSupervisedKMeans",
    "detector": "detector.DetectorAlone",
    "rankstats": "rankstats.RankStats",
    "uno": "uno.UNO",
    "orca": "orca.ORCA",
    "xcon": "xcon.XCon",
    "opencon": "opencon.OpenCon",
    "promptcal": "promptcal.PromptCAL",
    "dccl": "dccl.DCCL",
    "gpc": "gpc.GPC",
    "mugcd": "mugcd.MuGCD",
    "infosieve": "infosieve.InfoSieve",
    "cipr": "cipr.CiPR",
    "sptnet": "sptnet.SPTNet",
}


class _Methods(Mapping[str, "type[Method]"]):
    def __getitem__(self, name: str) -> type[Method]:
        module, _, cls = _PLACES[name].partition(".")
        return getattr(importlib.import_module(f"debgcd.methods.{module}"), cls)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


METHODS: Mapping[str, type[Method]] = _Methods()


def create(config: Config, sizes: Sizes) -> Method:
    """The method that the configuration names, with EAGC around it if it asks for that."""
    require_method(config.method)
    method = METHODS[config.method]
    if config.extras.eagc:
        from debgcd.methods.eagc import with_eagc  # here, as it imports torch

        method = with_eagc(method)
    return method(config, sizes)


def require_method(name: str) -> None:
    """Refuse a method that does not exist."""
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}{suggest(name, list(METHODS))}")


def require_package(name: str) -> None:
    """Refuse a method whose optional package is not installed."""
    package = METHODS[name].package
    if package is not None and importlib.util.find_spec(package) is None:
        raise UsageError(f"method {name} needs the package {package}; pip install 'debgcd[{name}]' installs it")


__all__ = ["METHODS", "create", "require_method", "require_package"]
