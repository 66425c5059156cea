"""The images of a run to label next, from what is on disk: for `debgcd review RUN --next`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from debgcd.review.log import reviewed_predictions
from debgcd.review.page.similar import compute, read_features
from debgcd.review.state import OPEN
from debgcd.review.teach import teach_most
from debgcd.run.directory import Run
from debgcd.run.predictions import Prediction


def next_images(run: Run, cache: Path, count: int) -> list[Prediction]:
    """The rows of the images of a run to label next, as a reviewer left them."""
    rows, _ = reviewed_predictions(run.folder)
    number = {str(path): i for i, path in enumerate(run.manifest.training_paths)}
    rows = [row for row in rows if row["review"] == OPEN]
    training = np.array([number[row["path"]] for row in rows], np.int64)
    scene = [run.manifest.groups[row] for row in run.manifest.training_rows[training]]
    lead = np.array([row["top1_p"] - (row["top2_p"] or 0) for row in rows])
    category = np.array([row["category"] for row in rows], np.int64)
    feature = read_features(compute(run.folder, cache))[training]
    return [rows[i] for i in teach_most(feature, category, lead, scene, count)]
