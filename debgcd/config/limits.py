"""What values the fields may have, alone and together."""

from __future__ import annotations

from typing import Any

from debgcd.config.fields import Config
from debgcd.errors import UsageError

_RANGES: dict[str, tuple[float, float]] = {
    "k": (1, 10**7),
    "k_times": (1, 100),
    "backbone.tuned_blocks": (0, 1000),
    "views.resize": (8, 4096),
    "views.size": (8, 4096),
    "views.bank_views": (0, 1000),
    "views.fresh": (0, 1),
    "heads.hidden": (1, 65536),
    "heads.projection_depth": (1, 32),
    "heads.projection_width": (1, 65536),
    "heads.detector_depth": (0, 32),
    "heads.detector_width": (1, 65536),
    "gcd.supervised_weight": (0, 1),
    "gcd.entropy_weight": (0, 1e6),
    "gcd.student_temperature": (1e-4, 100),
    "gcd.teacher_start": (1e-4, 100),
    "gcd.teacher_end": (1e-4, 100),
    "gcd.teacher_warmup": (0, 1),
    "gcd.unlabelled_temperature": (1e-4, 100),
    "gcd.labelled_temperature": (1e-4, 100),
    "detector.weight": (0, 1e6),
    "detector.temperature": (1e-4, 100),
    "detector.entropy_weight": (0, 1e6),
    "detector.consistency_weight": (0, 1e6),
    "detector.unlabelled_weight": (0, 1e6),
    "debiased.weight": (0, 1e6),
    "debiased.threshold": (0, 1),
    "schedule.epochs": (0, 10**6),
    "schedule.steps": (0, 10**9),
    "schedule.batch": (1, 10**6),
    "schedule.lr": (0, 1e3),
    "schedule.lr_end": (0, 1),
    "schedule.tail_lr": (0, 1e3),
    "schedule.momentum": (0, 0.9999),
    "schedule.weight_decay": (0, 1),
    "run.workers": (0, 1024),
    "run.log_every": (1, 10**9),
    "run.eval_every": (1, 10**9),
    "run.checkpoint_every": (1, 10**9),
    "run.keep": (1, 10**6),
}


def check(config: Config, where: str) -> None:
    """Refuse a configuration with a value out of its range, or with values that contradict each other."""
    for full, (low, high) in _RANGES.items():
        value: Any = config
        for part in full.split("."):
            value = getattr(value, part)
        if value is not None and not low <= value <= high:
            raise UsageError(f"{where}: {full} must be between {low:.10g} and {high:.10g}, not {value}")
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
