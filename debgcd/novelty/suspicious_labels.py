"""Check the given labels against the nearest images: labels that look wrong, and classes labelled in uneven shares."""

from __future__ import annotations

import torch
from torch import Tensor

from debgcd.novelty.vote import DECAY, NEAR, VOTERS, Neighbours, log_rates, rank_weights

CLEARLY = 0.8  # least certainty for which a label looks wrong; see `suspicious_labels`
WITNESSES = 2  # least number of images of other scenes with the same label; with fewer its neighbours cannot confirm it


@torch.no_grad()
def shares_of_labels(feature: Tensor, label: Tensor, group: Tensor | None = None) -> tuple[Tensor, float]:
    """log r_c (M,) and its standard deviation, see `log_rates`; arguments as for `Neighbours.fit`."""
    head = Neighbours(feature.shape[1], len(feature)).to(feature.device)
    chosen = head.take(feature, group)
    voter = label[chosen]
    labelled = voter >= 0
    return log_rates(head.nearest(feature[chosen][labelled], NEAR), voter, voter[labelled])


@torch.no_grad()
def suspicious_labels(feature: Tensor, label: Tensor, group: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """For each labelled image the class of most neighbours, (L,), and the certainty that its label is wrong, (L,) in 0..1.

    feature (L, width), label (L,), group (L,), -1 for none: of the labelled images only. Neighbours vote for their own class.
    Because some classes resemble each other, the votes for the other class count only as far as they exceed those that
    images with this label have for it on average: against = max(0, votes - average). The certainty is
    against / (against + votes for the label). It is 0 if most neighbours have the label, or fewer than WITNESSES other
    images have it.
    """
    # if all of a few images voted, the largest class would win: take a third
    voters = max(3, min(VOTERS, len(label) // 3))
    if not len(label):
        return label, feature.new_zeros(0)
    classes = int(label.max()) + 1
    head = Neighbours(feature.shape[1], len(feature)).to(feature.device)
    voter = label[head.take(feature, group)]
    who = head.nearest(feature, voters, group)
    weight = torch.where(who >= 0, rank_weights(who, DECAY * voters / VOTERS), 0.0)
    votes = feature.new_zeros(len(feature), classes).scatter_add_(1, voter[who.clamp_min(0)], weight.to(feature))
    votes = votes / votes.sum(1, keepdim=True).clamp_min(1e-12)
    most, other = votes.max(1)
    together = feature.new_zeros(classes, classes).index_add_(0, label, votes)
    others = torch.bincount(label)[label] - 1
    against = (most - (together[label, other] - most) / others.clamp_min(1)).clamp_min(0)
    clearly = against / (against + votes.gather(1, label[:, None])[:, 0]).clamp_min(1e-12)
    if group is not None:
        _, scene, shots = torch.stack([label, group]).unique(dim=1, return_inverse=True, return_counts=True)
        others = others - torch.where(group >= 0, shots[scene] - 1, 0)
    return other, torch.where((other == label) | (others < WITNESSES), 0.0, clearly)
