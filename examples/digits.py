"""Small photographs that come with scikit-learn, so that the examples need no download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits


def digits(count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The first handwritten digits, (N, 8, 8), and which digit each shows, (N,)."""
    every = load_digits()
    return np.round(every.images[:count] * (255 / 16)).astype(np.uint8), every.target[:count]
