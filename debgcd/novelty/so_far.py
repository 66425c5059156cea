"""Three answers for new images: a known class, a category found before, or none of these.

"So far" is what there was before a batch of images came: labelled images, and images of the categories that were found. Whether a
label was given, came from a review or does not exist makes no difference to what an image shows, so naming a category does not
change what counts as new. In a batch of POOLED images or more, a class that was not there shows as images whose nearest images are
in the batch too. A single image can only be compared with what there was, which tells less.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd.model.heads import AXES
from debgcd.novelty.base import NoveltyThreshold
from debgcd.novelty.vote import BLOCK, COPY, KNOTS, Neighbours, as_curve, interpolate, principal_axes, rising

MOST = 20_000  # voters at most; if there were more images, a random part votes
POOLED = 30  # images in a batch from which they vote among themselves
UNEVEN = (
    0.3  # spread of log r_c as in vote.py; classes differ more between two batches than in the shares of their labels
)
IMAGES_PER_AXIS = 4  # with fewer, the axes fit the images that there were much better than any others
FEWEST_AXES = 32  # but so many, where there are images for them: a new class may differ in any of them
NEAREST = 5  # images whose mean cosine says how well a single image fits
PRIOR = 0.2  # share of single images that are assumed to be of none of the categories
CALIBRATION = 5000  # images by which single images are calibrated, at most
FEWEST = 4  # categories that somebody judged, from which these alone are left out one by one


class Origin(IntEnum):
    """Why an image is in its category."""

    GIVEN = 0  # it came with this label
    ACCEPTED = 1  # a reviewer accepted it
    NAMED = 2  # a reviewer named the whole category
    FOUND = 3  # it was found to be similar, and nobody has looked


class Answer(IntEnum):
    """The three answers."""

    KNOWN = 0
    FOUND = 1
    NONE = 2


@dataclass(frozen=True)
class Before:
    """Where the N images of a run were before it began."""

    category: Tensor  # (N,) known classes have their numbers, categories found before those after them; -1: the image was not there
    origin: Tensor  # (N,) of `Origin`
    group: Tensor  # (N,) images of one scene share a number; -1: no group
    known: int  # M

    @property
    def count(self) -> int:
        """The number of categories so far, known classes included."""
        return max(self.known, int(self.category.max()) + 1)

    def to(self, device: torch.device) -> Before:
        return Before(self.category.to(device), self.origin.to(device), self.group.to(device), self.known)

    def judge(self, feature: Tensor) -> tuple[Tensor, NoveltyThreshold | None]:
        """The probability that an image is of none of these categories, 0 where it was there, (N,); and its errors, if any came.

        feature: (N, width) of all images.
        """
        there, none_p = self.category >= 0, feature.new_zeros(len(feature))
        if there.all():
            return none_p, None
        voters = SoFar(feature.shape[1], int(there.sum())).to(feature.device)
        voters.fit(feature[there], self.category[there], self.origin[there], self.group[there])
        judged = voters(feature[~there], self.group[~there])
        none_p[~there] = judged.none_p.to(none_p)
        return none_p, judged.errors


@dataclass(frozen=True)
class NoneOfThese:
    """What `SoFar` returns for a batch of N images."""

    none_p: Tensor  # (N,) probability that an image is of none of the categories so far
    errors: NoveltyThreshold

    def answers(self, known: Tensor) -> Tensor:
        """The three answers, (N,); known: (N,) whether the category that an image was put into is a known class."""
        kind = torch.where(known, Answer.KNOWN, Answer.FOUND)
        return torch.where(self.none_p > self.errors.above, Answer.NONE, kind)


class SoFar(nn.Module):
    """The images that there were so far, as voters: `fit` takes them, the call judges a batch of other images."""

    mean: Tensor
    axes: Tensor
    points: Tensor
    category: Tensor
    groups: Tensor
    curve: Tensor

    def __init__(self, width: int, images: int):
        super().__init__()
        voters = min(images, MOST)
        axes = max(1, min(AXES, width, voters - 1, max(FEWEST_AXES, voters // IMAGES_PER_AXIS)))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("axes", torch.zeros(width, axes))
        self.register_buffer("points", torch.zeros(voters, axes, dtype=torch.float16))
        self.register_buffer("category", torch.zeros(voters, dtype=torch.int32))
        self.register_buffer("groups", torch.full((voters,), -1, dtype=torch.int32))  # -1: an image without a group
        self.register_buffer("curve", torch.zeros(2, KNOTS))  # similarity of a single image -> probability of none

    @torch.no_grad()
    def fit(self, feature: Tensor, category: Tensor, origin: Tensor, group: Tensor | None = None) -> SoFar:
        """Take these images as voters, a random part if they are too many; returns self.

        feature: (S, width); category: (S,) numbers; origin: (S,) of `Origin`; group: (S,), -1 for none.
        """
        chosen = torch.arange(len(feature))
        if len(chosen) > len(self.points):
            chosen = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[: len(self.points)].sort()[
                0
            ]
        chosen = chosen.to(feature.device)
        feature, origin = feature[chosen], origin[chosen]
        mean, axes = principal_axes(feature, self.axes.shape[1])
        self.mean.copy_(mean)
        self.axes.copy_(axes)
        self.points.copy_(self.place(feature))
        self.category.copy_(category[chosen])
        if group is not None:
            self.groups.copy_(group[chosen])
        self._calibrate(origin)
        return self

    def place(self, feature: Tensor) -> Tensor:
        """Unit-length features on the principal axes: (N, width) -> (N, axes), the shorter the more lies beside the axes.

        What is like nothing that there was often lies beside them, and at unit length would look more alike than it is.
        """
        return normalize(feature - self.mean, dim=1) @ self.axes

    @torch.no_grad()
    def forward(self, feature: Tensor, group: Tensor | None = None) -> NoneOfThese:
        """Judge a batch of images that were not there: feature (N, width); group: (N,) as in `fit`."""
        return self.judge(self.place(feature), group)

    @torch.no_grad()
    def judge(self, points: Tensor, group: Tensor | None = None) -> NoneOfThese:
        """As the call, from points (N, axes) that `place` has made."""
        if len(points) < POOLED:
            return self._one_by_one(points)
        # at unit length, or those that lie beside the axes would all be in one place, like copies
        both = normalize(torch.cat([self.points.to(points), points]), dim=1)
        label = torch.cat([self.category.long(), torch.full((len(points),), -1, device=points.device)])
        own = torch.full((len(points),), -1, device=points.device) if group is None else group
        vote = Neighbours(both.shape[1], len(both), uneven=UNEVEN).to(points.device)
        vote.fit(both, label, torch.cat([self.groups.to(own), own]))
        return NoneOfThese(vote(both[-len(points) :]), vote.threshold())

    def _one_by_one(self, points: Tensor) -> NoneOfThese:
        seen = self.points.to(points)
        similarity = torch.cat([_fit(part @ seen.T) for part in points.split(BLOCK)]) if len(points) else points[:, 0]
        # the errors on categories that are left out are not those on classes that were never there: none is stated
        return NoneOfThese(interpolate(similarity, self.curve), NoveltyThreshold(0.5, None))

    def _calibrate(self, origin: Tensor) -> None:
        """Set the curve for single images: each voter is judged by the others, and by those of other categories.

        The latter is what an image of a class that was not there looks like. A category that nobody has judged may be one half of
        a class, which the other half would explain, so such categories are left out only if there are few others.
        """
        points, category = self.points.float(), self.category
        judged = category[origin != Origin.FOUND].unique()
        left_out = (
            torch.isin(category, judged) if len(judged) >= FEWEST else torch.ones_like(category, dtype=torch.bool)
        )
        rows = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:CALIBRATION].to(points.device)
        own, others = [], []
        length = points.norm(dim=1)
        for part in rows.split(BLOCK):
            similarity = points[part] @ points.T
            copy = similarity > (1 - COPY) * length[part][:, None] * length
            same = (self.groups[part][:, None] >= 0) & (self.groups[part][:, None] == self.groups)
            similarity = similarity.masked_fill(copy | same, -torch.inf)
            own.append(_fit(similarity))
            others.append(_fit(similarity.masked_fill(category[part][:, None] == category, -torch.inf)))
        fits, stranger = torch.cat(own), torch.cat(others)
        known, new = fits.isfinite(), stranger.isfinite() & left_out[rows]
        if not (known.any() and new.any()):
            self.curve.copy_(torch.stack([torch.zeros(KNOTS), torch.full((KNOTS,), PRIOR)]))
            return
        at = torch.cat([fits[known], stranger[new]]).double().cpu()
        is_known = torch.arange(len(at)) < int(known.sum())
        weight = torch.where(is_known, (1 - PRIOR) / int(known.sum()), PRIOR / int(new.sum())).double()
        place, odds = rising(at, is_known, weight)
        self.curve.copy_(as_curve(place, 1 / (1 + odds)))


def _fit(similarity: Tensor) -> Tensor:
    """The mean cosine of the NEAREST voters that are not hidden (-inf): (N, S) -> (N,), -inf if there is none."""
    best = similarity.topk(min(NEAREST, similarity.shape[1]), dim=1).values
    there = best > -torch.inf
    mean = best.masked_fill(~there, 0.0).sum(1) / there.sum(1).clamp_min(1)
    return torch.where(there.any(1), mean, -torch.inf)
