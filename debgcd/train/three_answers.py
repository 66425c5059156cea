"""What looks new at the end of a run, and the voters by which `predict` and later batches are judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.novelty.base import NoveltyThreshold
from debgcd.novelty.so_far import Origin, SoFar
from debgcd.run.directory import Run
from debgcd.run.predictions import Inference
from debgcd.system import distributed
from debgcd.train.setup import Setup

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Judged:
    """What looks new among the unlabelled training images."""

    so_far: SoFar  # all images of the run in their categories
    novel: NoveltyThreshold | None  # what `looks_new` goes by, with its errors
    none_p: NDArray[np.float32] | None  # (F,) of the unlabelled images; None: only a ranking is known, no probability


def judge(run: Run, setup: Setup, inference: Inference, novel: NoveltyThreshold | None) -> Judged | None:
    """None of what there was before this run: the labelled classes, and the living categories of the run it continues.

    inference: of the unlabelled images; novel: the threshold of the novelty. All ranks must call it; only rank 0 gets a result.
    """
    feature = setup.features()
    if distributed.rank():
        return None
    free, group = setup.label < 0, run.manifest.training_groups
    before = None if setup.before is None else setup.before.to(feature.device)
    origin = np.full(len(free), Origin.GIVEN) if before is None else before.origin.cpu().numpy()
    now = setup.label.copy()
    now[free] = inference.category
    voters = _voters(feature, now, np.where(free, Origin.FOUND, origin), group)
    if before is None:
        # a share of new images comes with a calibration alone
        calibrated = novel is not None and novel.share is not None
        return Judged(voters, novel, inference.novelty if calibrated else None)
    # an image that was there before is never new, so without others there is no error to state
    none_p, novel = before.judge(feature)
    return Judged(voters, novel, none_p.cpu().numpy()[free])


def _voters(feature: Tensor, category: Ids, origin: Ids, group: Ids) -> SoFar:
    ids = [torch.from_numpy(each).to(feature.device) for each in (category, origin, group)]
    return SoFar(feature.shape[1], len(feature)).to(feature.device).fit(feature, *ids)
