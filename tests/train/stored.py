"""What a view bank holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debgcd.tokens.bank import Bank


def every_view(bank: Bank) -> NDArray[np.int16]:
    """(N, views, ...) bits."""
    return bank[np.arange(bank.shape[0])[:, None], np.arange(bank.shape[1])[None]]
