"""Slow forms of the losses of ORCA, written from its paper with loops and `math`, never from our code.

Tensors come in as nested lists, as in oracles.py.
"""

import math

from oracles import Row, Rows, dot, log_softmax, log_sum_exp, mean

# ORCA (Cao et al. 2022)


def uncertainty(p: Rows) -> float:
    """u-bar: the mean over the unlabelled images of 1 - max over k of Pr(Y = k)."""
    return mean([1.0 - max(row) for row in p])


def margin_supervised(logits: Rows, y: list[int], margin: float, temperature: float = 0.1) -> float:
    """L_S: minus the log of e^{s (cos(y) + margin)} over itself plus the sum over all other k of e^{s cos(k)}, with
    margin = lambda u-bar and s = 1 / temperature; mean over the labelled rows.
    """
    terms = []
    for row, label in zip(logits, y, strict=True):
        own = (row[label] + margin) / temperature
        others = [value / temperature for k, value in enumerate(row) if k != label]
        terms.append(log_sum_exp([own, *others]) - own)
    return mean(terms)


def partners(feature: Rows, labelled: list[int], y: list[int], draw: Row) -> list[int]:
    """Pairs of L_P: for a labelled image another one of its class, the one that the draw in [0, 1) falls on when the
    others share that interval in equal parts; for an unlabelled image the other image with the largest cosine. An image
    without any other is its own partner.
    """
    chosen = []
    for i, own in enumerate(feature):
        if i in labelled:
            place = labelled.index(i)
            others = [labelled[j] for j in range(len(y)) if j != place and y[j] == y[place]]
            chosen.append(others[min(int(draw[place] * len(others)), len(others) - 1)] if others else i)
            continue
        best, largest = i, -math.inf
        for j, other in enumerate(feature):
            cosine = dot(own, other) / math.sqrt(dot(own, own) * dot(other, other))
            if j != i and cosine > largest:
                best, largest = j, cosine
        chosen.append(best)
    return chosen


def pairwise(logits: Rows, partner: list[int], temperature: float = 0.1) -> float:
    """L_P: minus the log of the inner product of the softmax of an image's first view and the softmax of its partner's
    second view; mean over the images.
    """
    images = len(logits) // 2
    terms = []
    for i in range(images):
        one = log_softmax(logits[i], temperature)
        two = log_softmax(logits[images + partner[i]], temperature)
        terms.append(-log_sum_exp([a + b for a, b in zip(one, two, strict=True)]))
    return mean(terms)
