"""How well a novelty score tells New from Old images."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata


def novelty_auroc(novelty: ArrayLike, is_new: ArrayLike) -> float:
    """The probability that a New image scores above an Old one (ties count half); nan if either is absent."""
    novelty, is_new = np.asarray(novelty, dtype=np.float64), np.asarray(is_new, dtype=bool)
    if novelty.shape != is_new.shape:
        raise ValueError(f"novelty and is_new must have one length, not {novelty.shape} and {is_new.shape}")
    new = int(is_new.sum())
    old = len(is_new) - new
    if not new or not old:
        return float("nan")
    return float((rankdata(novelty)[is_new].sum() - new * (new + 1) / 2) / (new * old))
