"""A finished run of each method, made once for all tests and all of pytest's workers."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forks import debgcd
from quick import train_arguments
from tiny import hub_model

from debgcd.methods import METHODS
from debgcd.tokens import bank, sources

STEPS = 12
BLOCKS = {(sources, "CENTRE_BATCH"): sources.CENTRE_BATCH, (bank, "BUILD_BATCH"): bank.BUILD_BATCH}
# Settings that reach more of a method, or keep it from amplifying rounding.
OWN: dict[str, dict[str, object]] = {
    "debgcd": {"heads__warm_start": "true", "schedule__lr": 0.001},
    "simgcd": {"heads__warm_start": "true"},
    "promptcal": {"promptcal__memory": 30, "promptcal__negatives": 20},
    "infosieve": {"heads__hidden": 128, "heads__projection_width": 64},  # codes are less alike at the start
}


@dataclass(frozen=True)
class SharedRuns:
    """`whole("gcd")` is an undisturbed run, not to be changed; `words("gcd", run)` train another one like it.

    24 images with truth and a test split, epochs of three steps, a checkpoint every two, an evaluation every epoch.
    """

    folder: Path
    make_csv: Callable[[Path], Path]

    def whole(self, method: str) -> Path:
        run, log = self.folder / method, self.folder / f"{method}.log"
        self.once(
            run / "predictions.csv", lambda: _require(debgcd(self.words(method, run), log, _usual_blocks) == 0, log)
        )
        return run

    def words(self, method: str, run: Path, csv: Path | None = None) -> list[str]:
        """The command line of a run of this method; csv: other images, or the same ones with another truth."""
        more: list[object] = ["--method", method, "--bank", "on", "--cache", self.folder / "cache", "--k", 4]
        if METHODS[method].about.needs_vit:
            vit = self.folder / "vit"
            self.once(vit / "config.json", lambda: hub_model("vit", vit))
            more += ["--backbone", vit]
        settings: dict[str, object] = {"schedule__batch": 7, "schedule__lr": 0.003, "run__precision": "fp32"}
        settings |= {"run__checkpoint_every": 2, "run__eval_every": 1}
        return train_arguments(csv or self.csv, run, *more, **settings | OWN.get(method, {}))

    @property
    def csv(self) -> Path:
        table = self.folder / "tiny.csv"
        self.once(table, lambda: self.make_csv(self.folder / "tiny"))
        return table

    def once(self, path: Path, make: Callable[[], object]) -> None:
        """Make what is not there, while no other worker does."""
        self.folder.mkdir(exist_ok=True)
        with open(self.folder / f".{path.parent.name}-{path.name}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.exists():
                make()


def _usual_blocks() -> None:
    """Blocks of the usual size, also where a test of ranks makes the run: the last bits depend on them."""
    for (module, name), size in BLOCKS.items():
        setattr(module, name, size)


def _require(good: bool, log: Path) -> None:
    assert good, log.read_text("utf-8")
