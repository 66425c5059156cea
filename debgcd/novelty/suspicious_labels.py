"""What the features of the images say of the labels that were given: which look wrong, and whether they fit the images at all.

All of it is measured on features from before training, because a network learns wrong labels too.
`benchmarks/label_checks.py` measures how often each warning is given, with and without a reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.novelty.vote import DECAY, NEAR, VOTERS, Neighbours, log_rates, principal_axes, rank_weights, voted

CLEARLY = 0.8  # least certainty for which a label looks wrong; see `suspicious_labels`
ROUNDS = 6  # in which labels that look wrong are replaced to find more
FOUND = 0.6  # share of the wrong labels that are found so, where three in ten are wrong
FEWEST_WRONG, LEAST_WRONG = 3, 0.06  # number and share of labels that look wrong from which a warning is given

VOTES = 5  # nearest labelled images that are compared with a label
DRAWS = 200  # permutations that say what chance would do
CHANCE = 2.0  # standard deviations above chance below which labels and neighbours do not agree
FITS = 0.8  # novelty up to which an unlabelled image counts as one of the nearest known class
SHIFTED = 3.0  # standard deviations above chance beyond which labelled and unlabelled images differ as groups
AXES = 24  # principal axes in which they are compared
FEWEST = 10  # labelled images; of fewer nothing is said

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


@dataclass(frozen=True)
class LabelCheck:
    """What is wrong with the labels of a data set as a whole."""

    labelled: int
    chance: bool  # labels agree with those of the nearest labelled images no more often than permuted ones would
    wrong: int  # about how many labels are wrong; 0 unless there are many
    apart: bool  # the labelled images differ, as a group, from the unlabelled ones that fit the same classes

    @property
    def warnings(self) -> list[str]:
        """One sentence per problem."""
        found = []
        if self.chance:
            found.append(
                f"the {self.labelled} labels contradict the images: similar images have the same label no more often than "
                "chance would give; look whether labels and files were mixed up"
            )
        elif self.wrong:
            found.append(
                f"about {self.wrong} of {self.labelled} labels are expected to be wrong; debgcd check --labels lists those "
                "that look it"
            )
        if self.apart:
            found.append(
                "the labelled images differ from the unlabelled ones as a group, also within classes (other light, another "
                "camera?); known and new images cannot be told apart well then: label images of the same kind"
            )
        return found


@torch.no_grad()
def check_labels(feature: Tensor, label: Tensor, group: Tensor | None = None) -> LabelCheck:
    """Whether the labels of the training images fit them; arguments as for `Neighbours.fit`. The same input, the same answer."""
    labelled = label >= 0
    own, count = label[labelled], int(labelled.sum())
    if count < FEWEST or len(own.unique()) < 2:
        return LabelCheck(count, False, 0, False)
    groups = None if group is None else group[labelled]
    chance = _agreement(feature[labelled], own, groups) < CHANCE
    wrong = 0 if chance else expected_wrong(feature[labelled], own, groups)
    return LabelCheck(count, chance, wrong, shift(feature, label, group) > SHIFTED)


def expected_wrong(feature: Tensor, label: Tensor, group: Tensor | None = None) -> int:
    """About how many labels are wrong, 0 unless many look it. Of labelled images only, as for `suspicious_labels`.

    Those that look wrong are replaced by what their neighbours have, so that the next look has better neighbours.
    """
    mended = label.clone()
    for turn in range(ROUNDS):
        other, certainty = suspicious_labels(feature, mended, group)
        clear = certainty >= CLEARLY
        if not turn and int(clear.sum()) < max(FEWEST_WRONG, LEAST_WRONG * len(label)):
            return 0
        if not clear.any():
            break
        mended[clear] = other[clear]
    return min(len(label), round(int((mended != label).sum()) / FOUND))


def _agreement(feature: Tensor, label: Tensor, group: Tensor | None) -> float:
    """How often the nearest labelled images have an image's label, in standard deviations above permuted labels."""
    head = Neighbours(feature.shape[1], len(feature)).to(feature.device)
    voter = head.take(feature, group)
    who = head.nearest(feature, VOTES, group)
    there = who >= 0

    def agree(given: Tensor) -> float:
        same = given[voter][who.clamp_min(0)] == given[:, None]
        return float(same[there].double().mean()) if there.any() else 0.0

    generator = torch.Generator().manual_seed(0)
    null = torch.tensor([agree(label[torch.randperm(len(label), generator=generator)]) for _ in range(DRAWS)])
    return (agree(label) - float(null.mean())) / max(1e-9, float(null.std()))


def shift(feature: Tensor, label: Tensor, group: Tensor | None = None) -> float:
    """How far labelled and unlabelled images of the known classes lie apart in a common direction, in standard deviations.

    In each class, the labelled images are compared with the unlabelled ones that are nearest to it and not clearly new: the
    squared length of the sum over classes of the differences of their means, against that of flags permuted within classes.
    """
    labelled, unit = label >= 0, normalize(feature - feature.mean(0), dim=1).cpu().double()
    label, labelled = label.cpu(), labelled.cpu()
    use = labelled | (voted(feature, label.to(feature.device), group).cpu() <= FITS)
    mean, axes = principal_axes(unit, min(AXES, unit.shape[1], len(unit) - 1))
    point = (unit - mean) @ axes
    point = point / point.std(0).clamp_min(1e-12)
    centres = torch.stack([normalize(unit[label == c].sum(0), dim=0) for c in range(int(label.max()) + 1)])
    of = torch.where(labelled, label, (unit @ centres.T).argmax(1))
    parts = [(of == c) & use for c in range(len(centres))]
    parts = [part for part in parts if min(int((part & labelled).sum()), int((part & ~labelled).sum())) >= 2]
    if not parts:
        return 0.0
    classes = [(point[part] - point[part].mean(0), labelled[part].double()) for part in parts]

    def apart(permuted: bool) -> float:
        total = torch.zeros(point.shape[1], dtype=torch.float64)
        for points, flag in classes:
            flag = flag[torch.randperm(len(flag), generator=generator)] if permuted else flag
            total += flag @ points  # the difference of the means, weighted by how well it is known
        return float(total.square().sum())

    generator = torch.Generator().manual_seed(0)
    null = torch.tensor([apart(True) for _ in range(DRAWS)])
    return (apart(False) - float(null.mean())) / max(1e-9, float(null.std()))
