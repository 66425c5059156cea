"""What is observed of a run from outside: metrics.jsonl, utilisation, accuracy. Only this file and finish.py read truth."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd.data.manifest import Manifest
from debgcd.evaluate import novelty_auroc, score
from debgcd.infer.infer import Inference
from debgcd.run.directory import Run
from debgcd.system import distributed
from debgcd.system.files import named_errors, parse_json, write_bytes
from debgcd.system.optional import optional
from debgcd.train.setup import Setup

STEPS = 1000  # whose hard labels are kept to be judged together


def measure(inference: Inference, truth: NDArray[np.int64], known: int) -> dict[str, Any]:
    """Every score of all classifiers and of the detector on images whose truth is known (>= 0), as JSON data."""
    have = truth >= 0
    scores = {
        name: score(truth[have], category[have], known).to_json()
        for name, category in {"gcd": inference.category, **inference.others}.items()
    }
    auroc = float("nan")
    if inference.novelty is not None:
        auroc = novelty_auroc(inference.novelty[have], truth[have] >= known)
    return {**scores, "auroc": None if np.isnan(auroc) else auroc}


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
