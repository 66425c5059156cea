"""Slow forms of every loss, written from the paper with loops and `math` only, never from our code.

Tensors come in as nested lists of Python floats (`tensor.tolist()`). Sizes: B images whose two views are stacked as 2B
rows (i and i+B belong together), N rows, K categories, M known ones. The mean over nothing is 0.
"""

import math

Row = list[float]
Rows = list[Row]
Detectors = list[list[Row]]  # (N, M, 2): channel 0 = "in" (o+), 1 = "out" (o-)


def log_sum_exp(values: Row) -> float:
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values))


def log_softmax(values: Row, temperature: float = 1.0) -> Row:
    scaled = [value / temperature for value in values]
    total = log_sum_exp(scaled)
    return [value - total for value in scaled]


def softmax(values: Row, temperature: float = 1.0) -> Row:
    return [math.exp(value) for value in log_softmax(values, temperature)]


def mean(values: Row) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def dot(a: Row, b: Row) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def first_argmax(values: Row) -> int:
    best = 0
    for index, value in enumerate(values):
        if value > values[best]:
            best = index
    return best


def info_nce(z: Rows, temperature: float = 1.0) -> float:
    """L_rep, unlabelled part: minus the log of the share that the other view of the same image has among all rows but
    the anchor itself (one positive, 2B-2 negatives), each weighted by exp(cosine / temperature); mean over 2B anchors.
    """
    rows = len(z)
    terms = []
    for i in range(rows):
        other_view = (i + rows // 2) % rows
        scores = [dot(z[i], z[j]) / temperature for j in range(rows) if j != i]
        terms.append(log_sum_exp(scores) - dot(z[i], z[other_view]) / temperature)
    return mean(terms)


def supervised_contrastive(z: Rows, y: list[int], temperature: float = 0.07) -> float:
    """L_rep, labelled part: for each of the 2B anchors, the mean over its positives (every other row of the same label,
    its own other view included) of minus the log of that row's share among all rows but the anchor; mean over anchors.
    The result is not multiplied by temperature / base temperature.
    """
    rows = len(z)
    labels = y + y
    terms = []
    for i in range(rows):
        total = log_sum_exp([dot(z[i], z[j]) / temperature for j in range(rows) if j != i])
        positives = [j for j in range(rows) if j != i and labels[j] == labels[i]]
        terms.append(mean([total - dot(z[i], z[j]) / temperature for j in positives]))
    return mean(terms)


def self_distillation(logits: Rows, teacher_temp: float, student_temp: float = 0.1) -> float:
    """Eq. 2, first term: cross-entropy, minus the sum over j of q'(j) log p(j), p the student's softmax of a row and
    q' the teacher's sharper softmax of the other view of the same image; mean over both views of all images.
    """
    rows = len(logits)
    terms = []
    for i in range(rows):
        teacher = softmax(logits[(i + rows // 2) % rows], teacher_temp)
        student = log_softmax(logits[i], student_temp)
        terms.append(-math.fsum(q * log_p for q, log_p in zip(teacher, student, strict=True)))
    return mean(terms)


def self_distillation_gradient(logits: Rows, teacher_temp: float, student_temp: float = 0.1) -> Rows:
    """Derivative of Eq. 2's first term when the teacher q' is a constant: (p(j) - q'(j)) / student_temp / rows."""
    rows = len(logits)
    gradient = []
    for i in range(rows):
        teacher = softmax(logits[(i + rows // 2) % rows], teacher_temp)
        student = softmax(logits[i], student_temp)
        gradient.append([(p - q) / student_temp / rows for p, q in zip(student, teacher, strict=True)])
    return gradient


def mean_entropy(logits: Rows, temperature: float = 0.1) -> float:
    """Eq. 2, H(p-bar): minus the sum over j of p-bar(j) log p-bar(j), where p-bar is the mean of p over both views of
    all images; 0 log 0 = 0.
    """
    if not logits:
        return 0.0
    probabilities = [softmax(row, temperature) for row in logits]
    entropy = 0.0
    for j in range(len(logits[0])):
        average = mean([row[j] for row in probabilities])
        if average > 0.0:
            entropy -= average * math.log(average)
    return entropy


def size_divergence(logits: Rows, share: Row, temperature: float = 0.1) -> float:
    """KL(p-bar || share): the sum over j of p-bar(j) (log p-bar(j) - log share(j)); 0 log 0 = 0."""
    if not logits:
        return 0.0
    probabilities = [softmax(row, temperature) for row in logits]
    divergence = 0.0
    for j in range(len(share)):
        average = mean([row[j] for row in probabilities])
        if average > 0.0:
            divergence += average * (math.log(average) - math.log(share[j]))
    return divergence


def supervised(logits: Rows, y: list[int], temperature: float = 0.1) -> float:
    """L_cls^s and Eq. 12: the cross-entropy of softmax and one-hot label, minus log p(y); mean over the rows."""
    return mean([-log_softmax(row, temperature)[label] for row, label in zip(logits, y, strict=True)])


def one_vs_all_labelled(logits: Detectors, y: list[int]) -> float:
    """Eq. 4: minus log o+ of the own class's detector, minus the minimum over all other detectors of log o-; mean over
    the rows. With M = 1 there is no other detector, and that term is zero.
    """
    terms = []
    for detectors, label in zip(logits, y, strict=True):
        own = log_softmax(detectors[label])[0]
        others = [log_softmax(pair)[1] for k, pair in enumerate(detectors) if k != label]
        terms.append(-own - (min(others) if others else 0.0))
    return mean(terms)


def one_vs_all_entropy(logits: Detectors) -> float:
    """Eq. 5: minus the sum over the M detectors of o+ log o+ plus o- log o-; mean over the rows.

    (The paper prints o- with index k inside a sum over j; the same detector is meant.)
    """
    terms = []
    for detectors in logits:
        total = 0.0
        for pair in detectors:
            for log_o in log_softmax(pair):
                total -= math.exp(log_o) * log_o
        terms.append(total)
    return mean(terms)


def novelty(logits: Detectors) -> Row:
    """Eq. 7: s is the o- of the detector whose o+ is the largest of the M."""
    scores = []
    for detectors in logits:
        outputs = [softmax(pair) for pair in detectors]
        winner = first_argmax([pair[0] for pair in outputs])
        scores.append(outputs[winner][1])
    return scores


def certainty(s: Row) -> Row:
    """Eq. 10: d = |2 s - 1|."""
    return [abs(2.0 * score - 1.0) for score in s]


def consistent(category: list[int], s: Row, known: int) -> list[bool]:
    """Eq. 9: (predicted category is new and s > 0.5) or (predicted category is known and s < 0.5), both strict.

    "y-hat in Y_u" means the new classes only (design, section 3).
    """
    answers = []
    for predicted, score in zip(category, s, strict=True):
        is_new = predicted >= known
        answers.append((is_new and score > 0.5) or (not is_new and score < 0.5))
    return answers


def debiased_unlabelled(
    debiased_logits: Rows,
    logits: Rows,
    s: Row | None,
    known: int,
    threshold: float | Row,
    temperature: float = 0.1,
    *,
    use_certainty: bool = True,
    use_consistency: bool = True,
) -> float:
    """Eq. 11: 1(max p > tau) times F(y-hat, s) times d times the cross-entropy of the debiased softmax p^a and the
    one-hot y-hat = argmax p; the mean is over all rows, not over the accepted ones. A switch leaves its factor out.
    """
    terms = []
    for i in range(len(logits)):
        p = softmax(logits[i], temperature)
        y_hat = first_argmax(logits[i])
        tau = threshold[i] if isinstance(threshold, list) else threshold
        weight = 1.0 if p[y_hat] > tau else 0.0
        if use_consistency:
            weight *= 1.0 if consistent([y_hat], [s[i]], known)[0] else 0.0
        if use_certainty:
            weight *= certainty([s[i]])[0]
        terms.append(weight * -log_softmax(debiased_logits[i], temperature)[y_hat])
    return mean(terms)


def choice_on_side(logits: list[float], s: float, known: int) -> int:
    """Preset small: the detector says known (s <= 1/2) or new, the classifier which of these; of all, if there is none."""
    side = [k for k in range(len(logits)) if (k >= known) == (s > 0.5)] or list(range(len(logits)))
    return max(side, key=lambda k: logits[k])


def one_vs_all_unlabelled(logits: Detectors) -> float:
    """Preset small: mean over unlabelled rows of -log s, with s of Eq. 7 (the o- of the detector with the largest o+)."""
    terms = []
    for row in logits:
        claims = [plus - minus for plus, minus in row]  # o+ grows with the difference, and may be 1 for several
        most = claims.index(max(claims))
        terms.append(-log_softmax(row[most], 1.0)[1])
    return mean(terms)


def one_vs_all_consistency(logits: Detectors) -> float:
    """The released scripts' soft consistency: the sum over the M detectors and over + and - of the squared difference
    between the outputs o for view 1 (row i) and view 2 (row i+N) of an image; mean over the N images.
    """
    images = len(logits) // 2
    terms = []
    for i in range(images):
        total = 0.0
        for one, two in zip(logits[i], logits[i + images], strict=True):
            for o_one, o_two in zip(softmax(one), softmax(two), strict=True):
                total += (o_one - o_two) ** 2
        terms.append(total)
    return mean(terms)
