"""How good are the categories, where the truth is known: never used by training."""

from debgcd.evaluate.accuracy import Accuracy, balanced_accuracy, clustering_accuracy
from debgcd.evaluate.errors import ErrorKinds, error_kinds
from debgcd.evaluate.novelty import novelty_auroc
from debgcd.evaluate.scores import Scores, score

__all__ = [
    "Accuracy",
    "ErrorKinds",
    "Scores",
    "balanced_accuracy",
    "clustering_accuracy",
    "error_kinds",
    "novelty_auroc",
    "score",
]
