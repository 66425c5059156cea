"""How many categories: the estimate before training, for a run that leaves K open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd import config as configuration
from debgcd.cluster.estimate_k import Estimate, Way, estimate_k
from debgcd.files import write_json, write_text
from debgcd.model.backbone import Backbone
from debgcd.progress import progress, say
from debgcd.train.run import Run
from debgcd.train.setup import frozen_features
from debgcd.train.tokens import Tokens


def decide_k(run: Run, backbone: Backbone, tokens: Tokens) -> Run:
    """Estimate K for a run that leaves it open; written to estimate.json and config.yaml, so that `resume` keeps it."""
    label = run.manifest.training_labels
    found = estimate(frozen_features(backbone, tokens, run.manifest.training_paths), label, run.config.seed)
    k = min(found.k * run.config.k_times, len(label))
    times = f", {run.config.k_times} times that is" if run.config.k_times > 1 else ";"
    say(f"categories: about {found.k} ({found.low} to {found.high}){times} K = {k} (choose another with --k)")
    write_json(run.folder / "estimate.json", found.to_json())
    config = replace(run.config, k=k, prune=True)
    write_text(run.folder / "config.yaml", configuration.dump(config))
    return replace(run, config=config)


def estimate(
    features: Tensor, label: NDArray[np.int64], seed: int, way: Way = "consensus", most: int | None = None
) -> Estimate:
    """`estimate_k` with a progress bar, and a warning where little can be told."""
    if label.max() == 0:
        say(
            "categories: one known class cannot tell how wide a category is; do not trust the estimate, give --k a number"
        )
    with progress("estimating K") as report:
        return estimate_k(features.cpu(), torch.from_numpy(label), way=way, most=most, seed=seed, on_progress=report)
