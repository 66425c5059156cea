"""What the nearest images say of the labels that were given: which look wrong, and whether classes got uneven shares."""

from __future__ import annotations

import torch
from torch import Tensor

from debgcd.novelty.vote import DECAY, NEAR, VOTERS, Neighbours, log_rates, rank_weights

CLEARLY = 0.8  # certainty from which a label looks wrong; see `doubts`
WITNESSES = 2  # other scenes' images with the same label, without which nobody could have confirmed it


@torch.no_grad()
def shares_of_labels(feature: Tensor, label: Tensor, group: Tensor | None = None) -> tuple[Tensor, float]:
    """As `log_rates`; arguments as for `Neighbours.fit`."""
    head = Neighbours(feature.shape[1], len(feature)).to(feature.device)
    chosen = head.take(feature, group)
    voter = label[chosen]
    labelled = voter >= 0
    return log_rates(head.nearest(feature[chosen][labelled], NEAR), voter, voter[labelled])


@torch.no_grad()
def doubts(feature: Tensor, label: Tensor, group: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The class that most of the neighbours have, (L,), and how clearly that speaks against the label, (L,) in 0..1.

    Of labelled images only: feature (L, width), label (L,), group (L,), -1 where there is none. A neighbour's vote is for its
    own class. Some classes resemble each other, so what counts against a label are the votes for the other class beyond
    those that the other images with this label have on average: against = max(0, votes - average); against / (against +
    votes for the label). It is 0 where most neighbours have the label itself, or hardly any other image has it.
    """
    voters = max(3, min(VOTERS, len(label) // 3))  # of few images a third: if all voted, the largest class would win
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
