"""Slow forms of the losses of InfoSieve, DCCL, GPC and PromptCAL, written from papers with loops and `math`.

As in oracles.py; nothing here comes from our code.
"""

import math

from oracles import Row, Rows, dot, log_sum_exp, mean
from oracles_contrast import quantile


def distance(a: Row, b: Row) -> float:
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


# InfoSieve (Rastegar et al. 2023)


def nearness(z: Rows, relative: bool) -> Rows:
    """Minus the distance; for codes divided by the sum of the distances of the other row of the pair, plus 1e-10."""
    table = [[distance(a, b) for b in z] for a in z]
    sums = [math.fsum(row) + 1e-10 for row in table]
    return [[-d / (sums[j] if relative else 1.0) for j, d in enumerate(row)] for row in table]


def smoothed_nce(similarity: Rows, smoothing: float, temperature: float = 1.0) -> float:
    """Cross-entropy over the 2B - 1 other rows; the target is the other view with 1 - s, and all of them share s."""
    rows = len(similarity)
    terms = []
    for i in range(rows):
        total = log_sum_exp([similarity[i][j] / temperature for j in range(rows) if j != i])
        other_view = (i + rows // 2) % rows
        for j in range(rows):
            if j != i:
                target = smoothing / (rows - 1) + (1.0 - smoothing if j == other_view else 0.0)
                terms.append(target * (total - similarity[i][j] / temperature))
    return math.fsum(terms) / rows if rows else 0.0


def near_contrastive(similarity: Rows, y: list[int], temperature: float = 0.07) -> float:
    """Supervised contrast with any similarity: as SupCon, mean over anchors of the mean over positives."""
    label, rows = y + y, len(similarity)
    terms = []
    for i in range(rows):
        total = log_sum_exp([similarity[i][j] / temperature for j in range(rows) if j != i])
        positives = [j for j in range(rows) if j != i and label[j] == label[i]]
        terms.append(mean([total - similarity[i][j] / temperature for j in positives]))
    return mean(terms)


def code_condition(code: Rows) -> float:
    """Mean over rows and bits of 1 - c^2 + (mean over rows of c)^2."""
    middle = [mean([row[b] for row in code]) for b in range(len(code[0]))]
    return mean([1.0 - value**2 + middle[b] ** 2 for row in code for b, value in enumerate(row)])


def mask_condition(mask: Rows) -> float:
    return mean([(m * (1.0 - m)) ** 2 for row in mask for m in row])


def code_length(mask: Rows, weight: Row) -> float:
    """The L1 norm of all masks over the bits' weights, over the L1 norm of the inverse weights."""
    return math.fsum(m / w for row in mask for m, w in zip(row, weight, strict=True)) / math.fsum(1 / w for w in weight)


def categories_of_codes(logits: Rows, y: list[int]) -> float:
    """Mean over rows and known classes of the binary cross-entropy."""
    terms = []
    for row, label in zip(logits, y, strict=True):
        for k, value in enumerate(row):
            terms.append(log_sum_exp([0.0, -value if k == label else value]))
    return mean(terms)


# DCCL (Pu et al. 2023) and GPC (Zhao et al. 2023)


def centre_contrast(z: Rows, centres: Rows, used: int, own: list[int], temperature: Row) -> float:
    """Minus log of the own centre's share among the centres in use, each cosine over its centre's temperature."""
    terms = []
    for row, label in zip(z, own, strict=True):
        if label >= 0:
            scores = [dot(row, centres[c]) / temperature[c] for c in range(used)]
            terms.append(log_sum_exp(scores) - scores[label])
    return mean(terms)


def density_temperatures(points: Rows, own: list[int], centres: Rows, average: float) -> Row:
    """phi_c: the mean distance to the centre over log(n + 10), for clusters of two points or more, else the largest of
    these; clipped between the 10th and the 90th percentile, and scaled to the average.
    """
    values: list[float | None] = []
    for c, centre in enumerate(centres):
        distances = [distance(p, centre) for p, label in zip(points, own, strict=True) if label == c]
        values.append(mean(distances) / math.log(len(distances) + 10) if len(distances) > 1 else None)
    largest = max([value for value in values if value is not None], default=0.0)
    found = [largest if value is None else value for value in values]
    low, high = quantile(found, 0.1), quantile(found, 0.9)
    found = [min(max(value, low), high) for value in found]
    return [average * value / mean(found) if mean(found) > 0 else average for value in found]


# PromptCAL (Zhang et al. 2023)


def consensus(z: Rows, k: int) -> Rows:
    """Two rows agree once for each row that has both among its k nearest, and once more for each of them that has the
    other one among its own; rows sum to 1.
    """
    n = len(z)
    near = []
    for i in range(n):
        others = sorted((j for j in range(n) if j != i), key=lambda j, i=i: -dot(z[i], z[j]))
        near.append(set(others[:k]))
    table = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for a in near[i]:
            table[i][a] += 1
            table[a][i] += 1
            for b in near[i]:
                if a != b:
                    table[a][b] += 1
    return [[value / (math.fsum(row) + 1e-10) for value in row] for row in table]


def agreed(z: Rows, queries: int, k: int, share: float) -> list[list[bool]]:
    """One step of diffusion, P P P^T + I; edges above the quantile of those above the mean of the non-zero ones."""
    p, n = consensus(z, k), len(z)
    pp = [[math.fsum(p[i][m] * p[m][j] for m in range(n)) for j in range(n)] for i in range(n)]
    spread = [[math.fsum(pp[i][m] * p[j][m] for m in range(n)) + (i == j) for j in range(n)] for i in range(n)]
    entries = [value for row in spread for value in row if value > 0]
    above = [value for value in entries if value > mean(entries)]
    limit = quantile(above, share)
    return [[spread[i][j] > limit for j in range(queries, n)] for i in range(queries)]


def neighbour_contrast(
    z: Rows, own: Rows, others: Rows, positive: list[list[bool]], candidate: list[list[bool]], temperature: float
) -> float:
    """The mean over the own teacher row and the positives of minus the log of their share among these and candidates."""
    terms = []
    for i, row in enumerate(z):
        scores = [dot(row, other) / temperature for other in others]
        first = dot(row, own[i]) / temperature
        among = [first] + [s for s, p, c in zip(scores, positive[i], candidate[i], strict=True) if p or c]
        good = [first] + [s for s, p in zip(scores, positive[i], strict=True) if p]
        terms.append(mean([log_sum_exp(among) - s for s in good]))
    return mean(terms)


def cross_contrast(z: Rows, teacher: Rows, label: list[int], temperature: float) -> float:
    """Each row against all rows of the teacher but its own; positives are those of the same label."""
    terms = []
    for i, row in enumerate(z):
        scores = {j: dot(row, other) / temperature for j, other in enumerate(teacher) if j != i}
        total = log_sum_exp(list(scores.values()))
        terms.append(mean([total - s for j, s in scores.items() if label[j] == label[i]]))
    return mean(terms)
