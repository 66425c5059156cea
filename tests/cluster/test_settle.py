"""The frozen and the settled answer: every part against a slow form, and what comes out on clear clusters."""

from __future__ import annotations

import math
from dataclasses import replace

import oracles
import peer_oracles
import pytest
import torch
from clouds import half_labelled, mixture
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster import settle as module
from debgcd.cluster.prototypes import class_means
from debgcd.cluster.settle import SMOOTHING, SettleOptions, cooling, fit_head, information, mean_shift, settle, sizes

PLAIN = SettleOptions(calibrated=False)
QUICK = replace(PLAIN, steps=40)


def unit(rows: int, width: int, seed: int = 0) -> Tensor:
    return normalize(
        torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1
    )


# Mean shift.


def slow_mean_shift(x: list[list[float]], neighbours: int, rounds: int) -> list[list[float]]:
    """Each point plus the mean of its nearest others by cosine, back to length 1, all at once; some rounds."""
    for _ in range(rounds):
        moved = []
        for i, point in enumerate(x):
            others = sorted((j for j in range(len(x)) if j != i), key=lambda j: -oracles.dot(point, x[j]))
            near = others[:neighbours]
            row = [value + sum(x[j][d] for j in near) / len(near) for d, value in enumerate(point)]
            length = math.sqrt(oracles.dot(row, row))
            moved.append([value / length for value in row])
        x = moved
    return x


@pytest.mark.parametrize("block", [1, 4, 7, 23, 100])
@pytest.mark.parametrize(("neighbours", "rounds"), [(1, 1), (3, 1), (3, 4), (22, 2), (50, 2)])
def test_mean_shift(monkeypatch: pytest.MonkeyPatch, block: int, neighbours: int, rounds: int) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    x = unit(23, 5)
    before = x.clone()
    expected = torch.tensor(slow_mean_shift(x.tolist(), min(neighbours, 22), rounds), dtype=torch.float64)
    torch.testing.assert_close(mean_shift(x, neighbours, rounds), expected)
    assert torch.equal(x, before)


def test_mean_shift_of_one_point_or_no_rounds_changes_nothing() -> None:
    x = unit(4, 3)
    assert torch.equal(mean_shift(x, 2, 0), x)
    assert torch.equal(mean_shift(x[:1], 2, 5), x[:1])


# Sizes.


def slow_sizes(x: list[list[float]], label: list[int], centres: list[list[float]], rounds: int) -> list[float]:
    """Lloyd's iterations by cosine, labelled points in their class, an empty category stays; then smoothed shares."""
    k, count = len(centres), []
    for _ in range(rounds):
        category = [
            y if y >= 0 else oracles.first_argmax([oracles.dot(point, centre) for centre in centres])
            for point, y in zip(x, label, strict=True)
        ]
        count = [category.count(j) for j in range(k)]
        moved = []
        for j in range(k):
            rows = [point for point, own in zip(x, category, strict=True) if own == j]
            total = [sum(column) for column in zip(*rows, strict=True)]
            length = math.sqrt(oracles.dot(total, total))
            moved.append([value / length for value in total] if rows else centres[j])
        centres = moved
    smoothed = [value + SMOOTHING * len(x) / k for value in count]
    return [value / sum(smoothed) for value in smoothed]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rounds", [1, 2, 20])
def test_sizes(monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int) -> None:
    monkeypatch.setattr(module, "LLOYD", rounds)
    x, centres = unit(60, 4, seed), unit(7, 4, 100 + seed)
    centres[6] = -x.mean(0) / x.mean(0).norm() * 1e-3  # so short that nobody is nearest to it
    label = torch.where(torch.arange(60) % 5 == 0, torch.arange(60) % 3, -1)
    found = sizes(x, label, centres)
    expected = slow_sizes(x.tolist(), label.tolist(), centres.tolist(), rounds)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert float(found.min()) > 0 and float(found.sum()) == pytest.approx(1)


# The head.


def head_case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points, labels of some, prototypes of 4 categories and their sizes."""
    x, weight = unit(20, 5, seed), unit(4, 5, 50 + seed)
    label = torch.where(torch.arange(20) % 3 == 0, torch.arange(20) % 2, -1)
    return x, label, weight, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def slow_loss(x: Tensor, label: Tensor, weight: list[list[float]], share: Tensor, entropy: float, t: float) -> float:
    """Eq. of the head by the slow forms of its three terms."""
    logits = [[oracles.dot(point, row) for row in weight] for point in x.tolist()]
    labelled = [i for i, y in enumerate(label.tolist()) if y >= 0]
    free = [i for i, y in enumerate(label.tolist()) if y < 0]
    total = oracles.size_divergence(logits, share.tolist(), t)
    total += entropy * peer_oracles.conditional_entropy([logits[i] for i in free], t)
    return total + oracles.supervised([logits[i] for i in labelled], [int(label[i]) for i in labelled], t)


@pytest.mark.parametrize("entropy", [0.0, 0.5, 2.0])
def test_the_first_step_of_the_head_follows_the_slow_loss(entropy: float) -> None:
    """The first step of Adam has the length LR in each entry: against the sign of the gradient, found by differences."""
    x, label, weight, share = head_case()
    found = fit_head(x, label, weight, share, entropy, replace(PLAIN, steps=1))
    for i in range(4):
        for j in range(5):
            values = []
            for sign in (1, -1):
                moved = weight.tolist()
                moved[i][j] += sign * 1e-5
                values.append(slow_loss(x, label, moved, share, entropy, PLAIN.temperature))
            slope = (values[0] - values[1]) / 2e-5 + module.DECAY * float(weight[i, j])
            assert abs(slope) > 1e-5
            step = module.LR * slope / (abs(slope) + 1e-8)
            assert float(weight[i, j] - found[i, j]) == pytest.approx(step, rel=1e-2)


@pytest.mark.parametrize(("labelled", "steps"), [("some", 0), ("some", 1), ("some", 40), ("all", 40)])
def test_the_head_is_trained_by_torchs_adam(labelled: str, steps: int) -> None:
    x, label, weight, share = head_case(1)
    label = label if labelled == "some" else torch.arange(20) % 4
    before = weight.clone()
    found = fit_head(x, label, weight, share, 0.5, replace(PLAIN, steps=steps, temperature=0.07))
    assert torch.equal(weight, before) and not found.requires_grad
    theirs = weight.clone().requires_grad_()
    optimiser = torch.optim.Adam([theirs], lr=1e-3, betas=(0.9, 0.999), weight_decay=1e-2)
    for _ in range(steps):
        log_p = (x @ theirs.T / 0.07).log_softmax(1)
        mean, free = log_p.exp().mean(0), log_p[label < 0]
        loss = (mean * (mean.log() - share.log())).sum() - log_p[label >= 0, label[label >= 0]].mean()
        if len(free):
            loss = loss - 0.5 * (free.exp() * free).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(found, theirs.detach(), rtol=1e-9, atol=1e-9)


def test_information_is_large_where_images_are_sure_and_categories_all_used() -> None:
    logits = 2 * torch.rand(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    expected = oracles.mean_entropy(logits.tolist(), 0.2) - peer_oracles.conditional_entropy(logits.tolist(), 0.2)
    assert information(logits, 0.2) == pytest.approx(expected, rel=1e-9)
    sure = torch.eye(4, dtype=torch.float64).repeat(5, 1) * 100
    assert information(sure, 0.1) == pytest.approx(math.log(4))
    assert information(sure[:1].repeat(20, 1), 0.1) == pytest.approx(0, abs=1e-9)  # sure, but all of one category
    assert information(torch.zeros(20, 4, dtype=torch.float64), 0.1) == pytest.approx(0, abs=1e-9)


# The whole answer.


def clear(known: int = 3, k: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    points, truth = mixture(1, k, 20, 12, 0.1)
    return points, truth, half_labelled(truth, known)


def assert_found(category: Tensor, truth: Tensor, known: int) -> None:
    """Known classes have their own numbers, new ones one of the others each."""
    assert torch.equal(category[truth < known], truth[truth < known])
    pairs = set(zip(category.tolist(), truth.tolist(), strict=True))
    assert len(pairs) == len(truth.unique()) and len({a for a, _ in pairs}) == len(pairs)


@pytest.mark.parametrize("known", [1, 3, 6])
@pytest.mark.parametrize(
    "options", [QUICK, replace(QUICK, whiten=False, rounds=0, guided=False, sizes="uniform", entropy_weight=None)]
)
def test_clear_classes_are_found(known: int, options: SettleOptions) -> None:
    points, truth, label = clear(known)
    new = (truth >= known) if options.guided else None
    found = settle(points, label, 6, new, options)
    assert_found(found.category, truth, known)
    assert torch.equal((found.points(points) @ found.weight.T).argmax(1), found.category)
    assert found.weight.shape[0] == 6 and float(found.share.sum()) == pytest.approx(1)
    again = settle(points, label, 6, new, options)
    assert torch.equal(again.weight, found.weight) and torch.equal(again.category, found.category)


def test_a_labelled_image_keeps_its_class_wherever_it_lies() -> None:
    points, truth, label = clear()
    label[-1] = 0  # of the last, new, class
    assert settle(points, label, 6, None, QUICK).category[-1] == 0
    assert truth[-1] != 0


@pytest.mark.parametrize("per_class", [1, 2])
def test_one_or_two_labels_of_each_class_suffice(per_class: int) -> None:
    points, truth, _ = clear()
    label = torch.where((truth < 3) & (torch.arange(120) % 20 < per_class), truth, -1)
    assert_found(settle(points, label, 6, (label < 0) & (truth >= 3), QUICK).category, truth, 3)


def beginnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the beginnings that are tried from here on."""
    tried: list[str] = []
    for name in ("apart", "joint"):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, name=name, real=real: tried.append(name) or real(*given))
    return tried


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("guided", {"apart", "joint"}),
        ("not asked", {"joint"}),
        ("as many as new categories", {"apart", "joint"}),
        ("fewer than new categories", {"joint"}),
        ("no new category", {"joint"}),
        ("a class without a label", {"joint"}),
    ],
)
def test_new_categories_begin_apart_where_enough_images_look_new(
    monkeypatch: pytest.MonkeyPatch, case: str, expected: set[str]
) -> None:
    points, truth, label = clear()
    new: Tensor | None = truth >= 3
    k = 6
    if case == "not asked":
        new = None
    elif case.endswith("than new categories") or case.startswith("as many"):
        new = torch.zeros(120, dtype=torch.bool)
        new[-3 if case.startswith("as many") else -2 :] = True
    elif case == "no new category":
        k = 3
    elif case == "a class without a label":
        label = torch.where(label == 1, -1, label)
    tried = beginnings(monkeypatch)
    found = settle(points, label, k, new, replace(PLAIN, steps=5))
    assert set(tried) == expected and len(tried) == len(expected)
    assert set(found.category.tolist()) <= set(range(k))


def test_what_was_found_before_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes were found before, with other numbers than they would get; of each image set one half came since."""
    points, truth, label = clear()
    number = torch.tensor([0, 1, 2, 4, 3, 5])
    so_far = torch.where((torch.arange(120) % 2 == 0) & (truth < 5), number[truth], label)
    tried = beginnings(monkeypatch)
    found = settle(points, label, 6, (truth == 5) & (so_far < 0), replace(QUICK, rounds=0), so_far=so_far)
    assert tried == ["apart"] and torch.equal(found.category, number[truth])


@pytest.mark.parametrize(
    ("k", "strangers", "expected"), [(5, 0, ["apart"]), (6, 0, ["joint"]), (4, 20, ["joint"]), (7, 2, ["apart"])]
)
def test_what_was_found_before_is_the_beginning_where_k_allows_it(
    monkeypatch: pytest.MonkeyPatch, k: int, strangers: int, expected: list[str]
) -> None:
    points, truth, label = clear()
    so_far = torch.where(truth < 5, truth, -1)
    new = (truth == 5) & ((truth == 5).cumsum(0) <= strangers)
    tried = beginnings(monkeypatch)
    found = settle(points, label, k, new, replace(PLAIN, steps=3), so_far=so_far)
    assert [name for name in tried if name != "apart" or expected == ["apart"]] == expected
    assert set(found.category.tolist()) <= set(range(k))


def test_more_categories_than_images_look_new_or_than_there_are_images_can_be_asked_for() -> None:
    points, truth, label = clear()
    for k in (60, 119, 120):
        found = settle(points, label, k, truth >= 3, replace(PLAIN, steps=3))
        assert found.weight.isfinite().all() and found.weight.shape[0] == k
        assert torch.equal(found.category[label >= 0], label[label >= 0])


def test_equal_images_give_a_finite_answer() -> None:
    label = torch.tensor([0, 0, 1, 1, -1, -1, -1, -1])
    found = settle(torch.ones(8, 4), label, 4, label < 0, replace(PLAIN, steps=20))
    assert found.weight.isfinite().all()
    assert found.category[:4].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("best", ["apart", "joint"])
def test_the_beginning_with_more_information_is_kept(monkeypatch: pytest.MonkeyPatch, best: str) -> None:
    """One beginning is spoilt: all new images in one category, from which no step is far enough."""
    points, truth, label = clear()
    spoilt = {"apart": "joint", "joint": "apart"}[best]
    monkeypatch.setattr(module, spoilt, lambda *given: torch.where(truth < 3, truth, 3))
    options = replace(PLAIN, steps=1)
    found = settle(points, label, 6, truth >= 3, options)
    assert_found(found.category, truth, 3)
    x = found.points(points)
    poor = fit_head(x, label, class_means(x, torch.where(truth < 3, truth, 3), 6), found.share, 0.5, options)
    assert information(x @ found.weight.T, 0.1) > information(x @ poor.T, 0.1)


def test_an_open_entropy_weight_is_the_one_most_right_on_labelled_images(monkeypatch: pytest.MonkeyPatch) -> None:
    points, _, label = clear()
    asked: list[float] = []

    def pretend(x: Tensor, label: Tensor, weight: Tensor, share: Tensor, entropy: float, options: object) -> Tensor:
        asked.append(entropy)
        return weight if entropy == 0.5 else weight.flip(0)

    monkeypatch.setattr(module, "fit_head", pretend)
    found = settle(points, label, 6, None, replace(PLAIN, entropy_weight=None))
    assert asked == list(module.WEIGHTS)
    assert ((found.points(points) @ found.weight.T).argmax(1) == label)[label >= 0].all()


def test_a_class_beside_a_known_one_is_found_where_its_images_look_new() -> None:
    """Two known classes, a new one close beside the first, and a new one far away that has two parts."""
    centres = torch.zeros(5, 12)
    centres[0, 0] = centres[1, 1] = centres[2, 0] = 4.0
    centres[2, 2] = 1.5
    centres[3, 3] = centres[4, 3] = 4.0
    centres[3, 4], centres[4, 4] = 1.7, -1.7
    part = torch.arange(5).repeat_interleave(60)
    points = centres[part] + 0.5 * torch.randn(300, 12, generator=torch.Generator().manual_seed(0))
    truth = part.clamp_max(3)
    label = half_labelled(truth, 2)
    shifted = mean_shift(module.principal_points(points, label)(points), 8, 5)
    right = []
    for category in (module.joint(shifted, label, 4, 0), module.apart(shifted, label, 4, truth >= 2, 0)):
        nearest = (shifted @ class_means(shifted, category, 4).T).argmax(1)
        right.append(float((nearest[truth == 2] >= 2).double().mean()))
    assert right[1] > 0.9 and right[1] > right[0]


def test_an_axis_along_which_every_class_differs_is_shortened() -> None:
    """It would hide all others."""
    truth = torch.arange(4).repeat_interleave(60)
    generator = torch.Generator().manual_seed(1)
    points = 0.3 * torch.randn(240, 12, generator=generator)
    points[torch.arange(240), truth] += 2.0
    points[:, 11] = 12 * torch.randn(240, generator=generator)
    label = half_labelled(truth, 2)
    assert_found(settle(points, label, 4, truth >= 2, QUICK).category, truth, 2)
    plain = settle(points, label, 4, truth >= 2, replace(QUICK, whiten=False)).category
    assert float((plain == truth).double().mean()) < 0.9


def test_small_categories_have_fewer_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    points, _, label = clear()
    asked: list[int] = []
    monkeypatch.setattr(module, "mean_shift", lambda x, neighbours, rounds: asked.append(neighbours) or x)
    for k in (3, 6, 60):
        settle(points, label, k, None, replace(PLAIN, steps=0))
    assert asked == [8, 5, 2]  # of 40, 20 and 2 images in a category


def test_progress_is_reported_to_the_end() -> None:
    points, truth, label = clear()
    for new, weight, total in ((None, 0.5, 1), (truth >= 3, 0.5, 2), (truth >= 3, None, 10)):
        seen: list[tuple[int, int]] = []
        options = replace(PLAIN, steps=1, entropy_weight=weight)
        settle(points, label, 6, new, options, on_progress=lambda *at, seen=seen: seen.append(at))
        assert seen == [(i, total) for i in range(1, total + 1)]


@pytest.mark.parametrize("wrong", [0, 3, 12])
def test_the_confidence_is_lowered_to_the_share_that_is_right(wrong: int) -> None:
    logits, label = 6 * torch.eye(4)[torch.arange(40) % 4] + unit(40, 4), torch.arange(40) % 4
    label[:wrong] = (label[:wrong] + 1) % 4
    factor = cooling(logits, label)
    confidence = [max(torch.softmax(row / factor, 0).tolist()) for row in logits]
    right = (40 - wrong + 1) / 42
    if sum(max(torch.softmax(row, 0).tolist()) for row in logits) / 40 <= right:
        assert factor == 1  # it is never raised
    else:
        assert factor > 1 and sum(confidence) / 40 == pytest.approx(right, abs=1e-4)


def test_the_confidence_of_mixed_classes_is_calibrated_by_hidden_labels_and_nothing_else_changes() -> None:
    feature, truth = mixture(1, 6, 200, 16, 1.4)
    label = half_labelled(truth, 4)
    plain, calibrated = (settle(feature, label, 6, None, replace(PLAIN, calibrated=on)) for on in (False, True))
    assert torch.equal(plain.weight, calibrated.weight) and torch.equal(plain.category, calibrated.category)
    assert plain.temperature == PLAIN.temperature < calibrated.temperature
    free = (label < 0) & (truth < 4)
    logits = calibrated.points(feature[free]) @ calibrated.weight.T
    right = float((logits.argmax(1) == truth[free]).float().mean())
    said = [float((logits / answer.temperature).softmax(1).amax(1).mean()) for answer in (plain, calibrated)]
    assert right < 0.9 and abs(said[1] - right) < 0.05 < said[0] - right


@pytest.mark.parametrize(("candidates", "hidden"), [(None, 20), (12, 12), (9, 0), (0, 0)])
def test_only_labels_that_no_step_learned_from_are_hidden(
    monkeypatch: pytest.MonkeyPatch, candidates: int | None, hidden: int
) -> None:
    """A fifth of each class at most; too few are of no use."""
    feature, truth = mixture(0, 4, 50, 8, 1.0)
    label = half_labelled(truth, 4)
    unlearned = None
    if candidates is not None:
        unlearned = torch.zeros(200, dtype=torch.bool)
        labelled = torch.cat([(label == c).nonzero()[:3, 0] for c in range(4)])
        unlearned[labelled[:candidates]] = True
    asked: list[Tensor] = []
    monkeypatch.setattr(module, "cooling", lambda logits, y: asked.append(y) or 2.0)
    answer = settle(feature, label, 4, None, SettleOptions(steps=5), unlearned=unlearned)
    assert [len(y) for y in asked] == ([hidden] if hidden else [])
    assert answer.temperature == pytest.approx(0.2 if hidden else 0.1)


def test_the_only_label_of_a_class_is_never_hidden() -> None:
    feature, truth = mixture(0, 12, 10, 8, 1.0)
    label = torch.where(torch.arange(120) % 10 == 0, truth, -1)
    answer = settle(feature, label, 12, None, SettleOptions(steps=5))
    assert answer.temperature == 0.1 and torch.equal(answer.category[::10], truth[::10])
