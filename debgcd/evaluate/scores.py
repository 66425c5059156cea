"""All measures of one classifier on one set of images, and their JSON form."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import ArrayLike
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from debgcd.evaluate.accuracy import Accuracy, as_ids, balanced_accuracy, clustering_accuracy, mean_or_nan
from debgcd.evaluate.errors import ErrorKinds, error_kinds


@dataclass(frozen=True)
class Scores:
    """What is reported of a classifier's categories; every value 0..1 (ARI down to −1), nan where undefined."""

    images: int
    accuracy: Accuracy
    balanced: float
    named: (
        float  # of Old images, the share in the known class of their own number: no matching, so no truth of New ones
    )
    nmi: float
    ari: float
    errors: ErrorKinds

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, with null for nan: JSON knows no nan."""
        return _null_for_nan(asdict(self))


def score(truth: ArrayLike, predicted: ArrayLike, known: int) -> Scores:
    """Measure predicted categories against the truth; truth < known is Old."""
    truth, predicted = as_ids(truth, predicted)
    images = len(truth)
    return Scores(
        images=images,
        accuracy=clustering_accuracy(truth, predicted, known),
        balanced=balanced_accuracy(truth, predicted),
        named=mean_or_nan((predicted == truth)[truth < known]),
        nmi=float(normalized_mutual_info_score(truth, predicted)) if images else math.nan,
        ari=float(adjusted_rand_score(truth, predicted)) if images else math.nan,
        errors=error_kinds(truth, predicted, known),
    )


def _null_for_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _null_for_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
