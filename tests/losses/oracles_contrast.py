"""Slow forms of the losses of RankStats, XCon and OpenCon, written from their papers with loops and `math`.

As in oracles.py; nothing here comes from our code.
"""

import math

import oracles
from oracles import Row, Rows, dot, log_sum_exp, mean, softmax

# RankStats (Han et al. 2020)


def same_ranks(feature: Rows, top: int) -> list[list[bool]]:
    """s_ij = 1 if the sets of the k most activated dimensions are equal."""
    sets = [set(sorted(range(len(row)), key=lambda i, row=row: -row[i])[:top]) for row in feature]
    return [[a == b for b in sets] for a in sets]


def pairwise_agreement(logits: Rows, same: list[list[bool]], temperature: float = 0.1) -> float:
    """L_BCE: minus s log <p_i, p'_j> minus (1 - s) log (1 - <p_i, p'_j>), each logarithm with 1e-7 added to its argument;
    p_i of the first view, p'_j of the second; mean over all pairs (i, j).
    """
    images = len(logits) // 2
    terms = []
    for i in range(images):
        for j in range(images):
            together = dot(softmax(logits[i], temperature), softmax(logits[images + j], temperature))
            terms.append(-math.log((together if same[i][j] else 1.0 - together) + 1e-7))
    return mean(terms)


def view_consistency(logits: Rows, temperature: float = 0.1) -> float:
    """L_MSE: the mean over images and categories of (p(k) - p'(k))^2."""
    images = len(logits) // 2
    pairs = [(softmax(logits[i], temperature), softmax(logits[images + i], temperature)) for i in range(images)]
    return mean([(a - b) ** 2 for one, two in pairs for a, b in zip(one, two, strict=True)])


# XCon (Fei et al. 2022)


def _of_part(z: Rows, part: list[int], e: int) -> tuple[Rows, list[int]]:
    images = len(part)
    own = [i for i in range(images) if part[i] == e]
    return [z[i] for i in own] + [z[images + i] for i in own], own


def info_nce_within(z: Rows, part: list[int], temperature: float = 1.0) -> float:
    """The unlabelled loss of GCD in each sub-dataset, with its images alone; mean over the sub-datasets that have any."""
    return mean([oracles.info_nce(_of_part(z, part, e)[0], temperature) for e in sorted(set(part))])


def supervised_contrastive_within(z: Rows, y: list[int], part: list[int], temperature: float = 0.07) -> float:
    """The labelled loss of GCD in each sub-dataset, likewise."""
    terms = []
    for e in sorted(set(part)):
        rows, own = _of_part(z, part, e)
        terms.append(oracles.supervised_contrastive(rows, [y[i] for i in own], temperature))
    return mean(terms)


# OpenCon (Sun & Li 2023)


def quantile(values: Row, share: float) -> float:
    """Linear between the two nearest of the sorted values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def looks_new(cosines: Rows, label: list[int], known: int, share: float) -> list[bool]:
    """An unlabelled image is taken as novel if its largest standardised similarity to a known prototype is below the
    (1 - share) quantile of those of the labelled images; the similarities of a row are standardised by its mean and
    standard deviation over all prototypes.
    """
    scores = []
    for row in cosines:
        middle = mean(row)
        deviation = math.sqrt(math.fsum((value - middle) ** 2 for value in row) / (len(row) - 1))
        scores.append(max((value - middle) / deviation for value in row[:known]))
    of_labelled = [score for score, y in zip(scores, label, strict=True) if y >= 0]
    if not of_labelled:
        return [False] * len(label)
    limit = quantile(of_labelled, 1.0 - share)
    return [y < 0 and score < limit for score, y in zip(scores, label, strict=True)]


def contrastive_among(z: Rows, y: list[int], chosen: list[bool], temperature: float) -> float:
    """L_n: supervised contrast of the novel images alone, with their pseudo-labels."""
    images = len(y)
    own = [i for i in range(images) if chosen[i]]
    rows = [z[i] for i in own] + [z[images + i] for i in own]
    return oracles.supervised_contrastive(rows, [y[i] for i in own], temperature) if own else 0.0


def divergence(logits: Rows, prior: Row, temperature: float = 0.1) -> float:
    """KL between the mean prediction and the prior, the mean at least 1e-5."""
    if not logits:
        return 0.0
    probabilities = [softmax(row, temperature) for row in logits]
    average = [max(mean([row[k] for row in probabilities]), 1e-5) for k in range(len(prior))]
    return math.fsum(p * math.log(p / q) for p, q in zip(average, prior, strict=True))


def follow(prototypes: Rows, z: Rows, y: list[int], counts: list[bool], momentum: float) -> Rows:
    """mu_c := normalise(gamma mu_c + (1 - gamma) z), for one image after the other."""
    result = [list(row) for row in prototypes]
    for row, label, moves in zip(z, y, counts, strict=True):
        if moves:
            moved = [momentum * a + (1.0 - momentum) * b for a, b in zip(result[label], row, strict=True)]
            length = math.sqrt(dot(moved, moved))
            result[label] = [value / length for value in moved]
    return result


def contrast(similarity: Rows, positive: list[list[bool]], among: list[list[bool]]) -> Row:
    """For each row: the mean over its positives j of log sum over candidates of e^s minus s_j; 0 without positives."""
    values = []
    for row, good, all_ in zip(similarity, positive, among, strict=True):
        candidates = [s for s, use in zip(row, all_, strict=True) if use]
        values.append(mean([log_sum_exp(candidates) - s for s, use in zip(row, good, strict=True) if use]))
    return values
