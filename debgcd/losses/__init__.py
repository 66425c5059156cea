"""The paper's equations as pure functions, one file for each group; `docs/paper.md` maps them all.

`orca`, `uno` and `mugcd` hold those of the methods that the paper is compared with.

Shapes: B images, two views stacked as 2B rows (i and i+B are the views of one image), K categories, M known ones. Every
function is defined on empty sets: it returns a zero that is still part of the graph.
"""

from debgcd.losses.classifier import mean_entropy, self_distillation, supervised
from debgcd.losses.contrastive import info_nce, supervised_contrastive
from debgcd.losses.debiased import accepted, certainty, consistent, debiased_unlabelled, on_side
from debgcd.losses.detector import (
    novelty,
    one_vs_all_consistency,
    one_vs_all_entropy,
    one_vs_all_labelled,
    one_vs_all_unlabelled,
)
from debgcd.losses.mugcd import momentum, teacher_distillation
from debgcd.losses.orca import margin_supervised, pairwise, partners, uncertainty
from debgcd.losses.uno import sinkhorn, swapped, swapped_targets

__all__ = [
    "accepted",
    "certainty",
    "consistent",
    "debiased_unlabelled",
    "info_nce",
    "margin_supervised",
    "mean_entropy",
    "momentum",
    "novelty",
    "on_side",
    "one_vs_all_consistency",
    "one_vs_all_entropy",
    "one_vs_all_labelled",
    "one_vs_all_unlabelled",
    "pairwise",
    "partners",
    "self_distillation",
    "sinkhorn",
    "supervised",
    "supervised_contrastive",
    "swapped",
    "swapped_targets",
    "teacher_distillation",
    "uncertainty",
]
