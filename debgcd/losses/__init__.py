"""The paper's equations as pure functions, one file for each group; `docs/paper.md` maps them all.

Files named after a method hold those of the methods that the paper is compared with; `docs/methods.md` maps these.

Shapes: B images, two views stacked as 2B rows (i and i+B are the views of one image), K categories, M known ones. Every
function is defined on empty sets: it returns a zero that is still part of the graph.
"""

from debgcd.losses.classifier import mean_entropy, self_distillation, supervised
from debgcd.losses.contrastive import contrast, info_nce, supervised_contrastive
from debgcd.losses.debiased import (
    accepted,
    certainty,
    consistent,
    debiased_unlabelled,
    hard_labels,
    learn_hard_labels,
    on_side,
)
from debgcd.losses.detector import (
    novelty,
    one_vs_all_consistency,
    one_vs_all_entropy,
    one_vs_all_labelled,
    one_vs_all_unlabelled,
)
from debgcd.losses.extras import energy, guided_gradient, known_subspace, nuclear_norm
from debgcd.losses.infosieve import (
    categories_of_codes,
    code_condition,
    code_length,
    mask_condition,
    near_contrastive,
    nearness,
    smoothed_nce,
)
from debgcd.losses.memory import centre_contrast, density_temperatures
from debgcd.losses.mugcd import momentum, teacher_distillation
from debgcd.losses.opencon import contrastive_among, divergence, follow, looks_new
from debgcd.losses.orca import margin_supervised, pairwise, partners, uncertainty
from debgcd.losses.promptcal import agreed, consensus, cross_contrastive, cross_nce, neighbour_contrast, with_labels
from debgcd.losses.rankstats import pairwise_agreement, ramp, same_ranks, view_consistency
from debgcd.losses.uno import sinkhorn, swapped, swapped_targets
from debgcd.losses.xcon import info_nce_within, supervised_contrastive_within

__all__ = [
    "accepted",
    "agreed",
    "categories_of_codes",
    "centre_contrast",
    "certainty",
    "code_condition",
    "code_length",
    "consensus",
    "consistent",
    "contrast",
    "contrastive_among",
    "cross_contrastive",
    "cross_nce",
    "debiased_unlabelled",
    "density_temperatures",
    "divergence",
    "energy",
    "follow",
    "guided_gradient",
    "hard_labels",
    "info_nce",
    "info_nce_within",
    "known_subspace",
    "learn_hard_labels",
    "looks_new",
    "margin_supervised",
    "mask_condition",
    "mean_entropy",
    "momentum",
    "near_contrastive",
    "nearness",
    "neighbour_contrast",
    "novelty",
    "nuclear_norm",
    "on_side",
    "one_vs_all_consistency",
    "one_vs_all_entropy",
    "one_vs_all_labelled",
    "one_vs_all_unlabelled",
    "pairwise",
    "pairwise_agreement",
    "partners",
    "ramp",
    "same_ranks",
    "self_distillation",
    "sinkhorn",
    "smoothed_nce",
    "supervised",
    "supervised_contrastive",
    "supervised_contrastive_within",
    "swapped",
    "swapped_targets",
    "teacher_distillation",
    "uncertainty",
    "view_consistency",
    "with_labels",
]
