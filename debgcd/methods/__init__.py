"""Methods of category discovery behind one small interface, `methods/base.py`.

`METHODS` maps a name to its class. Listing the names does not import torch; a class is imported on first access. Other
installed packages add methods with entry points in the group `debgcd.methods`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from debgcd.errors import UsageError, suggest
from debgcd.system.machine import optional

if TYPE_CHECKING:
    from debgcd.config.schema import Config
    from debgcd.methods.base import Method, Sizes

GROUP = "debgcd.methods"  # entry point group

# A new method is a file in this folder and a line here.
_PLACES = {
    "debgcd": "debgcd.DebGCD",
    "simgcd": "simgcd.SimGCD",
    "gcd": "gcd.GCD",
    "kmeans": "kmeans.KMeans",
    "sskmeans": "kmeans.SemiSupervisedKMeans",
    "detector": "debgcd.DetectorAlone",
    "pim": "pim.PIM",
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
        if name not in _PLACES:
            return _load(name, _foreign()[name])
        module, _, cls = _PLACES[name].partition(".")
        return getattr(importlib.import_module(f"debgcd.methods.{module}"), cls)

    def __contains__(self, name: object) -> bool:
        return name in _PLACES or name in _foreign()  # Mapping would import the class

    def __iter__(self) -> Iterator[str]:
        return iter((*_PLACES, *(name for name in _foreign() if name not in _PLACES)))

    def __len__(self) -> int:
        return len(_PLACES.keys() | _foreign().keys())


METHODS: Mapping[str, type[Method]] = _Methods()


@cache
def _foreign() -> dict[str, list[EntryPoint]]:
    """Entry points of other packages, by method name."""
    points: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, _package(point))):
        points.setdefault(point.name, []).append(point)
    return points


def _package(point: EntryPoint) -> str:
    return point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _load(name: str, points: list[EntryPoint]) -> type[Method]:
    """The class of another package's method; raises UsageError if it cannot be used."""
    from debgcd.methods.base import About, Method

    if len(points) > 1:
        packages = ", ".join(map(_package, points))
        raise UsageError(f"several packages offer the method {name}: {packages}; uninstall all but one")
    try:
        method = points[0].load()
    except Exception as error:  # whatever another package's import raises
        why = " ".join(f"{type(error).__name__}: {error}".split())
    else:
        if (
            isinstance(method, type)
            and issubclass(method, Method)
            and isinstance(getattr(method, "about", None), About)
        ):
            return method
        why = f"{points[0].value} is not a subclass of debgcd.methods.base.Method with an About"
    raise UsageError(
        f"method {name} of the package {_package(points[0])} cannot be used ({why}); repair or uninstall it"
    )


def origin(name: str) -> str | None:
    """Package and version that provide a method; None for debgcd's own."""
    return None if name in _PLACES else ", ".join(map(_package, _foreign()[name]))


def clashes() -> dict[str, str]:
    """A warning for each of debgcd's own method names that another package offers too; debgcd's own method wins."""
    return {
        name: f"method {name} is debgcd's own; that of {', '.join(map(_package, points))} is ignored: rename it"
        for name, points in _foreign().items()
        if name in _PLACES
    }


def usable() -> dict[str, type[Method]]:
    """All methods except those of packages that cannot be used."""
    methods = {}
    for name in METHODS:
        with suppress(UsageError):
            methods[name] = METHODS[name]
    return methods


def create(config: Config, sizes: Sizes) -> Method:
    """The configured method, wrapped where `extras.eagc` is on and where its answer is settled."""
    require_method(config.method)
    method = METHODS[config.method]
    if config.answer == "settled" and method.trains and not method.clusters:
        from debgcd.methods.settled import with_settled  # a late import: it loads torch

        method = with_settled(method)
    if config.extras.eagc:
        from debgcd.methods.eagc import with_eagc  # a late import: it loads torch

        method = with_eagc(method)
    return method(config, sizes)


def require_method(name: str) -> None:
    """Refuse a method that does not exist."""
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}{suggest(name, list(METHODS))}")


def require_package(name: str) -> None:
    """Refuse a method whose optional package is not installed."""
    package = METHODS[name].about.package
    if package is not None:
        optional(package, name if name in _PLACES else None, f"method {name}")


__all__ = ["METHODS", "clashes", "create", "origin", "require_method", "require_package", "usable"]
