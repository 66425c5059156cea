"""Slow forms of the losses of ORCA, UNO and μGCD, written from their papers with loops and `math`, never from our code.

Tensors come in as nested lists, as in oracles.py; heads are one more level outside.
"""

import math

from oracles import Row, Rows, dot, log_softmax, log_sum_exp, mean, softmax

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


# UNO (Fini et al. 2021)


def sinkhorn(logits: Rows, iterations: int = 3, epsilon: float = 0.05) -> Rows:
    """Sinkhorn-Knopp on exp(logits / epsilon): so many times, every category is scaled to the weight 1/K, then every
    image to the weight 1/N; at last multiplied by N, so that an image's weights sum to 1.
    """
    if not logits:
        return []
    images, categories = len(logits), len(logits[0])
    largest = max(max(row) for row in logits)
    q = [[math.exp((value - largest) / epsilon) for value in row] for row in logits]
    for _ in range(iterations):
        for k in range(categories):
            weight = math.fsum(row[k] for row in q)
            for row in q:
                row[k] /= weight * categories
        for row in q:
            weight = math.fsum(row)
            for k in range(categories):
                row[k] /= weight * images
    return [[value * images for value in row] for row in q]


def swapped_targets(
    logits: list[Rows], label: list[int], iterations: int = 3, epsilon: float = 0.05
) -> list[list[list[float]]]:
    """The target of each row of each head, from the labels of the B images (-1: none): one-hot for a labelled image; for
    another one, the row of its *other* view in the Sinkhorn assignment of all unlabelled images in that view.
    """
    images = len(label)
    free = [i for i in range(images) if label[i] < 0]
    result = []
    for head in logits:
        targets: Rows = [[] for _ in head]
        for view in (0, 1):
            assigned = sinkhorn([head[view * images + i] for i in free], iterations, epsilon)
            for i in range(images):
                if label[i] < 0:
                    targets[(1 - view) * images + i] = assigned[free.index(i)]
                else:
                    targets[view * images + i] = [float(k == label[i]) for k in range(len(head[0]))]
        result.append(targets)
    return result


def swapped(logits: list[Rows], targets: list[Rows], temperature: float = 0.1) -> Row:
    """For each head: minus the sum over k of target(k) log p(k); mean over its rows."""
    values = []
    for head, wanted in zip(logits, targets, strict=True):
        terms = []
        for row, target in zip(head, wanted, strict=True):
            log_p = log_softmax(row, temperature)
            terms.append(-math.fsum(t * value for t, value in zip(target, log_p, strict=True)))
        values.append(mean(terms))
    return values


# PIM (Chiaroni et al. 2023)


def conditional_entropy(logits: Rows, temperature: float = 0.1) -> float:
    """H(Y|X): minus the sum over k of p(k) log p(k); mean over the rows."""
    terms = []
    for row in logits:
        log_p = log_softmax(row, temperature)
        terms.append(-math.fsum(math.exp(value) * value for value in log_p))
    return mean(terms)


# μGCD (Vaze et al. 2023)


def teacher_distillation(student: Rows, teacher: Rows, teacher_temp: float, student_temp: float = 0.1) -> float:
    """L_u without its entropy term: minus the sum over k of the teacher's sharpened q(k) times the student's log p(k);
    mean over the images.
    """
    terms = []
    for own, given in zip(student, teacher, strict=True):
        q, log_p = softmax(given, teacher_temp), log_softmax(own, student_temp)
        terms.append(-math.fsum(a * b for a, b in zip(q, log_p, strict=True)))
    return mean(terms)


def momentum(progress: float, base: float, end: float) -> float:
    """omega(t) = omega_T - (1 - omega_base) (cos(pi t / T) + 1) / 2."""
    return end - (1.0 - base) * (math.cos(math.pi * progress) + 1.0) / 2.0
