"""The arguments of a run of a few fast steps."""

from __future__ import annotations

import functools
from pathlib import Path

from debgcd import config as configuration
from debgcd.methods import METHODS

FAST = {
    "views.size": 32,
    "views.resize": 36,
    "views.bank_views": 3,
    "backbone.tuned_blocks": 1,
    "heads.warm_start": "false",  # its principal components take longer than all the steps
    "heads.hidden": 16,
    "heads.projection_width": 8,
    "heads.detector_width": 8,
    "schedule.batch": 8,
    "schedule.steps": 12,
    "first.steps": 1,  # of a method with two stages
    "run.checkpoint_every": 3,
    "run.watch": "warn",  # so few steps on so few images prove nothing
}


# Adam's steps of a frozen or settled answer: the published number takes as long as the rest of a short run. A new process needs it
# said again.
SETTLE_QUICKLY = """
from debgcd.cluster.settle import SettleOptions
from debgcd.methods import shared
shared.FROZEN = SettleOptions(steps=30)
"""


def train_arguments(source: Path, run: Path, *more: object, **settings: object) -> list[str]:
    """`debgcd train` of a few fast steps; a setting is named with __ for the dot: schedule__steps=6."""
    changed = {name.replace("__", "."): value for name, value in settings.items()}
    method = str(more[more.index("--method") + 1]) if "--method" in more else "debgcd"
    fast = {name: value for name, value in FAST.items() if name in _options(method)}
    sets = [word for name, value in {**fast, **changed}.items() for word in ("--set", f"{name}={value}")]
    fixed = ["train", source, "-o", run, "--k", 3, "--preset", "small", "--backbone", "lite0", "--workers", 0]
    return [str(word) for word in [*fixed, "--bank", "off", "--no-report", *sets, *more]]


@functools.cache
def _options(method: str) -> set[str]:
    """Every key that a run with this method may have."""
    known = method if method in METHODS else "debgcd"
    return set(configuration.leaves(configuration.to_dict(configuration.compose("small", method=known))))
