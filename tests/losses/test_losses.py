"""Every loss against its slow form (oracles.py), and what a caller relies on: live zeros, gradients, extremes."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import oracles
import peer_oracles
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd import losses

SEEDS = range(24)
SWITCHES = list(itertools.product([True, False], repeat=2))


def close(actual: Tensor, expected: float, tolerance: float = 1e-10) -> bool:
    assert actual.shape == ()
    return math.isclose(actual.item(), expected, rel_tol=tolerance, abs_tol=tolerance)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def size(rng: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=rng))


def normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def uniform(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=rng, dtype=torch.float64)


def unit(x: Tensor) -> Tensor:
    return normalize(x, dim=-1)


def cosines(rng: torch.Generator, rows: int, categories: int) -> Tensor:
    return 2 * uniform(rng, rows, categories) - 1


# Against the oracle: (B, d) and so on, corners first, then sizes drawn from the seed.

CONTRASTIVE = [(1, 1), (1, 8), (2, 1), (2, 3), (13, 5), *[(None, None)] * len(SEEDS)]
CLASSIFIER = [(1, 1), (1, 2), (1, 7), (6, 1), (2, 2), (17, 9), *[(None, None)] * len(SEEDS)]
DETECTOR = [(1, 1), (1, 2), (7, 1), (2, 2), (11, 8), *[(None, None)] * len(SEEDS)]


def drawn(shapes: list) -> list[tuple[int, int, int]]:
    """Give every case its seed, and the open ones their two sizes."""
    cases = []
    for seed, (first, second) in enumerate(shapes):
        rng = generator(1000 + seed)
        cases.append((seed, first or size(rng, 1, 9), second or size(rng, 1, 9)))
    return cases


def labels(kind: str, rng: torch.Generator, rows: int, classes: int) -> Tensor:
    if kind == "one label":
        return torch.full((rows,), size(rng, 0, classes - 1))
    if kind == "all distinct":
        return torch.randperm(rows, generator=rng)
    return torch.randint(classes, (rows,), generator=rng)


@pytest.mark.parametrize("temperature", [1.0, 0.07])
@pytest.mark.parametrize(("seed", "images", "width"), drawn(CONTRASTIVE))
def test_info_nce(seed: int, images: int, width: int, temperature: float):
    z = unit(normal(generator(seed), 2 * images, width))
    assert close(losses.info_nce(z, temperature), oracles.info_nce(z.tolist(), temperature))


@pytest.mark.parametrize("kind", ["one label", "all distinct", "mixed"])
@pytest.mark.parametrize(("seed", "images", "width"), drawn(CONTRASTIVE))
def test_supervised_contrastive(seed: int, images: int, width: int, kind: str):
    rng = generator(seed)
    z = unit(normal(rng, 2 * images, width))
    y = labels(kind, rng, images, classes=3)
    temperature = [0.07, 0.5, 1.0][seed % 3]
    expected = oracles.supervised_contrastive(z.tolist(), y.tolist(), temperature)
    assert close(losses.supervised_contrastive(z, y, temperature), expected)


@pytest.mark.parametrize(("seed", "images", "categories"), drawn(CLASSIFIER))
def test_self_distillation(seed: int, images: int, categories: int):
    logits = cosines(generator(seed), 2 * images, categories)
    for teacher_temp, student_temp in [(0.07, 0.1), (0.04, 0.1), (0.5, 0.3)]:
        expected = oracles.self_distillation(logits.tolist(), teacher_temp, student_temp)
        assert close(losses.self_distillation(logits, teacher_temp, student_temp), expected)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("seed", "images", "categories"), drawn(CLASSIFIER))
def test_mean_entropy(seed: int, images: int, categories: int, temperature: float):
    logits = cosines(generator(seed), 2 * images, categories)
    assert close(losses.mean_entropy(logits, temperature), oracles.mean_entropy(logits.tolist(), temperature))


def shares(rng: torch.Generator, categories: int) -> Tensor:
    """Positive, of very different sizes, with sum 1."""
    return (3 * normal(rng, categories)).softmax(0)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("seed", "rows", "categories"), drawn(CLASSIFIER))
def test_size_divergence(seed: int, rows: int, categories: int, temperature: float):
    rng = generator(seed)
    logits, share = cosines(rng, rows, categories), shares(rng, categories)
    expected = oracles.size_divergence(logits.tolist(), share.tolist(), temperature)
    assert close(losses.size_divergence(logits, share, temperature), expected)
    equal = torch.full_like(share, 1 / categories)
    entropy = losses.mean_entropy(logits, temperature).item()
    assert close(losses.size_divergence(logits, equal, temperature), math.log(categories) - entropy)


@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_shares_of_another_number_of_categories_are_refused(length: int):
    with pytest.raises(ValueError, match=r"\bshare\b"):
        losses.size_divergence(torch.zeros(2, 4), torch.ones(length))


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("seed", "rows", "categories"), drawn(CLASSIFIER))
def test_conditional_entropy(seed: int, rows: int, categories: int, temperature: float):
    logits = cosines(generator(seed), rows, categories)
    expected = peer_oracles.conditional_entropy(logits.tolist(), temperature)
    assert close(losses.conditional_entropy(logits, temperature), expected)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("seed", "rows", "categories"), drawn(CLASSIFIER))
def test_supervised(seed: int, rows: int, categories: int, temperature: float):
    rng = generator(seed)
    logits = cosines(rng, rows, categories)
    y = labels(["mixed", "one label"][seed % 2], rng, rows, categories)
    expected = oracles.supervised(logits.tolist(), y.tolist(), temperature)
    assert close(losses.supervised(logits, y, temperature), expected)


@pytest.mark.parametrize("kind", ["one label", "mixed"])
@pytest.mark.parametrize(("seed", "rows", "known"), drawn(DETECTOR))
def test_one_vs_all_labelled(seed: int, rows: int, known: int, kind: str):
    rng = generator(seed)
    logits = 3 * normal(rng, rows, known, 2)
    y = labels(kind, rng, rows, known)
    assert close(losses.one_vs_all_labelled(logits, y), oracles.one_vs_all_labelled(logits.tolist(), y.tolist()))


@pytest.mark.parametrize(("seed", "rows", "known"), drawn(DETECTOR))
def test_one_vs_all_entropy(seed: int, rows: int, known: int):
    logits = 3 * normal(generator(seed), rows, known, 2)
    assert close(losses.one_vs_all_entropy(logits), oracles.one_vs_all_entropy(logits.tolist()))


@pytest.mark.parametrize(("seed", "rows", "known"), drawn(DETECTOR))
def test_one_vs_all_unlabelled(seed: int, rows: int, known: int):
    logits = 3 * normal(generator(seed), rows, known, 2)
    assert close(losses.one_vs_all_unlabelled(logits), oracles.one_vs_all_unlabelled(logits.tolist()))


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_one_vs_all_unlabelled_and_labelled_balance_by_the_share_of_known_images(share: float):
    """Where 20 labelled rows lie and share · 20 unlabelled ones that look the same, both losses balance at r / (1 + r)."""
    s = share / (1 + share)
    pair = torch.tensor([math.log(1 - s), math.log(s)], dtype=torch.float64, requires_grad=True)
    logits = pair.expand(20, 1, 2)
    balance = losses.one_vs_all_labelled(logits, torch.zeros(20, dtype=torch.long))
    balance = balance + share * losses.one_vs_all_unlabelled(logits)  # of as many unlabelled rows, a share lies here
    balance.backward()
    assert pair.grad.abs().max() < 1e-12


@pytest.mark.parametrize(("seed", "images", "known"), drawn(DETECTOR))
def test_one_vs_all_consistency(seed: int, images: int, known: int):
    logits = 3 * normal(generator(seed), 2 * images, known, 2)
    assert close(losses.one_vs_all_consistency(logits), oracles.one_vs_all_consistency(logits.tolist()))


@pytest.mark.parametrize(("seed", "rows", "known"), drawn(DETECTOR))
def test_novelty(seed: int, rows: int, known: int):
    logits = 3 * normal(generator(seed), rows, known, 2)
    s = losses.novelty(logits)
    assert s.shape == (rows,)
    assert s.tolist() == pytest.approx(oracles.novelty(logits.tolist()), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_certainty_and_consistent(seed: int):
    rng = generator(seed)
    rows, categories = size(rng, 1, 20), size(rng, 1, 9)
    known = size(rng, 1, categories)
    s = uniform(rng, rows)
    s[torch.rand(rows, generator=rng) < 0.3] = [0.0, 0.5, 1.0][seed % 3]
    category = torch.randint(categories, (rows,), generator=rng)
    assert losses.certainty(s).tolist() == pytest.approx(oracles.certainty(s.tolist()), rel=1e-10, abs=1e-10)
    agree = losses.consistent(category, s, known)
    assert agree.dtype == torch.bool
    assert agree.tolist() == oracles.consistent(category.tolist(), s.tolist(), known)


@pytest.mark.parametrize(("use_certainty", "use_consistency"), SWITCHES)
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize(("seed", "rows", "categories"), drawn(CLASSIFIER))
def test_debiased_unlabelled(
    seed: int, rows: int, categories: int, per_row: bool, use_certainty: bool, use_consistency: bool
):
    rng = generator(seed)
    debiased, logits, s = cosines(rng, rows, categories), cosines(rng, rows, categories), uniform(rng, rows)
    s[torch.rand(rows, generator=rng) < 0.2] = 0.5
    known = categories if seed % 4 == 0 else size(rng, 1, categories)  # K = M: no new category at all
    threshold = 0.2 + 0.75 * uniform(rng, rows)
    threshold = threshold if per_row else threshold[0].item()
    temperature = [0.1, 0.3][seed % 2]
    switches = {"use_certainty": use_certainty, "use_consistency": use_consistency}
    expected = oracles.debiased_unlabelled(
        debiased.tolist(),
        logits.tolist(),
        s.tolist(),
        known,
        threshold.tolist() if per_row else threshold,
        temperature,
        **switches,
    )
    assert close(losses.debiased_unlabelled(debiased, logits, s, known, threshold, temperature, **switches), expected)
    if not (use_certainty or use_consistency):
        without = losses.debiased_unlabelled(debiased, logits, None, known, threshold, temperature, **switches)
        assert close(without, expected)


def test_the_debiased_cases_accept_some_rows_and_refuse_others():
    """Otherwise the test above would compare zeros with zeros."""
    accepted = total = 0
    for seed, rows, categories in drawn(CLASSIFIER):
        rng = generator(seed)
        cosines(rng, rows, categories)
        for row in cosines(rng, rows, categories).tolist():
            accepted += max(oracles.softmax(row, [0.1, 0.3][seed % 2])) > 0.575  # the middle of the thresholds drawn
            total += 1
    assert 0.2 < accepted / total < 0.8


def test_default_temperatures():
    rng = generator(5)
    z, logits, y = unit(normal(rng, 8, 6)), cosines(rng, 8, 5), torch.tensor([0, 1, 1, 2])
    s, debiased, both = uniform(rng, 8), cosines(rng, 8, 5), y.repeat(2)
    assert close(losses.info_nce(z), oracles.info_nce(z.tolist(), 1.0))
    assert close(losses.supervised_contrastive(z, y), oracles.supervised_contrastive(z.tolist(), y.tolist(), 0.07))
    assert close(losses.self_distillation(logits, 0.05), oracles.self_distillation(logits.tolist(), 0.05, 0.1))
    assert close(losses.mean_entropy(logits), oracles.mean_entropy(logits.tolist(), 0.1))
    share = shares(rng, 5)
    assert close(losses.size_divergence(logits, share), oracles.size_divergence(logits.tolist(), share.tolist(), 0.1))
    assert close(losses.conditional_entropy(logits), peer_oracles.conditional_entropy(logits.tolist(), 0.1))
    assert close(losses.supervised(logits, both), oracles.supervised(logits.tolist(), both.tolist(), 0.1))
    expected = oracles.debiased_unlabelled(debiased.tolist(), logits.tolist(), s.tolist(), 3, 0.3, 0.1)
    assert expected > 0
    assert close(losses.debiased_unlabelled(debiased, logits, s, 3, 0.3), expected)


# Every loss as a function of the tensor it trains, for the tests that ask the same of all of them.

CATEGORIES, KNOWN, WIDTH = 5, 3, 4


@dataclass(frozen=True)
class Loss:
    """`shape(n)` is the trained tensor's shape for n images; `call(x, n)` the loss, with fixed other arguments."""

    shape: Callable[[int], tuple[int, ...]]
    call: Callable[[Tensor, int], Tensor]
    unit_rows: bool = False

    def example(self, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
        x = normal(generator(3), *self.shape(n)).to(dtype)
        return unit(x) if self.unit_rows else x.clamp(-1, 1)


def some_labels(n: int) -> Tensor:
    return torch.arange(n) % KNOWN


def debiased_with(**switches: bool) -> Callable[[Tensor, int], Tensor]:
    def call(x: Tensor, n: int) -> Tensor:
        rng = generator(4)
        logits, s = cosines(rng, n, CATEGORIES).to(x), uniform(rng, n).to(x)
        return losses.debiased_unlabelled(x, logits, s, KNOWN, 0.3, **switches)

    return call


LOSSES = {
    "info_nce": Loss(lambda n: (2 * n, WIDTH), lambda x, n: losses.info_nce(x, 0.5), unit_rows=True),
    "supervised_contrastive": Loss(
        lambda n: (2 * n, WIDTH), lambda x, n: losses.supervised_contrastive(x, some_labels(n)), unit_rows=True
    ),
    "self_distillation": Loss(lambda n: (2 * n, CATEGORIES), lambda x, n: losses.self_distillation(x, 0.07)),
    "mean_entropy": Loss(lambda n: (2 * n, CATEGORIES), lambda x, n: losses.mean_entropy(x)),
    "size_divergence": Loss(
        lambda n: (n, CATEGORIES), lambda x, n: losses.size_divergence(x, shares(generator(5), CATEGORIES).to(x))
    ),
    "conditional_entropy": Loss(lambda n: (n, CATEGORIES), lambda x, n: losses.conditional_entropy(x)),
    "supervised": Loss(lambda n: (n, CATEGORIES), lambda x, n: losses.supervised(x, some_labels(n))),
    "one_vs_all_labelled": Loss(lambda n: (n, KNOWN, 2), lambda x, n: losses.one_vs_all_labelled(x, some_labels(n))),
    "one_vs_all_labelled, M = 1": Loss(
        lambda n: (n, 1, 2), lambda x, n: losses.one_vs_all_labelled(x, torch.zeros(n, dtype=torch.long))
    ),
    "one_vs_all_entropy": Loss(lambda n: (n, KNOWN, 2), lambda x, n: losses.one_vs_all_entropy(x)),
    "one_vs_all_unlabelled": Loss(lambda n: (n, KNOWN, 2), lambda x, n: losses.one_vs_all_unlabelled(x)),
    "one_vs_all_consistency": Loss(lambda n: (2 * n, KNOWN, 2), lambda x, n: losses.one_vs_all_consistency(x)),
} | {
    f"debiased_unlabelled, certainty {c}, consistency {f}": Loss(
        lambda n: (n, CATEGORIES), debiased_with(use_certainty=c, use_consistency=f)
    )
    for c, f in SWITCHES
}

each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


@each_loss
def test_empty_set_gives_a_live_zero(loss: Loss):
    """A batch without such images must still reach every parameter, or distributed training waits for ever."""
    shape = loss.shape(0)
    weight = torch.ones(6, math.prod(shape[1:]), dtype=torch.float64, requires_grad=True)
    x = (torch.zeros(0, 6, dtype=torch.float64) @ weight).reshape(shape)
    value = loss.call(x, 0)
    assert value.shape == ()
    assert value.item() == 0.0
    assert value.requires_grad
    value.backward()
    assert weight.grad is not None
    assert weight.grad.count_nonzero() == 0


def test_debiased_empty_set_with_thresholds_by_row_or_without_novelty():
    x = torch.zeros(0, CATEGORIES, requires_grad=True)
    for s, threshold in [(torch.zeros(0), torch.zeros(0)), (None, 0.85), (None, torch.zeros(0))]:
        on = s is not None
        value = losses.debiased_unlabelled(x, x, s, KNOWN, threshold, use_certainty=on, use_consistency=on)
        assert value.item() == 0.0
        assert value.requires_grad


def test_debiased_zero_is_live_when_no_row_is_accepted():
    x = cosines(generator(0), 4, CATEGORIES).requires_grad_()
    value = losses.debiased_unlabelled(x, torch.zeros(4, CATEGORIES), torch.full((4,), 0.9), KNOWN, 0.85)
    assert value.item() == 0.0
    value.backward()
    assert x.grad.count_nonzero() == 0


def test_functions_that_return_rows_return_none_for_none():
    assert losses.novelty(torch.zeros(0, KNOWN, 2)).shape == (0,)
    assert losses.certainty(torch.zeros(0)).shape == (0,)
    agree = losses.consistent(torch.zeros(0, dtype=torch.long), torch.zeros(0), KNOWN)
    assert agree.shape == (0,)
    assert agree.dtype == torch.bool


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "self_distillation"])
@pytest.mark.parametrize("images", [1, 4])
def test_gradients(name: str, images: int):
    loss = LOSSES[name]
    x = normal(generator(3), *loss.shape(images)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss.call(unit(x) if loss.unit_rows else x, images), (x,))


@pytest.mark.parametrize(("images", "teacher_temp"), [(1, 0.07), (4, 0.05), (7, 0.3)])
def test_teacher_of_self_distillation_gets_no_gradient(images: int, teacher_temp: float):
    """gradcheck would move the teacher too; the oracle is the derivative with the teacher held still."""
    logits = cosines(generator(images), 2 * images, 5).requires_grad_()
    losses.self_distillation(logits, teacher_temp).backward()
    expected = torch.tensor(oracles.self_distillation_gradient(logits.tolist(), teacher_temp), dtype=torch.float64)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("use_certainty", "use_consistency"), SWITCHES)
def test_debiased_gradient_stops_at_the_gcd_classifier_and_the_detector(use_certainty: bool, use_consistency: bool):
    rng = generator(9)
    debiased, logits = cosines(rng, 12, 6).requires_grad_(), cosines(rng, 12, 6).requires_grad_()
    s = uniform(rng, 12).requires_grad_()
    switches = {"use_certainty": use_certainty, "use_consistency": use_consistency}
    losses.debiased_unlabelled(debiased, logits, s, 3, 0.3, **switches).backward()
    assert debiased.grad.count_nonzero() > 0
    for fixed in (logits, s):
        assert fixed.grad is None or fixed.grad.count_nonzero() == 0
    silent = losses.debiased_unlabelled(debiased.detach(), logits, s, 3, 0.3, **switches)
    assert not silent.requires_grad or all(
        g is None or g.count_nonzero() == 0 for g in torch.autograd.grad(silent, (logits, s), allow_unused=True)
    )


@each_loss
def test_float32_is_close_to_float64(loss: Loss):
    x = loss.example(6, torch.float32)
    narrow = loss.call(x, 6)
    assert narrow.dtype == torch.float32
    assert close(narrow, loss.call(x.double(), 6).item(), 1e-5)


@each_loss
def test_inputs_are_not_modified(loss: Loss):
    x = loss.example(6).requires_grad_()
    before = x.detach().clone()
    loss.call(x, 6).backward()
    assert x._version == 0
    assert torch.equal(x.detach(), before)


def test_other_arguments_are_not_modified():
    rng = generator(2)
    debiased, logits, s, y = cosines(rng, 6, 5), cosines(rng, 6, 5), uniform(rng, 6), torch.tensor([0, 1, 2, 0, 1, 2])
    detectors, z, threshold = normal(rng, 6, 3, 2), unit(normal(rng, 12, 4)), 0.3 + 0.1 * uniform(rng, 6)
    arguments = [debiased, logits, s, y, detectors, z, threshold]
    before = [(a.clone(), a._version) for a in arguments]
    losses.debiased_unlabelled(debiased, logits, s, 3, threshold)
    losses.supervised(logits, y)
    losses.supervised_contrastive(z, y)
    losses.one_vs_all_labelled(detectors, y)
    losses.novelty(detectors)
    losses.certainty(s)
    losses.consistent(y, s, 2)
    for argument, (copy, version) in zip(arguments, before, strict=True):
        assert argument._version == version
        assert torch.equal(argument, copy)


# Extremes: logits of ±1e4, temperature 0.01, both precisions; values as the oracle has them, gradients finite.

PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])


def extreme_rows(rows: int, columns: int, seed: int, alike: bool) -> Tensor:
    """Each row runs from -1e4 to 1e4 without ties; in the same order in all rows, or in an order of its own."""
    ladder = torch.linspace(-1e4, 1e4, columns)
    rng = generator(seed)
    orders = [torch.randperm(columns, generator=rng) for _ in range(rows)]
    return torch.stack([ladder[orders[0 if alike else i]] for i in range(rows)])


@PRECISIONS
@pytest.mark.parametrize("alike", [True, False])
def test_extreme_classifier_logits(alike: bool, dtype: torch.dtype, tolerance: float):
    y, s = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), torch.linspace(0, 1, 8)
    x = extreme_rows(8, CATEGORIES, 0, alike).to(dtype)
    other = extreme_rows(8, CATEGORIES, 1, alike).to(dtype)
    rows, others, share = x.tolist(), other.tolist(), shares(generator(5), CATEGORIES)
    pairs: list[tuple[Callable[[Tensor], Tensor], float]] = [
        (lambda x: losses.self_distillation(x, 0.01, 0.01), oracles.self_distillation(rows, 0.01, 0.01)),
        (lambda x: losses.mean_entropy(x, 0.01), oracles.mean_entropy(rows, 0.01)),
        (
            lambda x: losses.size_divergence(x, share.to(dtype), 0.01),
            oracles.size_divergence(rows, share.tolist(), 0.01),
        ),
        (lambda x: losses.conditional_entropy(x, 0.01), peer_oracles.conditional_entropy(rows, 0.01)),
        (lambda x: losses.supervised(x, y, 0.01), oracles.supervised(rows, y.tolist(), 0.01)),
        (
            lambda x: losses.debiased_unlabelled(x, other, s.to(dtype), KNOWN, 0.85, 0.01),
            oracles.debiased_unlabelled(rows, others, s.tolist(), KNOWN, 0.85, 0.01),
        ),
    ]
    for call, expected in pairs:
        leaf = x.clone().requires_grad_()
        value = call(leaf)
        assert math.isfinite(expected)
        assert close(value, expected, tolerance)
        value.backward()
        assert leaf.grad.isfinite().all()


@PRECISIONS
@pytest.mark.parametrize("alike", [True, False])
def test_extreme_detector_logits(alike: bool, dtype: torch.dtype, tolerance: float):
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    x = extreme_rows(8, 2 * KNOWN, 2, alike).reshape(8, KNOWN, 2).to(dtype)
    rows = x.tolist()
    pairs: list[tuple[Callable[[Tensor], Tensor], float]] = [
        (lambda x: losses.one_vs_all_labelled(x, y), oracles.one_vs_all_labelled(rows, y.tolist())),
        (losses.one_vs_all_entropy, oracles.one_vs_all_entropy(rows)),
        (losses.one_vs_all_unlabelled, oracles.one_vs_all_unlabelled(rows)),
        (losses.one_vs_all_consistency, oracles.one_vs_all_consistency(rows)),
        (lambda x: losses.novelty(x).sum(), sum(oracles.novelty(rows))),
    ]
    for call, expected in pairs:
        leaf = x.clone().requires_grad_()
        value = call(leaf)
        assert close(value, expected, tolerance)
        if value.requires_grad:
            value.backward()
            assert leaf.grad.isfinite().all()


@PRECISIONS
@pytest.mark.parametrize("width", [1, 3])
def test_extreme_contrast(width: int, dtype: torch.dtype, tolerance: float):
    """Equal and opposite rows at temperature 0.01: exp(100) is beyond float32."""
    z = torch.zeros(8, width, dtype=dtype)
    z[:, 0] = torch.tensor([1, -1, 1, 1, -1, -1, 1, -1])
    y = torch.tensor([0, 1, 0, 2])
    for call, expected in [
        (lambda z: losses.info_nce(z, 0.01), oracles.info_nce(z.tolist(), 0.01)),
        (
            lambda z: losses.supervised_contrastive(z, y, 0.01),
            oracles.supervised_contrastive(z.tolist(), y.tolist(), 0.01),
        ),
    ]:
        leaf = z.clone().requires_grad_()
        value = call(leaf)
        assert close(value, expected, tolerance)
        value.backward()
        assert leaf.grad.isfinite().all()


# Strict inequalities.


def test_threshold_is_strict():
    """Four equal cosines: max p is exactly 0.25."""
    logits = torch.zeros(3, 4, dtype=torch.float64)
    off = {"use_certainty": False, "use_consistency": False}
    below = math.nextafter(0.25, 0)
    assert losses.debiased_unlabelled(logits, logits, None, 2, 0.25, **off).item() == 0.0
    assert close(losses.debiased_unlabelled(logits, logits, None, 2, below, **off), math.log(4))
    by_row = torch.tensor([0.25, below, below], dtype=torch.float64)
    assert close(losses.debiased_unlabelled(logits, logits, None, 2, by_row, **off), 2 / 3 * math.log(4))


def test_novelty_of_one_half_agrees_with_nothing():
    half = 0.5
    s = torch.tensor([half, half, math.nextafter(half, 0), math.nextafter(half, 0), 0.6, 0.6], dtype=torch.float64)
    category = torch.tensor([0, 2, 0, 2, 0, 2])
    assert losses.consistent(category, s, 2).tolist() == [False, False, True, False, False, True]
    sure = 10 * torch.eye(3, dtype=torch.float64)
    value = losses.debiased_unlabelled(
        torch.zeros(3, 3, dtype=torch.float64), sure, torch.full((3,), half), 2, 0.85, use_certainty=False
    )
    assert value.item() == 0.0


def test_first_new_category_is_the_number_of_known_ones():
    """Known are 0..M-1: category M is the first new one."""
    s = torch.tensor([0.9, 0.9, 0.1, 0.1])
    assert losses.consistent(torch.tensor([1, 2, 1, 2]), s, 2).tolist() == [False, True, True, False]


def test_debiased_by_hand():
    """Three sure rows and one unsure, K = 4, M = 2, a uniform debiased classifier: log 4 for each accepted row."""
    rows = torch.tensor([[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.float64)
    s = torch.tensor([0.1, 0.8, 0.3, 0.9], dtype=torch.float64)  # the third is predicted new but scored known
    flat = torch.zeros(4, 4, dtype=torch.float64)
    for use_certainty, use_consistency, weight in [
        (True, True, 0.8 + 0.6),
        (True, False, 0.8 + 0.6 + 0.4),
        (False, True, 2.0),
        (False, False, 3.0),
    ]:
        value = losses.debiased_unlabelled(
            flat, rows, s, 2, 0.85, use_certainty=use_certainty, use_consistency=use_consistency
        )
        assert close(value, weight * math.log(4) / 4)


# Wrong shapes are refused, by the name of the argument.

ODD = [1, 3, 5]


@pytest.mark.parametrize("rows", ODD)
def test_odd_number_of_rows_is_refused(rows: int):
    z, y, logits = unit(torch.ones(rows, 4)), torch.zeros(rows // 2, dtype=torch.long), torch.zeros(rows, 5)
    with pytest.raises(ValueError, match=r"\bz\b"):
        losses.info_nce(z)
    with pytest.raises(ValueError, match=r"\bz\b"):
        losses.supervised_contrastive(z, y)
    with pytest.raises(ValueError, match=r"\blogits\b"):
        losses.self_distillation(logits, 0.07)
    with pytest.raises(ValueError, match=r"\blogits\b"):
        losses.one_vs_all_consistency(torch.zeros(rows, 3, 2))


@pytest.mark.parametrize("length", [0, 1, 3, 5, 8])
def test_labels_of_another_length_are_refused(length: int):
    y = torch.zeros(length, dtype=torch.long)
    with pytest.raises(ValueError, match=r"\by\b"):
        losses.supervised_contrastive(unit(torch.ones(8, 3)), y)
    with pytest.raises(ValueError, match=r"\by\b"):
        losses.supervised(torch.zeros(4, 3), y)
    with pytest.raises(ValueError, match=r"\by\b"):
        losses.one_vs_all_labelled(torch.zeros(4, 3, 2), y)


@pytest.mark.parametrize("shape", [(4, 3, 3), (4, 3, 1), (4, 3), (4, 6)])
def test_detector_logits_without_two_channels_are_refused(shape: tuple[int, ...]):
    logits, y = torch.zeros(shape), torch.zeros(4, dtype=torch.long)
    for call in (
        lambda: losses.one_vs_all_labelled(logits, y),
        lambda: losses.one_vs_all_entropy(logits),
        lambda: losses.novelty(logits),
        lambda: losses.one_vs_all_unlabelled(logits),
        lambda: losses.one_vs_all_consistency(logits),
    ):
        with pytest.raises(ValueError, match=r"\blogits\b"):
            call()


# Properties of each loss that follow from its equation.


@pytest.mark.parametrize("seed", range(6))
def test_loss_properties_of_contrast(seed: int):
    rng = generator(seed)
    images = 2 + seed
    z, y = unit(normal(rng, 2 * images, 5)), torch.randint(3, (images,), generator=rng)
    one, two = z.chunk(2)
    swapped = torch.cat([two, one])
    order = torch.randperm(images, generator=rng)
    shuffled = torch.cat([one[order], two[order]])
    renamed = torch.tensor([7, 0, 4])[y]
    assert close(losses.info_nce(swapped), losses.info_nce(z).item())
    assert close(losses.info_nce(shuffled), losses.info_nce(z).item())
    value = losses.supervised_contrastive(z, y).item()
    assert close(losses.supervised_contrastive(swapped, y), value)
    assert close(losses.supervised_contrastive(shuffled, y[order]), value)
    assert close(losses.supervised_contrastive(z, renamed), value)
    distinct = torch.randperm(images, generator=rng)
    # one positive each, the own other view: the labelled form falls back to the unlabelled one
    assert close(losses.supervised_contrastive(z, distinct, 0.3), losses.info_nce(z, 0.3).item())


@pytest.mark.parametrize("images", [1, 2, 5])
def test_loss_properties_of_contrast_without_differences(images: int):
    """If all rows are equal every candidate has the same share, 1 / (2B - 1); for one image the loss is 0."""
    z = unit(torch.ones(2 * images, 3, dtype=torch.float64))
    expected = math.log(2 * images - 1)
    assert close(losses.info_nce(z), expected)
    assert close(losses.supervised_contrastive(z, torch.arange(images)), expected)
    assert close(losses.supervised_contrastive(z, torch.zeros(images, dtype=torch.long)), expected)


@pytest.mark.parametrize("categories", [1, 2, 10])
def test_loss_properties_of_classifiers(categories: int):
    rng = generator(categories)
    flat = torch.full((6, categories), 0.3, dtype=torch.float64)
    y = torch.randint(categories, (6,), generator=rng)
    assert close(losses.mean_entropy(flat), math.log(categories))
    assert close(losses.self_distillation(flat, 0.04), math.log(categories))
    assert close(losses.supervised(flat, y), math.log(categories))
    logits = cosines(rng, 6, categories)
    assert -1e-12 <= losses.mean_entropy(logits).item() <= math.log(categories) + 1e-12
    one, two = logits.chunk(2)
    swapped = torch.cat([two, one])
    assert close(losses.self_distillation(swapped, 0.05), losses.self_distillation(logits, 0.05).item())
    # rows that are each sure of another category: every row has no entropy, their mean has all of it
    assert close(losses.mean_entropy(100 * torch.eye(categories, dtype=torch.float64)), math.log(categories))


def test_loss_properties_self_distillation_of_equal_views_is_their_entropy():
    row = cosines(generator(1), 1, 6)
    expected = losses.mean_entropy(row.repeat(2, 1), 0.2).item()
    assert close(losses.self_distillation(row.repeat(2, 1), 0.2, 0.2), expected)


@pytest.mark.parametrize("known", [1, 2, 6])
def test_loss_properties_of_the_detector(known: int):
    undecided = torch.zeros(4, known, 2, dtype=torch.float64)
    y = torch.arange(4) % known
    assert close(losses.one_vs_all_entropy(undecided), known * math.log(2))
    assert close(losses.one_vs_all_labelled(undecided, y), math.log(2) * (1 if known == 1 else 2))
    assert losses.novelty(undecided).tolist() == [0.5] * 4
    assert losses.one_vs_all_consistency(undecided).item() == 0.0
    opposite = undecided.clone()
    opposite[:2, :, 0], opposite[2:, :, 1] = 100.0, 100.0
    assert close(losses.one_vs_all_consistency(opposite), 2.0 * known)
    logits = normal(generator(known), 4, known, 2)
    s = losses.novelty(logits)
    smallest = logits.softmax(-1)[..., 1].amin(1)  # o+ and o- sum to 1: the largest o+ has the smallest o-
    torch.testing.assert_close(s, smallest, rtol=1e-10, atol=1e-10)


def test_only_the_hardest_other_detector_is_trained():
    logits = torch.zeros(1, 3, 2, dtype=torch.float64)
    logits[0, 1, 0], logits[0, 2, 0] = 1.0, 2.0  # the third is most wrongly "in"
    logits.requires_grad_()
    losses.one_vs_all_labelled(logits, torch.tensor([0])).backward()
    assert logits.grad[0].abs().sum(-1).gt(0).tolist() == [True, False, True]


def test_loss_properties_of_certainty():
    s = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    assert losses.certainty(s).tolist() == [1.0, 0.5, 0.0, 0.5, 1.0]


@pytest.mark.parametrize(("categories", "known"), [(6, 3), (6, 1), (4, 4), (5, 4)])
def test_on_side_leaves_the_choice_among_the_detectors_side(categories: int, known: int):
    rng = generator(categories + known)
    logits = cosines(rng, 40, categories)
    s = torch.rand(40, generator=rng, dtype=torch.float64)
    s[0], s[1], s[2] = 0.5, 0.1, 0.9
    logits[1:3] = -1.0  # the largest difference that cosines can have, once on either side
    logits[1, -1], logits[2, 0] = 1.0, 1.0
    found = losses.on_side(logits, s, known)
    chosen = found.argmax(1)
    assert chosen.tolist() == [
        oracles.choice_on_side(*row, known) for row in zip(logits.tolist(), s.tolist(), strict=True)
    ]
    if known < categories:
        sure = s != 0.5
        assert losses.consistent(chosen, s, known)[sure].all()
        side = torch.arange(categories) >= known
        for row, novelty, moved in zip(
            logits, s, found, strict=True
        ):  # among themselves those of a side stay apart as before
            mine = side == bool(novelty > 0.5)
            torch.testing.assert_close(moved[mine], row[mine])
    else:
        torch.testing.assert_close(found.softmax(1), logits.softmax(1))
