"""Methods of category discovery behind one small protocol."""

from __future__ import annotations

from debgcd.config import Config
from debgcd.errors import UsageError
from debgcd.methods.debgcd import DebGCD
from debgcd.methods.gcd import GCD
from debgcd.methods.kmeans import KMeans, SemiSupervisedKMeans
from debgcd.methods.protocol import Batch, Loss, Method
from debgcd.methods.simgcd import SimGCD

METHODS: dict[str, type[KMeans] | type[SimGCD]] = {
    "debgcd": DebGCD,
    "gcd": GCD,
    "kmeans": KMeans,
    "simgcd": SimGCD,
    "sskmeans": SemiSupervisedKMeans,
}


def create(config: Config, known: int) -> Method:
    """The method that the configuration names, for this number of known classes."""
    require_method(config.method)
    return METHODS[config.method](config, known)


def require_method(name: str) -> None:
    """Refuse a method that does not exist."""
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}; choose from {', '.join(sorted(METHODS))}")


__all__ = ["METHODS", "Batch", "Loss", "Method", "create", "require_method"]
