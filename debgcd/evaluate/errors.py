"""The four kinds of prediction error of the paper's appendix."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from debgcd.evaluate.accuracy import as_ids, matched_classes, mean_or_nan


@dataclass(frozen=True)
class ErrorKinds:
    """Shares of the Old images (first two) and of the New images (last two), 0..1; nan without such images."""

    true_old: float  # an Old image put into another Old class
    false_new: float  # an Old image put into a New class
    false_old: float  # a New image put into an Old class: the label bias that debiased learning is meant to reduce
    true_new: float  # a New image put into another New class


def error_kinds(truth: ArrayLike, predicted: ArrayLike, known: int) -> ErrorKinds:
    """Sort the wrong predictions by what they confuse, after the matching of `clustering_accuracy`.

    A surplus cluster stands for no class of the truth, so its images count as predicted New.
    """
    truth, predicted = as_ids(truth, predicted)
    given = matched_classes(truth, predicted)[predicted]
    wrong = given != truth
    said_old = (given >= 0) & (given < known)
    old = truth < known
    return ErrorKinds(
        true_old=mean_or_nan((wrong & said_old)[old]),
        false_new=mean_or_nan((wrong & ~said_old)[old]),
        false_old=mean_or_nan((wrong & said_old)[~old]),
        true_new=mean_or_nan((wrong & ~said_old)[~old]),
    )
