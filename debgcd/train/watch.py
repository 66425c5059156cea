"""A watch over a run's health, which needs no truth.

It measures the network a few times during a run and warns if it goes wrong; with `run.watch: act` it then restores the best state
so far and ends training.
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

from debgcd.novelty.base import DETECTOR, remembered
from debgcd.novelty.suspicious_labels import check_labels
from debgcd.run.directory import Run
from debgcd.system import distributed
from debgcd.system.files import read_json, readable, write_json
from debgcd.system.progress import say
from debgcd.train import checkpoint
from debgcd.train.callbacks import Callback, FinishedStep
from debgcd.train.setup import Setup

LOOKS = 6  # during a run, besides the one before the first step
IMAGES_WATCHED = 2000  # training images, evenly spaced, besides those held out
LEAST_RANK = 2.0  # effective dimensions of the features
LEAST_SPREAD = 0.01  # standard deviation of the novelty of all images
LARGEST_SHARE = 0.5  # of the images in one category; only a problem if it also grew by GROWN
GROWN = 0.25  # increase of that share since the start
NAMES_LOST = 0.2  # by which the classifier may be worse than the nearest labelled image
AGREEMENT_LOST = 0.15  # decrease of the agreement since the start, in addition to what chance explains


@dataclass(frozen=True)
class Signs:
    """Measurements of a network that need no truth; None where one cannot be taken."""

    rank: float  # see `effective_rank`
    largest: float | None  # share of the unlabelled images in the largest category
    spread: float | None  # standard deviation of the novelty of unlabelled images
    held_out: float | None  # accuracy on labelled images that the loss never sees
    agreement: float | None  # share of unlabelled images that classifier and vote put on the same side
    neighbours: float | None = None  # as held_out, if each image took the class of the nearest labelled one

    @property
    def score(self) -> float:
        """How good the state is, to choose the best."""
        return (self.held_out or 0.0) + (self.agreement or 0.0)


class Watch(Callback):
    """Measures the network a few times in a run. health.json keeps the results, so that a resumed run decides the same."""

    def __init__(self, run: Run, setup: Setup, first: int, steps: int):
        """first: the step to resume from, 0 for a new run; steps: the length of the run."""
        self._run, self._setup, self._acts = run, setup, run.config.run.watch == "act"
        watched = setup.method.trains and run.config.run.watch != "off"
        self._at = {round(steps * i / LOOKS) for i in range(LOOKS + 1)} if watched else set()
        saved, self._labels = distributed.from_rank0(lambda: _read(run) if first and watched else ({}, []))
        self._seen = {int(step): Signs(**signs) for step, signs in saved.items() if int(step) <= first}
        self.kept: int | None = None  # step of the state that was restored; None: none was
        last = self._seen.get(max(self._seen, default=0))
        self.problem = None if last is None else self._judge(last)

    def before_training(self) -> None:
        self._look_at_labels()
        self.look(0)

    def _look_at_labels(self) -> None:
        """By the pretrained network, compare all labels with the images; what is wrong is said now and at the end."""
        setup = self._setup
        if self._run.config.run.watch == "off" or not setup.at_start or setup.known < 2:
            return
        feature = setup.features()
        label, group = torch.from_numpy(setup.label), torch.from_numpy(self._run.manifest.training_groups)
        self._labels = distributed.from_rank0(lambda: check_labels(feature.cpu(), label, group).warnings)
        for warning in self._labels:
            say(f"warning: {warning}")
        if self._labels:
            self._write()

    def after_step(self, done: FinishedStep) -> bool:
        """Measure if it is due; on a problem, with `run.watch: act`, restore the best state and end training."""
        self.look(done.step)
        if self.problem is None or not self._acts:
            return True
        self.go_back()
        return False

    def look(self, step: int) -> None:
        """If a measurement is due after this step: take it, judge it, keep the best state."""
        if step not in self._at:
            return
        signs = self._seen[step] = self._signs()
        self.problem = self._judge(signs)
        # the start is kept even with a problem, so that there is always a state to restore
        if self._acts and (self.problem is None or not step):
            # among equally good states the later one has learned more
            checkpoint.keep_best(self._healthy, step, self._setup.network, signs.score + 1e-9 * step)
        if self.problem is not None:
            say(f"warning: after {step} steps {self.problem}")
        lost = names_lost(signs, int(self._setup.held_out.sum())) if step == max(self._at) else None
        if lost is not None:
            say(f"warning: {lost}")
            self._labels = [*self._labels, lost]
        self._write()

    def _judge(self, signs: Signs) -> str | None:
        unlabelled = int((self._setup.label < 0).sum())
        held_out = int(self._setup.held_out.sum())
        return problem(signs, self._seen.get(0, signs), held_out, min(unlabelled, IMAGES_WATCHED))

    def go_back(self) -> None:
        """Restore the best state."""
        self.kept = checkpoint.restore_best(self._healthy, self._setup.network)
        self._write()
        say(f"training stopped; keeping the best model, from step {self.kept}")

    @property
    def _healthy(self) -> Path:
        """The folder of the best state."""
        return self._run.checkpoints / "healthy"

    def _write(self) -> None:
        if distributed.rank() == 0:
            write_json(self._run.health, self.report())

    def report(self) -> dict[str, Any]:
        """The content of health.json."""
        signs = {str(step): asdict(self._seen[step]) for step in sorted(self._seen)}
        found = {"healthy": self.problem is None and not self._labels, "problem": self.problem, "labels": self._labels}
        return found | {"kept_step": self.kept, "signs": signs}

    def _signs(self) -> Signs:
        """Measure the network; all ranks compute features, rank 0 evaluates them, and all get the same result."""
        count = len(self._setup.label)
        spaced = np.unique(np.linspace(0, count - 1, min(count, IMAGES_WATCHED)).astype(np.int64))
        rows = np.union1d(spaced, np.flatnonzero(self._setup.held_out))
        feature = self._setup.features_of(rows)
        return Signs(**distributed.from_rank0(lambda: asdict(self._signs_of(feature, rows))))

    @torch.no_grad()
    def _signs_of(self, feature: Tensor, rows: NDArray[np.int64]) -> Signs:
        """Measure from the features (n, width) of these training images (n,)."""
        setup, method, network = self._setup, self._setup.method, self._setup.network
        learned = {DETECTOR} & network.learning
        heads = learned if method.clusters else {*method.answers, *learned}
        output = network.from_feature(feature, heads)
        unlabelled = torch.from_numpy(setup.label[rows] < 0).to(feature.device)
        before = remembered(network)
        novelty = method.novelty(output) if before is None else before[torch.from_numpy(rows).to(before.device)]
        largest = accuracy = agreement = neighbours = None
        if not method.clusters:
            category = next(iter(method.scores(output).values())).argmax(1)
            largest = float(torch.bincount(category[unlabelled], minlength=1).amax() / unlabelled.sum().clamp_min(1))
            held_out = torch.from_numpy(setup.held_out[rows]).to(feature.device)
            if held_out.any():
                label = torch.from_numpy(setup.label[rows]).to(feature.device)
                accuracy = float((category == label)[held_out].double().mean())
                neighbours = by_the_nearest(feature, label, held_out)
            if before is not None and novelty is not None:
                same_side = (category >= setup.known) == (novelty > 0.5)
                agreement = float(same_side[unlabelled].double().mean())
        spread = None if novelty is None else float(novelty[unlabelled].double().std(correction=0))
        return Signs(effective_rank(feature), largest, spread, accuracy, agreement, neighbours)


def _read(run: Run) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The measurements in health.json, by step, and the warnings about labels."""
    with readable(run.health, "restore it, or train in a new run directory"):
        found = read_json(run.health)
        signs = {str(int(step)): asdict(Signs(**signs)) for step, signs in found["signs"].items()}
        return signs, [str(warning) for warning in found.get("labels", [])]


def effective_rank(feature: Tensor) -> float:
    """Effective dimensions of unit-length features: (Σλ)² / Σλ² over the eigenvalues λ of their covariance.

    It is 1 if the features differ along one line, or not at all.
    """
    unit = normalize(feature.double(), dim=1)
    centred = unit - unit.mean(0)
    gram = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    total = float(gram.diagonal().sum())
    return total**2 / float(gram.square().sum()) if total > 1e-9 * len(unit) else 1.0


def by_the_nearest(feature: Tensor, label: Tensor, held_out: Tensor) -> float | None:
    """The share of held-out images whose nearest other labelled image is of their class; None without others.

    feature (n, width); label (n,), -1 for none; held_out (n,) bool.
    """
    unit, others = normalize(feature, dim=1), (label >= 0) & ~held_out
    if not others.any():
        return None
    nearest = (unit[held_out] @ unit[others].T).argmax(1)
    return float((label[others][nearest] == label[held_out]).double().mean())


def names_lost(end: Signs, held_out: int) -> str | None:
    """A sentence if the trained classifier gives held-out images their own class much less often than their neighbours do."""
    if end.held_out is None or end.neighbours is None or end.held_out > end.neighbours - NAMES_LOST - _chance(held_out):
        return None
    return (
        f"of {held_out} labelled images kept out of training, the classifier gives {100 * end.held_out:.0f} % their class, "
        f"their nearest labelled images {100 * end.neighbours:.0f} %; names of known classes may be mixed up"
    )


def problem(now: Signs, start: Signs, held_out: int, unlabelled: int) -> str | None:
    """A sentence about the first problem found, or None. held_out, unlabelled: numbers of images measured."""
    if now.rank < LEAST_RANK:
        return "all images look alike to the network (its features have collapsed)"
    if now.spread is not None and now.spread < LEAST_SPREAD:
        return "novelty is nearly the same for every image"
    if (
        now.largest is not None
        and start.largest is not None
        and now.largest > max(LARGEST_SHARE, start.largest + GROWN)
    ):
        return f"{100 * now.largest:.0f} % of the images are in one category ({100 * start.largest:.0f} % at the start)"
    if now.held_out is not None and start.held_out is not None and now.held_out < start.held_out - _chance(held_out):
        return (
            f"accuracy on {held_out} labelled images kept out of training fell from {100 * start.held_out:.0f} to "
            f"{100 * now.held_out:.0f} %"
        )
    lost = AGREEMENT_LOST + _chance(unlabelled)
    if now.agreement is not None and start.agreement is not None and now.agreement < start.agreement - lost:
        return (
            "known and new images are confused: classifier and neighbours agree on "
            f"{100 * now.agreement:.0f} % of them ({100 * start.agreement:.0f} % at the start)"
        )
    return None


def _chance(images: int) -> float:
    """How far a share measured on `images` images may fall by chance: two standard errors of a share of 0.85."""
    return float(2 * (0.85 * 0.15 / max(1, images)) ** 0.5)
