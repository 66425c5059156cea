"""Work beside the training steps: logging, evaluation, checkpoints, requests to stop; `watch` adds a watch over the run's health."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd.data.manifest import Manifest
from debgcd.evaluate import score
from debgcd.model.optimiser import Optimiser
from debgcd.novelty.base import DETECTOR
from debgcd.run.categories import categories
from debgcd.run.directory import Run
from debgcd.run.predictions import prediction_table, to_csv
from debgcd.system import distributed
from debgcd.system.files import named_errors, parse_json, write_bytes, write_text
from debgcd.system.machine import optional
from debgcd.system.progress import Report, say
from debgcd.train import checkpoint
from debgcd.train.evaluation import evaluate_during_training, infer_unlabelled
from debgcd.train.setup import Setup

STEPS_KEPT = 1000  # latest logged steps whose hard labels are kept to measure their accuracy


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
