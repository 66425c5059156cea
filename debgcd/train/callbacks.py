"""What happens beside the steps of a training: logging, evaluation, a watch over its health, checkpoints, requests to stop.

The watch needs no truth: it looks at the network a few times, says what is wrong, and where `run.watch` is `act` goes back to the
best state seen and ends training there.
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
from debgcd.run.directory import Run
from debgcd.system import distributed
from debgcd.system.files import named_errors, parse_json, read_json, readable, write_bytes, write_json
from debgcd.system.machine import optional
from debgcd.system.progress import Report, say
from debgcd.train import checkpoint
from debgcd.train.evaluation import evaluate_during_training
from debgcd.train.setup import Setup

STEPS = 1000  # whose hard labels are kept to be judged together


@dataclass(frozen=True)
class Done:
    """A finished step, as callbacks see it."""

    step: int  # how many are done
    images: NDArray[np.int64]  # (B,)
    values: Mapping[str, float]  # the loss, the gradient's norm, the terms
    hard_label: NDArray[np.int64] | None  # (V·B,)
    lr: float
    epoch: float  # passes over the data so far
    epochs: int | None  # whole passes, where one has just ended
    last: bool
    stop: bool  # any rank was asked to stop before the step ended


class Callback:
    """Work beside the steps. All ranks call it alike."""

    def before_training(self) -> None:
        """Before the first step of a new run; not when a run is resumed."""

    def after_step(self, done: Done) -> bool:
        """Whether training goes on; if not, callbacks after this one are not called."""
        return True


class Log(Callback):
    """A line in metrics.jsonl and a note at the progress bar every `run.log_every` steps."""

    def __init__(self, run: Run, metrics: Metrics, utilisation: Utilisation, report: Report, steps: int):
        self._every, self._metrics, self._utilisation = run.config.run.log_every, metrics, utilisation
        self._report, self._steps = report, steps

    def after_step(self, done: Done) -> bool:
        self._metrics.seen(len(done.images))
        if done.step % self._every == 0 or done.last:
            shares = self._utilisation.shares(done.hard_label, done.images)
            values = {**done.values, "epoch": done.epoch, "lr": done.lr, **shares}
            values["images_per_second"] = self._metrics.images_per_second()
            self._metrics.write(done.step, values)
            note = f"loss {values['loss']:.3f} · {values['images_per_second']:.0f} images/s"
            self._report(done.step, self._steps, note)
        return True


class Evaluate(Callback):
    """Scores every `run.eval_every` epochs where there is truth; `model_kept: best-old` keeps the best network by them."""

    def __init__(self, run: Run, setup: Setup, metrics: Metrics, utilisation: Utilisation):
        self._run, self._setup, self._metrics, self._utilisation = run, setup, metrics, utilisation
        self._keeps_best = run.manifest.has_truth and run.config.model_kept == "best-old"

    def before_training(self) -> None:
        method = self._setup.method
        if self._run.manifest.has_truth and method.trains and not method.clusters:
            self._metrics.write(0, {"evaluation": evaluate_during_training(self._run, self._setup)})

    def after_step(self, done: Done) -> bool:
        ended = done.epochs is not None and done.epochs % self._run.config.run.eval_every == 0
        if (self._keeps_best and done.last) or (self._run.manifest.has_truth and not done.last and ended):
            scores = evaluate_during_training(self._run, self._setup)
            self._metrics.write(done.step, {"evaluation": scores, **self._utilisation.hard_labels()})
            if self._keeps_best and "test" in scores:
                old = scores["test"]["gcd"]["accuracy"]["old"]
                checkpoint.keep_best(self._run.checkpoints / "best", done.step, self._setup.network, old)
        return True


class Checkpoints(Callback):
    """A checkpoint every `run.checkpoint_every` steps, and where the run is asked to stop; the last step's is the loop's."""

    def __init__(self, run: Run, setup: Setup, optimiser: Optimiser | None, digest: str, stop: threading.Event):
        self._run, self._setup, self._optimiser, self._digest, self._stop = run, setup, optimiser, digest, stop

    def after_step(self, done: Done) -> bool:
        stopped = done.stop or (distributed.count() == 1 and self._stop.is_set())  # one rank need not ask the others
        if not done.last and (stopped or done.step % self._run.config.run.checkpoint_every == 0):
            self.save(done.step)
        if not done.last and stopped:
            distributed.barrier()  # until it is saved
            raise Interrupted
        return True

    def save(self, step: int) -> None:
        keep = self._run.config.run.keep
        checkpoint.save(self._run.checkpoints, step, self._setup.network, self._optimiser, keep, self._digest)


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; it was saved and can be resumed."""


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a termination signal sets, so that a step is never cut in two; a second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread can handle signals
        return

    def request(number: int, frame: object) -> None:
        if stop.is_set() and not distributed.launched():  # a launcher may pass a signal on that arrived here, too
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Metrics:
    """metrics.jsonl, one line per logged step and per evaluation; a resumed run goes on after the step it resumes from."""

    def __init__(self, run: Run, first_step: int):
        self._path = run.metrics if distributed.rank() == 0 else Path(os.devnull)
        self._evaluated: set[int] = set()  # steps whose evaluation is logged
        self._keep_before(first_step)
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._board = _tensorboard(run) if run.config.run.tensorboard and distributed.rank() == 0 else None
        self._since, self._images = time.monotonic(), 0

    def _keep_before(self, step: int) -> None:
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
                break  # a line cut short when the run was killed, or a damaged one: nothing good follows it
        write_bytes(self._path, b"".join(kept))

    def seen(self, images: int) -> None:
        self._images += images

    def images_per_second(self) -> float:
        """Since the last call."""
        now = time.monotonic()
        rate = self._images / max(1e-9, now - self._since)
        self._since, self._images = now, 0
        return rate

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """One line; `step` counts finished steps. A step's evaluation is logged once.

        The end of a run evaluates the last step again; with best-old that is another model, and evaluation.json has its scores.
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
    """What the debiased classifier was taught: which share of the unlabelled rows, and how often rightly.

    For Old and New apart where truth is known.
    """

    def __init__(self, manifest: Manifest, setup: Setup):
        self._unlabelled, self._known = setup.label < 0, setup.known
        self._truth = manifest.truth_ids(manifest.training_rows)
        self._taught: deque[tuple[NDArray[np.int64], NDArray[np.int64]]] = deque(maxlen=STEPS)  # truth, hard label

    def shares(self, hard_label: NDArray[np.int64] | None, images: NDArray[np.int64]) -> dict[str, float]:
        """Of one step, whose hard labels are kept for `hard_labels`.

        hard_label: (V·B,) of the rows of all views, -1 where none, None where the method has none; images: (B,).
        """
        if hard_label is None:
            return {}
        rows = np.tile(images, len(hard_label) // len(images))
        truth, used = self._truth[rows], hard_label >= 0
        free, new = self._unlabelled[rows], truth >= self._known
        groups = {"used": free, "used_old": free & (truth >= 0) & ~new, "used_new": free & new}
        told = used & (truth >= 0)
        self._taught.append((truth[told], hard_label[told]))
        return {name: float(used[group].mean()) if group.any() else float("nan") for name, group in groups.items()}

    def hard_labels(self) -> dict[str, Any]:
        """How many of the latest steps' hard labels were right, after one matching; since the last call at most."""
        if not self._taught:
            return {}
        truth, label = (np.concatenate(column) for column in zip(*self._taught, strict=True))
        self._taught.clear()
        return {"hard_labels": score(truth, label, self._known).to_json()["accuracy"]} if len(truth) else {}


def _tensorboard(run: Run) -> Callable[[str, float, int], None]:
    optional("tensorboard", "tensorboard", "run.tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run.folder / "tensorboard")).add_scalar


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


class Watch(Callback):
    """The looks at one run, kept in health.json, so that a resumed run judges as if it had not stopped."""

    def __init__(self, run: Run, setup: Setup, first: int, steps: int):
        """first, steps: of the run, which may have been resumed."""
        self._run, self._setup, self._acts = run, setup, run.config.run.watch == "act"
        watched = setup.method.trains and run.config.run.watch != "off"
        self._at = {round(steps * i / LOOKS) for i in range(LOOKS + 1)} if watched else set()
        told, self._labels = distributed.from_rank0(lambda: _read(run) if first else ({}, []))
        self._seen = {int(step): Signs(**signs) for step, signs in told.items() if int(step) <= first}
        self.kept: int | None = None  # step of the state that the run went back to
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

    def after_step(self, done: Done) -> bool:
        """Look if it is time; where the run acts on a problem, go back to the best state and end."""
        self.look(done.step)
        if self.problem is None or not self._acts:
            return True
        self.go_back()
        return False

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
        return problem(signs, self._seen.get(0, signs), int(self._setup.held_out.sum()), min(free, IMAGES))

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
        found = {"healthy": self.problem is None and not self._labels, "problem": self.problem, "labels": self._labels}
        return found | {"kept_step": self.kept, "signs": signs}

    def _signs(self) -> Signs:
        """Rank 0 looks at the features that all ranks compute."""
        count = len(self._setup.label)
        some = np.unique(np.linspace(0, count - 1, min(count, IMAGES)).astype(np.int64))
        rows = np.union1d(some, np.flatnonzero(self._setup.held_out))
        feature = self._setup.features_of(rows)
        return Signs(**distributed.from_rank0(lambda: asdict(self._seen_in(feature, rows))))

    @torch.no_grad()
    def _seen_in(self, feature: Tensor, rows: NDArray[np.int64]) -> Signs:
        setup, method, network = self._setup, self._setup.method, self._setup.network
        learned = {DETECTOR} & network.learning
        asked = learned if method.clusters else {*method.answers, *learned}
        output = network.from_feature(feature, asked)
        free = torch.from_numpy(setup.label[rows] < 0).to(feature.device)
        before = remembered(network)
        novelty = method.novelty(output) if before is None else before[torch.from_numpy(rows).to(before.device)]
        largest = accuracy = agreement = None
        if not method.clusters:
            category = next(iter(method.scores(output).values())).argmax(1)
            largest = float(torch.bincount(category[free], minlength=1).amax() / free.sum().clamp_min(1))
            held = torch.from_numpy(setup.held_out[rows]).to(feature.device)
            if held.any():
                truth = torch.from_numpy(setup.label[rows]).to(feature.device)
                accuracy = float((category == truth)[held].double().mean())
            if before is not None and novelty is not None:
                same = (category >= setup.known) == (novelty > 0.5)
                agreement = float(same[free].double().mean())
        spread = None if novelty is None else float(novelty[free].double().std(correction=0))
        return Signs(effective_rank(feature), largest, spread, accuracy, agreement)


def _read(run: Run) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The looks so far, by step, and what was said of the labels."""
    with readable(run.health, "restore it, or train in a new run directory"):
        found = read_json(run.health)
        signs = {str(int(step)): asdict(Signs(**signs)) for step, signs in found["signs"].items()}
        return signs, [str(warning) for warning in found.get("labels", [])]


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
