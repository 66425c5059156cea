"""Watches a run: does the network still know what it knew at its start? No truth is read here.

A healthy run ends as any other. A run that fails says so at once; where `run.watch` is `act`, it goes back to the best state
seen and ends there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.errors import DataError
from debgcd.infer.infer import features_shared
from debgcd.novelty.base import remembered
from debgcd.run.directory import Run
from debgcd.system import distributed
from debgcd.system.files import read_json, write_json
from debgcd.system.progress import say
from debgcd.train import checkpoint
from debgcd.train.setup import Setup

LOOKS = 6  # during a run, besides the one before the first step
IMAGES = 2000  # of the training images, evenly spaced, besides those held out

LEAST_RANK = 2.0  # effective dimensions of the features
LEAST_SPREAD = 0.01  # standard deviation of the novelty of all images
LARGEST = 0.5  # share of images in one category ...
GROWN = 0.25  # ... and how much larger than at the start
AGREEMENT_LOST = 0.15  # share of images, besides what chance may do


@dataclass(frozen=True)
class Signs:
    """What can be seen of a network without truth; None where there is nothing to see it by."""

    rank: (
        float  # effective dimensions of the unit-length features: (Σλ)² / Σλ² over the eigenvalues of their covariance
    )
    largest: float | None  # share of the unlabelled images in the largest category
    spread: float | None  # standard deviation of the novelty of unlabelled images
    held_out: float | None  # accuracy on labelled images that the loss never sees
    agreement: float | None  # share of unlabelled images that classifier and vote put on the same side

    @property
    def score(self) -> float:
        return (self.held_out or 0.0) + (self.agreement or 0.0)


class Watch:
    """The looks at one run, kept in health.json, so that a resumed run judges as if it had not stopped."""

    def __init__(self, run: Run, setup: Setup, first: int, steps: int):
        """first, steps: of the run, which may have been resumed."""
        self._run, self._setup, self._acts = run, setup, run.config.run.watch == "act"
        watched = setup.method.trains and run.config.run.watch != "off"
        self._at = {round(steps * i / LOOKS) for i in range(LOOKS + 1)} if watched else set()
        told = distributed.from_rank0(
            lambda: {str(step): asdict(signs) for step, signs in _read(run).items()} if first else {}
        )
        self._seen = {int(step): Signs(**signs) for step, signs in told.items() if int(step) <= first}
        self.kept: int | None = None  # step of the state that the run went back to
        last = self._seen.get(max(self._seen, default=0))
        self.problem = None if last is None else self._judge(last)

    def look(self, step: int) -> None:
        """After this many steps, if it is time to look: see, judge, keep the best state."""
        if step not in self._at:
            return
        signs = self._seen[step] = self._signs()  # alike on all ranks
        self.problem = self._judge(signs)
        if self._acts and (self.problem is None or not step):  # there is always the start to go back to
            # of equally good states the later one has learned more
            checkpoint.keep_best(self._place, step, self._setup.network, signs.score + 1e-9 * step)
        if self.problem is not None:
            say(f"warning: after {step} steps {self.problem}")
        self._write()

    def _judge(self, signs: Signs) -> str | None:
        free = int((self._setup.label < 0).sum())
        return problem(signs, self._seen.get(0, signs), int(self._setup.held.sum()), min(free, IMAGES))

    def go_back(self) -> None:
        """Return the network to the best state seen."""
        self.kept = checkpoint.restore_best(self._place, self._setup.network)
        self._write()
        say(f"training ends here, with the model of step {self.kept}, the best seen")

    @property
    def _place(self) -> Path:
        return self._run.checkpoints / "healthy"

    def _write(self) -> None:
        if distributed.rank() == 0:
            write_json(self._run.health, self.report())

    def report(self) -> dict[str, Any]:
        """What health.json says."""
        signs = {str(step): asdict(self._seen[step]) for step in sorted(self._seen)}
        return {"healthy": self.problem is None, "problem": self.problem, "kept_step": self.kept, "signs": signs}

    def _signs(self) -> Signs:
        """Rank 0 looks at the features that all ranks compute."""
        count = len(self._setup.label)
        some = np.unique(np.linspace(0, count - 1, min(count, IMAGES)).astype(np.int64))
        rows = np.union1d(some, np.flatnonzero(self._setup.held))
        feature = features_shared(self._setup.network, self._setup.tokens, rows)
        return Signs(**distributed.from_rank0(lambda: asdict(self._seen_in(feature, rows))))

    @torch.no_grad()
    def _seen_in(self, feature: Tensor, rows: NDArray[np.int64]) -> Signs:
        setup, method, network = self._setup, self._setup.method, self._setup.network
        learned = set(method.detectors) & network.learning
        asked = learned if method.clusters else {*method.answers, *learned}
        output = network.from_feature(feature, asked)
        free = torch.from_numpy(setup.label[rows] < 0).to(feature.device)
        before = remembered(network)
        novelty = method.novelty(output) if before is None else before[torch.from_numpy(rows).to(before.device)]
        largest = accuracy = agreement = None
        if not method.clusters:
            category = next(iter(method.scores(output).values())).argmax(1)
            largest = float(torch.bincount(category[free], minlength=1).amax() / free.sum().clamp_min(1))
            held = torch.from_numpy(setup.held[rows]).to(feature.device)
            if held.any():
                truth = torch.from_numpy(setup.label[rows]).to(feature.device)
                accuracy = float((category == truth)[held].double().mean())
            if before is not None and novelty is not None:
                same = (category >= setup.known) == (novelty > 0.5)
                agreement = float(same[free].double().mean())
        spread = None if novelty is None else float(novelty[free].double().std(correction=0))
        return Signs(effective_rank(feature), largest, spread, accuracy, agreement)


def _read(run: Run) -> dict[int, Signs]:
    """The looks so far, by step."""
    try:
        return {int(step): Signs(**signs) for step, signs in read_json(run.health)["signs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{run.health} cannot be read ({error}); restore it, or train in a new run directory"
        ) from error


def effective_rank(feature: Tensor) -> float:
    """(Σλ)² / Σλ² of the covariance of unit-length features: 1 if they differ along one line, or not at all."""
    unit = normalize(feature.double(), dim=1)
    centred = unit - unit.mean(0)
    gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    total = float(gram.diagonal().sum())
    return total**2 / float(gram.square().sum()) if total > 1e-9 * len(unit) else 1.0


def problem(now: Signs, start: Signs, held: int, free: int) -> str | None:
    """What is wrong, in words; None if nothing. held, free: labelled and unlabelled images that were looked at."""
    if now.rank < LEAST_RANK:
        return "all images look alike to the network (its features have collapsed)"
    if now.spread is not None and now.spread < LEAST_SPREAD:
        return "novelty is nearly the same for every image"
    if now.largest is not None and start.largest is not None and now.largest > max(LARGEST, start.largest + GROWN):
        return f"{100 * now.largest:.0f} % of the images are in one category ({100 * start.largest:.0f} % at the start)"
    if now.held_out is not None and start.held_out is not None and now.held_out < start.held_out - _chance(held):
        return (
            f"accuracy on {held} labelled images kept out of training fell from {100 * start.held_out:.0f} to "
            f"{100 * now.held_out:.0f} %"
        )
    lost = AGREEMENT_LOST + _chance(free)
    if now.agreement is not None and start.agreement is not None and now.agreement < start.agreement - lost:
        return (
            "known and new images are confused: classifier and neighbours agree on "
            f"{100 * now.agreement:.0f} % of them ({100 * start.agreement:.0f} % at the start)"
        )
    return None


def _chance(images: int) -> float:
    """By how much a share of so many images may fall by chance: two standard errors of one near 0.85."""
    return float(2 * (0.85 * 0.15 / max(1, images)) ** 0.5)
