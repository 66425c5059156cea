"""Novelty without training: the nearest training images vote, labelled ones against unlabelled ones.

Labelled images are of known classes, unlabelled ones of any class. Where nearly all neighbours of an image are unlabelled, there
is a class that nobody labelled. An image never votes on itself, so its own label cannot decide, however few labels there are.
Nor do images of its own group, because a burst of one scene carries no more information than one image.
"""

from __future__ import annotations

from math import isnan, log, sqrt

import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.errors import UsageError
from debgcd.model.heads import AXES
from debgcd.novelty.base import Detector, NoveltyThreshold

VOTERS = 60  # nearest images that vote
DECAY = 20.0  # ranks over which a vote falls to 1/e
MOST = 100_000  # voters at most; if there are more training images, a random part votes
COPY = 1e-4  # an image this near (1 − cosine) is the image itself, or a copy, and has no vote
BLOCK = 2048  # images whose similarities to all voters are in memory together
KNOTS = 32  # of the calibration curve

FEW_LABELS = 8  # labelled images of the mean class, below which the vote's errors are not stated
UNSURE = 0.35  # nor are they if the error of new images may lie anywhere in an interval wider than this

UNEVEN = 0.5  # spread of log r_c beyond which labels are given in uneven shares
PUREST = 0.3  # share of a class's labelled images whose surroundings say how many of its images are labelled
NEAR = 20  # nearest voters of an image that make up its surroundings
SHRINKAGE = 5.0  # neighbours of the mean class that are added to each


class Neighbours(Detector):
    """Novelty by a vote: E, the unlabelled neighbours expected from the labelled ones, against U, those observed."""

    mean: Tensor
    axes: Tensor
    points: Tensor
    votes: Tensor
    groups: Tensor
    curve: Tensor
    share: Tensor

    def __init__(self, width: int, images: int, labelled_fraction: float | None = None, uneven: float = UNEVEN):
        """labelled_fraction: share of all images of known classes that are labelled; None: `fit` estimates what it needs.

        uneven: see `class_rates`.
        """
        super().__init__()
        self.labelled_fraction, self.uneven = labelled_fraction, uneven
        voters = min(images, MOST)
        axes = max(1, min(AXES, width, voters - 1))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("axes", torch.zeros(width, axes))
        self.register_buffer("points", torch.zeros(voters, axes, dtype=torch.float16))
        self.register_buffer("votes", torch.zeros(voters))  # r_c of a labelled image, 0 of an unlabelled one
        self.register_buffer("groups", torch.full((voters,), -1, dtype=torch.int32))  # -1: an image without a group
        self.register_buffer("curve", torch.zeros(2, KNOTS))  # E / (E + U) -> novelty
        self.register_buffer("share", torch.zeros(5))  # see `calibrated`

    @torch.no_grad()
    def fit(self, feature: Tensor, label: Tensor, group: Tensor | None = None) -> None:
        """Let all training images vote, and calibrate the vote on them; see `Detector.fit`."""
        known_share = None if self.labelled_fraction is None else known_by_fraction(label, self.labelled_fraction)
        rates = self._move(feature, label, group)
        weight = torch.where(label >= 0, rates.to(feature)[label.clamp_min(0)], 1.0)
        curve, share = calibrated(self.vote(feature, group), label >= 0, weight, known_share)
        if int((label >= 0).sum()) < FEW_LABELS * len(rates):
            share[3:] = torch.nan
        self.curve.copy_(curve)
        self.share.copy_(share)

    @torch.no_grad()
    def refit(self, feature: Tensor, label: Tensor, before: Tensor, group: Tensor | None = None) -> None:
        """Move to tuned features, which separate known from new images better, and keep the first calibration.

        Training pulls labelled images together, so that they no longer represent the unlabelled ones of their classes. But the
        n newest images can be given the novelty that the n newest had before.
        """
        self._move(feature, label, group)
        free = label < 0
        if not free.any():
            return
        at = torch.linspace(0, 1, KNOTS, device=feature.device, dtype=torch.float64)
        place = self.vote(feature, group)[free].double().quantile(at)
        self.curve.copy_(torch.stack([place, before[free].double().quantile(1 - at)]))

    def _move(self, feature: Tensor, label: Tensor, group: Tensor | None) -> Tensor:
        """Take voters from these images and set their votes by their labels; returns r_c (M,)."""
        chosen = self.take(feature, group)
        voter = label[chosen]
        labelled = voter >= 0
        rates = class_rates(self.nearest(feature[chosen][labelled], NEAR), voter, voter[labelled], self.uneven)
        self.votes.zero_()
        self.votes[labelled] = rates.to(self.votes)[voter[labelled]]
        return rates

    def take(self, feature: Tensor, group: Tensor | None = None) -> Tensor:
        """Take these images, or a random part of them, as voters; returns the rows taken, (V,)."""
        chosen = torch.arange(len(feature), device=feature.device)
        if len(feature) > len(self.points):
            drawn = torch.randperm(len(feature), generator=torch.Generator().manual_seed(0))
            chosen = drawn[: len(self.points)].sort().values.to(feature.device)
        mean, axes = principal_axes(feature, self.axes.shape[1])
        self.mean.copy_(mean)
        self.axes.copy_(axes)
        self.points.copy_(self.place(feature[chosen]))
        self.groups.copy_(-torch.ones_like(chosen) if group is None else group[chosen])
        return chosen

    def place(self, feature: Tensor) -> Tensor:
        """Features on the principal axes: (N, width) -> (N, axes), unit rows."""
        return normalize((feature - self.mean) @ self.axes, dim=1)

    def vote(self, feature: Tensor, group: Tensor | None = None) -> Tensor:
        """E / (E + U): (N, width) -> (N,), small where unlabelled images are more than labelled ones explain.

        group: (N,) as in `fit`; without it, that of the voter which is the image itself.
        """
        who = self.nearest(feature, VOTERS, group)
        weight = rank_weights(who, DECAY)
        votes = torch.where(who >= 0, self.votes[who.clamp_min(0)], -1.0)
        expected = (weight * votes.clamp_min(0)).sum(1)
        unlabelled = (weight * (votes == 0)).sum(1)
        return expected / (expected + unlabelled).clamp_min(1e-12)

    def nearest(self, feature: Tensor, count: int, group: Tensor | None = None) -> Tensor:
        """The nearest voters, nearest first, without the image itself and its group: (N, width) -> (N, count), -1: none."""
        points = normalize(self.points.float(), dim=1)
        parts = []
        # in ONNX one block: whoever runs it chooses how many images that is
        for i, part in enumerate([feature] if torch.compiler.is_compiling() else feature.split(BLOCK)):
            start = i * BLOCK
            similarity = self.place(part) @ points.T
            most = similarity.max(1)
            own = torch.where(most.values > 1 - COPY, self.groups[most.indices], -1)
            if group is not None:
                own = group[start : start + BLOCK].to(own)
            hidden = (similarity > 1 - COPY) | ((own >= 0)[:, None] & (self.groups == own[:, None]))
            best = similarity.masked_fill(hidden, -torch.inf).topk(min(count, len(points)), dim=1)
            parts.append(torch.where(best.values == -torch.inf, -1, best.indices))
        return torch.cat(parts) if parts else torch.empty(0, count, dtype=torch.int64, device=feature.device)

    def forward(self, feature: Tensor) -> Tensor:
        """Novelty, the probability that an unlabelled image is new: (N, width) -> (N,)."""
        return interpolate(self.vote(feature.float()), self.curve)

    def threshold(self) -> NoveltyThreshold:
        """½, because the vote is calibrated, with its estimated errors and the share of new images."""
        new, low, high, error_known, error_new = self.share.tolist()
        if isnan(error_known):
            return NoveltyThreshold(0.5, None, None, new, low, high)
        return NoveltyThreshold(0.5, error_known, error_new, new, low, high)


def voted(feature: Tensor, label: Tensor, group: Tensor | None = None) -> Tensor:
    """The novelty of all training images by a vote among them; arguments as for `Detector.fit`: -> (N,)."""
    head = Neighbours(feature.shape[1], len(feature)).to(feature.device)
    head.fit(feature, label, group)
    return head(feature)


def known_by_fraction(label: Tensor, fraction: float) -> float:
    """The share of unlabelled images that are of known classes, if this fraction of all known images is labelled."""
    labelled = int((label >= 0).sum())
    known, unlabelled = labelled * (1 / fraction - 1), len(label) - labelled
    if known > unlabelled:
        raise UsageError(
            f"detector.labelled_fraction {fraction:g}: with {labelled} labelled images there would be {known:.0f} unlabelled "
            f"ones of known classes, but there are only {unlabelled} in all; give a larger fraction, or omit it"
        )
    return known / max(1, unlabelled)


def principal_axes(points: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """Mean and the `axes` directions of largest variance: (N, d) -> (d,), (d, axes); unit columns, zero where there are fewer.

    The largest entry of each direction is positive, because an eigenvector's sign is a matter of rounding.
    """
    mean = points.double().mean(0)
    centred = points.double() - mean
    if len(points) < points.shape[1]:
        # from the smaller matrix: the larger one has many zero eigenvalues, for which eigh may not converge
        values, coordinates = torch.linalg.eigh(centred @ centred.T)
        found = centred.T @ coordinates[:, -axes:]
        length = found.norm(dim=0)
        keep = values[-axes:] > 1e-12 * values[-1]
        directions = torch.where(keep, found / length.clamp_min(1e-300), 0.0)
    else:
        directions = torch.linalg.eigh(centred.T @ centred)[1][:, -axes:]  # ascending
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    directions = torch.where(largest < 0, -directions, directions)
    return mean.to(points.dtype), directions.to(points.dtype)


def class_rates(near: Tensor, voter: Tensor, own: Tensor, uneven: float) -> Tensor:
    """r_c, how many unlabelled images each labelled one of a class stands for, relative to the mean class: -> (M,).

    near: (L, n) neighbours of the labelled images, -1 for none; voter: (N,) labels of all who vote; own: (L,) their own labels.
    All 1 unless the classes differ by more than `uneven`: from few images the rates are too rough to be of use.
    """
    log_rate, spread = log_rates(near, voter, own)
    return log_rate.exp() if spread > uneven else torch.ones_like(log_rate)


def log_rates(near: Tensor, voter: Tensor, own: Tensor) -> tuple[Tensor, float]:
    """log r_c (M,) and its standard deviation over the classes; arguments as for `class_rates`.

    Judged at the labelled images that lie deepest in their class, where few neighbours are of other classes.
    """
    classes = int(voter.max()) + 1
    label = torch.where(near >= 0, voter[near.clamp_min(0)], classes)
    mine, free = (label == own[:, None]).sum(1).double(), (label == -1).sum(1).double()
    foreign = ((label >= 0) & (label < classes) & (label != own[:, None])).sum(1).double()
    rates = torch.zeros(classes, 2, dtype=torch.float64, device=near.device)
    for c in range(classes):
        rows = (own == c).nonzero()[:, 0]
        if len(rows):
            deepest = rows[(foreign[rows] - mine[rows]).argsort()[: max(1, round(PUREST * len(rows)))]]
            rates[c] = torch.stack([free[deepest].mean(), mine[deepest].mean()])
    there = rates.sum(1) > 0
    mean = rates[there].mean(0) if there.any() else torch.ones(2, dtype=torch.float64, device=near.device)
    mean = mean / mean.sum()
    log_rate = ((rates[:, 0] + 1 + SHRINKAGE * mean[0]) / (rates[:, 1] + 1 + SHRINKAGE * mean[1])).log()
    log_rate = torch.where(there, log_rate - log_rate[there].mean() if there.any() else 0.0, 0.0)
    return log_rate, float(log_rate[there].std(correction=0)) if there.any() else 0.0


def rank_weights(who: Tensor, decay: float) -> Tensor:
    """The weight of each vote, nearest first: (N, count) -> (count,)."""
    return torch.exp(-torch.arange(who.shape[1], device=who.device) / decay)


def calibrated(
    vote: Tensor, labelled: Tensor, weight: Tensor, known_share: float | None = None
) -> tuple[Tensor, Tensor]:
    """The curve from votes to novelty, (2, KNOTS); share of new images (a lower bound), its 90 % interval and both errors, (5,).

    The errors are NaN where labels are few or the interval leaves open how many new images are missed.

    vote, labelled, weight: (N,); weight: how many images of its class a labelled one stands for, 1 for unlabelled ones.

    Labelled images are a sample of those of known classes. So at each vote, the expected number of unlabelled images of known
    classes is the number of labelled images times the overall ratio of the two; the other unlabelled images are new.
    """
    vote, weight = vote.double().cpu(), weight.double().cpu()
    labelled = labelled.cpu()
    known = known_part(vote, labelled, weight) if known_share is None else known_share
    ratio = known * float((~labelled).sum()) / max(1e-9, float(weight[labelled].sum()))
    place, odds = rising(vote, labelled, weight)
    # if no image is unlabelled, none can be new
    curve = as_curve(place, (1 - ratio * odds).clamp(0, 1) * (~labelled).any())
    low, high = (known, known) if known_share is not None else _interval(vote, labelled, weight)
    novelty = interpolate(vote, curve)
    wrong, fewest = expected_errors(novelty, labelled, weight, 1 - high)
    _, most = expected_errors(novelty, labelled, weight, 1 - low)
    # half of `missed` is the novelty's own estimate, which the share does not move
    told = low < 1 and 2 * (most - fewest) <= UNSURE
    return curve, torch.tensor([1 - known, 1 - high, 1 - low, *((wrong, most) if told else (torch.nan, torch.nan))])


def expected_errors(novelty: Tensor, labelled: Tensor, weight: Tensor, new: float) -> tuple[float, float]:
    """How many of the known images look new, and of the new ones do not: the mean of two estimates of each.

    novelty, labelled, weight: (N,) as for `calibrated`; new: at most this share of the unlabelled images is new.

    One estimate counts: the labelled images that look new, and how many fewer unlabelled images look new than should. The other
    takes each image's novelty as its probability. Their mean is closer than either.
    """
    if labelled.all() or not labelled.any():
        return 0.0, 0.0
    looks_new, free = (novelty > 0.5).double(), novelty[~labelled]
    counted = float((looks_new * weight)[labelled].sum() / weight[labelled].sum())
    surely = looks_new[~labelled]
    wrong = (counted + _share_of(1 - free, surely)) / 2
    expected = float(surely.mean()) - (1 - new) * counted
    missed = min(1.0, max(0.0, 1 - expected / new)) if new > 0 else 0.0
    return wrong, (missed + _share_of(free, 1 - surely)) / 2


def _share_of(mass: Tensor, part: Tensor) -> float:
    """The share of a mass (N,) that lies where `part` (N,) is 1; 0 without any."""
    return float((mass * part).sum() / mass.sum().clamp_min(1e-9))


def known_part(vote: Tensor, labelled: Tensor, weight: Tensor) -> float:
    """How many of the unlabelled images are of known classes: at most this share (best bin estimation, Garg et al. 2021).

    Above some vote there are hardly any new images. The result is the share of unlabelled images above that vote, divided by
    the share of labelled ones; the vote is chosen so that the upper confidence bound of this ratio is lowest.
    """
    if not labelled.any() or labelled.all():
        return 1.0
    order = vote[labelled].argsort()
    known, mass = vote[labelled][order], weight[labelled][order]
    free = vote[~labelled].sort().values
    above = mass.flip(0).cumsum(0).flip(0) / mass.sum()  # from each labelled vote on
    free_above = 1 - torch.searchsorted(free, known).double() / len(free)
    doubt = sqrt(log(40) / 2 / len(free)) + sqrt(log(40) / 2 / len(known))
    best = ((free_above + 1.01 * doubt) / above).argmin()
    return min(1.0, float(free_above[best] / above[best]))


def _interval(vote: Tensor, labelled: Tensor, weight: Tensor, draws: int = 200) -> tuple[float, float]:
    """The middle 90 % of `known_part` over bootstrap samples of the images."""
    groups = [rows for rows in (labelled.nonzero()[:, 0], (~labelled).nonzero()[:, 0]) if len(rows)]
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(draws):
        rows = torch.cat([rows[torch.randint(len(rows), (len(rows),), generator=generator)] for rows in groups])
        shares.append(known_part(vote[rows], labelled[rows], weight[rows]))
    low, high = torch.tensor(shares).quantile(torch.tensor([0.05, 0.95])).tolist()
    return low, high


def rising(vote: Tensor, labelled: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Labelled per unlabelled image as a rising function of the vote: mean votes of blocks of images, and their odds.

    Isotonic regression of "labelled" on the vote by pooling adjacent violators.
    """
    at, which = vote.unique(return_inverse=True)
    total = torch.zeros_like(at).index_add_(0, which, weight)
    known = torch.zeros_like(at).index_add_(0, which, labelled * weight)
    blocks: list[list[float]] = []  # mass, votes times mass, mass of labelled ones
    for block in torch.stack([total, at * total, known], 1).tolist():
        blocks.append(block)
        while len(blocks) > 1 and blocks[-2][2] * blocks[-1][0] >= blocks[-1][2] * blocks[-2][0]:
            last = blocks.pop()
            blocks[-1] = [p + q for p, q in zip(blocks[-1], last, strict=True)]
    total, votes, known = torch.tensor(blocks, dtype=torch.float64).T
    return votes / total, known / (total - known).clamp_min(1e-9)


def as_curve(place: Tensor, novelty: Tensor) -> Tensor:
    """A curve of KNOTS points, thinned or with its last point repeated: (2, KNOTS)."""
    at = (
        torch.linspace(0, len(place) - 1, KNOTS).round().long()
        if len(place) > KNOTS
        else torch.arange(KNOTS).clamp(max=len(place) - 1)
    )
    return torch.stack([place[at], novelty[at]]).float()


def interpolate(x: Tensor, curve: Tensor) -> Tensor:
    """Linear between the points of a curve (2, n) with rising places, constant beyond: (N,) -> (N,)."""
    place, value = curve.to(x)
    # ONNX has no searchsorted
    right = (x[:, None] > place).sum(1).clamp(1, len(place) - 1)
    left = right - 1
    width = (place[right] - place[left]).clamp_min(1e-12)
    share = ((x - place[left]) / width).clamp(0, 1)
    return value[left] + share * (value[right] - value[left])
