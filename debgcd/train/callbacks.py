"""Work beside the training steps: logging, evaluation, a watch over the run's health, checkpoints, requests to stop.

The watch needs no truth. It measures the network a few times during a run and warns if it goes wrong; with `run.watch: act` it
then restores the best state so far and ends training.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.data.manifest import Manifest
from debgcd.evaluate import score
from debgcd.model.optimiser import Optimiser
from debgcd.novelty.base import DETECTOR, remembered
from debgcd.novelty.suspicious_labels import check_labels
from debgcd.run.categories import categories
from debgcd.run.directory import Run
from debgcd.run.predictions import prediction_table, to_csv
from debgcd.system import distributed
from debgcd.system.files import named_errors, parse_json, read_json, readable, write_bytes, write_json, write_text
from debgcd.system.machine import optional
from debgcd.system.progress import Report, say
from debgcd.train import checkpoint
from debgcd.train.evaluation import evaluate_during_training, infer_unlabelled
from debgcd.train.setup import Setup

STEPS_KEPT = 1000  # latest logged steps whose hard labels are kept to measure their accuracy

# Of the watch:
LOOKS = 6  # during a run, besides the one before the first step
IMAGES_WATCHED = 2000  # training images, evenly spaced, besides those held out
LEAST_RANK = 2.0  # effective dimensions of the features
LEAST_SPREAD = 0.01  # standard deviation of the novelty of all images
LARGEST_SHARE = 0.5  # of the images in one category; only a problem if it also grew by GROWN
GROWN = 0.25  # increase of that share since the start
NAMES_LOST = 0.2  # by which the classifier may be worse than the nearest labelled image
AGREEMENT_LOST = 0.15  # decrease of the agreement since the start, in addition to what chance explains


@dataclass(frozen=True)
class FinishedStep:
    """The input of callbacks after a step."""

    step: int  # number of finished steps, including this one
    images: NDArray[np.int64]  # (B,) the training images of the batch
    # the loss, the norm of its gradient, and the terms of the loss
    values: Mapping[str, float]
    hard_label: NDArray[np.int64] | None  # (V·B,) see `Loss`
    lr: float
    epoch: float  # passes over the data so far
    epochs: int | None  # number of whole passes if the step ends one, else None
    last: bool  # the last step of the run
    stop: bool  # whether any rank was asked to stop before the step ended


class Callback:
    """Work beside the steps. All ranks make the same calls."""

    def before_training(self) -> None:
        """Runs before the first step of a new run; not when a run is resumed."""

    def after_step(self, done: FinishedStep) -> bool:
        """Runs after each step; returns whether to continue. If not, the callbacks after this one are not called."""
        return True


class Log(Callback):
    """Writes a line of metrics.jsonl and updates the progress bar every `run.log_every` steps."""

    def __init__(self, run: Run, metrics: Metrics, utilisation: Utilisation, report: Report, steps: int):
        self._every, self._metrics, self._utilisation = run.config.run.log_every, metrics, utilisation
        self._report, self._steps = report, steps

    def after_step(self, done: FinishedStep) -> bool:
        self._metrics.count_images(len(done.images))
        if done.step % self._every == 0 or done.last:
            shares = self._utilisation.shares(done.hard_label, done.images)
            values = {**done.values, "epoch": done.epoch, "lr": done.lr, **shares}
            values["images_per_second"] = self._metrics.images_per_second()
            self._metrics.write(done.step, values)
            note = f"loss {values['loss']:.3f} · {values['images_per_second']:.0f} images/s"
            self._report(done.step, self._steps, note)
        return True


class FirstAnswer(Callback):
    """Writes the frozen answer before training, if the method has one, so that there is something to look at in the meantime."""

    def __init__(self, run: Run, setup: Setup):
        self._run, self._setup = run, setup

    def before_training(self) -> None:
        method, manifest = self._setup.method, self._run.manifest
        if method.final_answers == method.answers:
            return
        inference = infer_unlabelled(self._setup, {*method.final_answers, DETECTOR})
        if distributed.rank():
            return
        paths = [manifest.paths[row] for row in manifest.training_rows[self._setup.label < 0]]
        table = prediction_table(paths, inference, categories(manifest.classes, method.sizes.k), None)
        write_text(self._run.start, to_csv(table))
        say(f"first answer: {self._run.start}, from the features before training, which improves them now")


class Evaluate(Callback):
    """Evaluates every `run.eval_every` epochs if truth is known; with `model_kept: best-old` also keeps the best network."""

    def __init__(self, run: Run, setup: Setup, metrics: Metrics, utilisation: Utilisation):
        self._run, self._setup, self._metrics, self._utilisation = run, setup, metrics, utilisation
        self._keeps_best = run.manifest.has_truth and run.config.model_kept == "best-old"

    def before_training(self) -> None:
        method = self._setup.method
        if self._run.manifest.has_truth and method.trains and not method.clusters:
            self._metrics.write(0, {"evaluation": evaluate_during_training(self._run, self._setup)})

    def after_step(self, done: FinishedStep) -> bool:
        is_due = done.epochs is not None and done.epochs % self._run.config.run.eval_every == 0
        # the end of a run evaluates its last step anyway; best-old needs those scores earlier
        if (self._keeps_best and done.last) or (self._run.manifest.has_truth and not done.last and is_due):
            scores = evaluate_during_training(self._run, self._setup)
            self._metrics.write(done.step, {"evaluation": scores, **self._utilisation.hard_labels()})
            if self._keeps_best and "test" in scores:
                old = scores["test"]["gcd"]["accuracy"]["old"]
                checkpoint.keep_best(self._run.checkpoints / "best", done.step, self._setup.network, old)
        return True


class Checkpoints(Callback):
    """Saves a checkpoint every `run.checkpoint_every` steps and on a request to stop; `fit` saves the last step's."""

    def __init__(self, run: Run, setup: Setup, optimiser: Optimiser | None, digest: str, stop: threading.Event):
        self._run, self._setup, self._optimiser, self._digest, self._stop = run, setup, optimiser, digest, stop

    def after_step(self, done: FinishedStep) -> bool:
        # a single rank need not agree with others, so it also sees a request that came after the loss
        stopped = done.stop or (distributed.count() == 1 and self._stop.is_set())
        if not done.last and (stopped or done.step % self._run.config.run.checkpoint_every == 0):
            self.save(done.step)
        if not done.last and stopped:
            # wait until rank 0 has saved the checkpoint
            distributed.barrier()
            raise Interrupted
        return True

    def save(self, step: int) -> None:
        keep = self._run.config.run.keep
        checkpoint.save(self._run.checkpoints, step, self._setup.network, self._optimiser, keep, self._digest)


class Interrupted(KeyboardInterrupt):
    """Raised after a request to stop, when a checkpoint is saved."""


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, so that the current step is finished; a second signal raises KeyboardInterrupt."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread can handle signals
        return

    def request(number: int, frame: object) -> None:
        # under a launcher one signal may arrive twice: directly, and passed on by the launcher
        if stop.is_set() and not distributed.launched():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Metrics:
    """Writer of metrics.jsonl: a line per logged step and per evaluation. Lines after the step to resume from are removed."""

    def __init__(self, run: Run, first_step: int):
        self._path = run.metrics if distributed.rank() == 0 else Path(os.devnull)
        self._evaluated: set[int] = set()  # steps whose evaluation is logged
        self._keep_until(first_step)
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._board = _tensorboard(run) if run.config.run.tensorboard and distributed.rank() == 0 else None
        self._since, self._images = time.monotonic(), 0

    def _keep_until(self, step: int) -> None:
        """Remove the lines after this step, which will be written again."""
        if not self._path.exists():
            return
        kept = []
        for line in self._path.read_bytes().splitlines():
            try:
                entry = parse_json(line.decode("utf-8"))
                if entry["step"] <= step:
                    kept.append(line + b"\n")
                    self._evaluated |= {entry["step"]} if "evaluation" in entry else set()
            except (ValueError, KeyError, TypeError):
                # a line cut short by a kill, or a damaged one; what follows is dropped, too
                break
        write_bytes(self._path, b"".join(kept))

    def count_images(self, images: int) -> None:
        """Count the images of a step, for `images_per_second`."""
        self._images += images

    def images_per_second(self) -> float:
        """The rate since the last call."""
        now = time.monotonic()
        rate = self._images / max(1e-9, now - self._since)
        self._since, self._images = now, 0
        return rate

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """One line; `step` counts finished steps. A step's evaluation is logged once.

        At its end a run with `model_kept: best-old` evaluates another model than that of the last step; its scores are in
        evaluation.json only.
        """
        if "evaluation" in values:
            if step in self._evaluated:
                return
            self._evaluated.add(step)
        plain = {
            name: None if isinstance(value, float) and np.isnan(value) else value for name, value in values.items()
        }
        with named_errors(self._path):
            self._file.write(json.dumps({"step": step, **plain}) + "\n")
            self._file.flush()
        if self._board is not None:
            for name, value in plain.items():
                if isinstance(value, (int, float)):
                    self._board(name, value, step)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


class Utilisation:
    """How many unlabelled rows have a hard label for the debiased classifier, and how many of these labels are right.

    Shares are given for Old and New rows separately, accuracy only where truth is known.
    """

    def __init__(self, manifest: Manifest, setup: Setup):
        self._unlabelled, self._known = setup.label < 0, setup.known
        self._truth = manifest.truth_ids(manifest.training_rows)
        # (truth, hard label) of the rows that have both, per step
        self._steps: deque[tuple[NDArray[np.int64], NDArray[np.int64]]] = deque(maxlen=STEPS_KEPT)

    def shares(self, hard_label: NDArray[np.int64] | None, images: NDArray[np.int64]) -> dict[str, float]:
        """The shares of one step, whose hard labels are also kept for `hard_labels`.

        hard_label: (V·B,), -1 for none; None if the method has no hard labels. images: (B,).
        """
        if hard_label is None:
            return {}
        rows = np.tile(images, len(hard_label) // len(images))
        truth, used = self._truth[rows], hard_label >= 0
        unlabelled, new = self._unlabelled[rows], truth >= self._known
        groups = {"used": unlabelled, "used_old": unlabelled & (truth >= 0) & ~new, "used_new": unlabelled & new}
        measurable = used & (truth >= 0)
        self._steps.append((truth[measurable], hard_label[measurable]))
        return {name: float(used[group].mean()) if group.any() else float("nan") for name, group in groups.items()}

    def hard_labels(self) -> dict[str, Any]:
        """The accuracy, after one matching, of the hard labels of logged steps since the last call, at most STEPS_KEPT."""
        if not self._steps:
            return {}
        truth, label = (np.concatenate(column) for column in zip(*self._steps, strict=True))
        self._steps.clear()
        return {"hard_labels": score(truth, label, self._known).to_json()["accuracy"]} if len(truth) else {}


def _tensorboard(run: Run) -> Callable[[str, float, int], None]:
    optional("tensorboard", "tensorboard", "run.tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run.folder / "tensorboard")).add_scalar


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
