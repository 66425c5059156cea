"""What values may stand together, and that each lies in the range its field states."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from debgcd.config.fields import Config
from debgcd.errors import UsageError


def check(config: Config, where: str) -> None:
    """Refuse a configuration with a value out of its range, or with values that contradict each other."""
    _check_ranges(config, where)
    if config.views.size > config.views.resize:
        raise UsageError(
            f"{where}: views.size {config.views.size} is larger than views.resize {config.views.resize}; "
            "a crop cannot be larger than the resized image"
        )
    if config.views.bank_views == 1:
        raise UsageError(f"{where}: views.bank_views is 1, but a step draws two different views; use 2 or more")
    if config.debiased.utilisation == ():
        raise UsageError(f"{where}: debiased.utilisation has no points; give [[0, 0], [1, 0.5]] or the like, or null")
    for x, y in config.debiased.utilisation or ():
        if not (0 <= x <= 1 and 0 <= y <= 1):
            raise UsageError(
                f"{where}: debiased.utilisation has the point [{x:g}, {y:g}]; both must lie between 0 and 1"
            )
    switches = config.ablation
    if not switches.gcd and config.method in ("gcd", "simgcd"):
        raise UsageError(f"{where}: method {config.method} has no loss but L_gcd; leave ablation.gcd on")
    if switches.debiased and not switches.gcd:
        raise UsageError(
            f"{where}: ablation.debiased needs ablation.gcd, whose classifier gives the hard labels; "
            "set debiased, auxiliary and guidance: false"
        )
    if not switches.gcd and not (switches.detector and config.detector.weight):
        raise UsageError(f"{where}: without ablation.gcd and the detector's loss there is nothing to train")
    if not switches.gcd and not config.detector.tunes_tail:
        raise UsageError(
            f"{where}: without ablation.gcd the detector's loss alone can tune the tail; set detector.tunes_tail: true"
        )
    if switches.guidance and not (switches.debiased and switches.detector):
        raise UsageError(
            f"{where}: ablation.guidance needs ablation.debiased and ablation.detector; set guidance: false"
        )
    if switches.debiased and not (switches.labelled or switches.unlabelled):
        raise UsageError(
            f"{where}: without ablation.labelled and ablation.unlabelled there is no debiased learning; set debiased: false"
        )
    if switches.auxiliary and not switches.debiased:
        raise UsageError(f"{where}: ablation.auxiliary needs ablation.debiased; set auxiliary: false")


def _check_ranges(section: Any, where: str, path: str = "") -> None:
    for field in fields(section):
        value, allowed = getattr(section, field.name), field.metadata.get("range")
        if is_dataclass(value):
            _check_ranges(value, where, f"{path}{field.name}.")
        elif allowed is not None and value is not None and not allowed[0] <= value <= allowed[1]:
            low, high = allowed
            raise UsageError(f"{where}: {path}{field.name} must be between {low:.10g} and {high:.10g}, not {value}")
