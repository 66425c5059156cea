"""DebGCD: the total loss against the slow forms, every ablation, and SimGCD as its limit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import oracles
import pytest
import torch
from little import (
    KNOWN,
    TOKENS,
    WIDTH,
    K,
    at,
    batch,
    config,
    context,
    made,
    method_of,
    random_labels,
    random_output,
    says,
)
from torch import Tensor

from debgcd import losses
from debgcd.cluster.prototypes import prototypes
from debgcd.cluster.settle import settle
from debgcd.config.schedules import Progress
from debgcd.config.schema import Config
from debgcd.errors import UsageError
from debgcd.methods import shared as common
from debgcd.methods.base import Loss
from debgcd.methods.debgcd import quantile_by_category
from debgcd.model.network import Network, Output
from debgcd.model.optimiser import set_learning_rate, sgd
from debgcd.novelty.vote import Neighbours

ABLATIONS = {
    1: {"debiased": False, "auxiliary": False, "detector": False, "guidance": False},
    2: {"debiased": True, "auxiliary": False, "detector": False, "guidance": False},
    3: {"debiased": True, "auxiliary": True, "detector": False, "guidance": False},
    4: {"debiased": False, "auxiliary": False, "detector": True, "guidance": False},
    5: {"debiased": True, "auxiliary": True, "detector": True, "guidance": False},
    6: {"debiased": True, "auxiliary": True, "detector": True, "guidance": True},
}


def asked(output: Output, chosen: Config) -> Output:
    """Only the heads that the ablation has."""
    switches = chosen.options.ablation
    debiased, detector = switches.debiased and switches.auxiliary, switches.detector
    kept = {"classifier", "projection", *["debiased"] * debiased, *["detector"] * detector}
    return Output(output.feature, {name: said for name, said in output.heads.items() if name in kept})


def expected_total(output: Output, label: list[int], progress: float, row: int, released: bool = False) -> float:
    """Eq. 14 from the slow forms and the paper's numbers; the preset `released` where the public code differs."""
    switches = ABLATIONS[row]
    both = label + label
    labelled = [i for i, y in enumerate(both) if y >= 0]
    free = [i for i, y in enumerate(both) if y < 0]
    y, y_once = [both[i] for i in labelled], [y for y in label if y >= 0]

    def rows(tensor: Tensor, which: list[int]) -> list:
        return [tensor[i].tolist() for i in which]

    warmed_up = min(1.0, progress / 0.15)
    teacher = 0.07 - 0.03 * warmed_up if released else 0.04 + 0.03 * (1 + math.cos(math.pi * warmed_up)) / 2
    logits, z = output["classifier"].tolist(), output["projection"].tolist()
    unsupervised = oracles.self_distillation(logits, teacher, 0.1) - 1.0 * oracles.mean_entropy(logits, 0.1)
    total = 0.65 * unsupervised + 0.35 * oracles.supervised(rows(output["classifier"], labelled), y, 0.1)
    total += 0.65 * oracles.info_nce(z, 1.0)
    total += 0.35 * oracles.supervised_contrastive(rows(output["projection"], labelled), y_once, 0.07)
    if switches["detector"]:
        entropy = oracles.one_vs_all_entropy(rows(output["detector"], free))
        detection = oracles.one_vs_all_labelled(rows(output["detector"], labelled), y)
        detection += 0.1 * entropy / KNOWN if released else entropy
        if released:
            detection += oracles.one_vs_all_consistency(rows(output["detector"], free))
        total += 0.01 * detection
    if switches["debiased"]:
        student = output["debiased"] if switches["auxiliary"] else output["classifier"]
        guided = switches["guidance"]
        total += 1.0 * oracles.supervised(rows(student, labelled), y, 0.1)
        total += 1.0 * oracles.debiased_unlabelled(
            rows(student, free),
            rows(output["classifier"], free),
            oracles.novelty(rows(output["detector"], free)) if guided else None,
            KNOWN,
            0.85,
            0.1,
            use_certainty=guided,
            use_consistency=guided and not released,
        )
    return total


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("row", ABLATIONS)
def test_the_total_is_the_weighted_sum_of_the_slow_forms(row: int, progress: float) -> None:
    chosen = config(ablation=ABLATIONS[row])
    for seed in range(3):
        output, label = random_output(12, seed), random_labels(12, seed)
        loss = method_of(chosen).loss(says(asked(output, chosen)), batch(label), at(progress))
        expected = expected_total(output, label.tolist(), progress, row)
        assert loss.total.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("progress", [0.05, 0.7])
def test_the_total_of_the_public_code(progress: float) -> None:
    output, label = random_output(12), random_labels(12)
    loss = method_of(config("released")).loss(says(output), batch(label), at(progress))
    assert loss.total.item() == pytest.approx(
        expected_total(output, label.tolist(), progress, row=6, released=True), rel=1e-10
    )


@pytest.mark.parametrize(
    ("switches", "terms"),
    [
        ({"labelled": True, "unlabelled": False}, ["debiased_labelled"]),
        ({"labelled": False, "unlabelled": True}, ["debiased_unlabelled"]),
        ({"labelled": True, "unlabelled": True}, ["debiased_labelled", "debiased_unlabelled"]),
    ],
)
def test_the_rows_of_the_loss_table_leave_out_their_part(switches: dict[str, bool], terms: list[str]) -> None:
    output, label = random_output(12), random_labels(12)
    without = method_of(config(debiased={"weight": 0.0})).loss(says(output), batch(label), at(0.5))
    loss = method_of(config(ablation=switches)).loss(says(output), batch(label), at(0.5))
    rest = sum(loss.terms[name].item() for name in terms)
    assert rest > 0
    assert loss.total.item() == pytest.approx(without.total.item() + rest, rel=1e-10)


def test_weights_scale_their_part() -> None:
    output, label = random_output(12), random_labels(12)

    def total(**values: Any) -> float:
        return method_of(config(**values)).loss(says(output), batch(label), at(0.5)).total.item()

    base = total(detector={"weight": 0.0}, debiased={"weight": 0.0})
    for name in ("detector", "debiased"):
        other = "debiased" if name == "detector" else "detector"
        one = total(**{name: {"weight": 1.0}, other: {"weight": 0.0}}) - base
        three = total(**{name: {"weight": 3.0}, other: {"weight": 0.0}}) - base
        assert abs(one) > 1e-3
        assert three == pytest.approx(3 * one)


def test_the_debiased_loss_teaches_neither_gcd_classifier_nor_detector() -> None:
    """Choice, confidence and novelty are facts to it: their gradients are those of the run without it."""

    def gradients(row: int) -> dict[str, Tensor]:
        output, chosen = random_output(12), config(ablation=ABLATIONS[row])
        method_of(chosen).loss(says(asked(output, chosen)), batch(random_labels(12)), at(0.5)).total.backward()
        return {name: said.grad for name, said in output.heads.items()}

    without, guided = gradients(4), gradients(6)
    assert torch.equal(guided["classifier"], without["classifier"])
    assert torch.equal(guided["detector"], without["detector"])
    assert without["debiased"] is None
    assert guided["debiased"].abs().sum() > 0
    assert not torch.equal(
        gradients(2)["classifier"], gradients(1)["classifier"]
    )  # row 2 does teach the GCD classifier


def test_the_detectors_loss_reaches_the_tail() -> None:
    network, method = made(config(detector={"weight": 1.0}, ablation=ABLATIONS[4]))
    tokens, label = torch.randn(16, TOKENS, generator=torch.Generator().manual_seed(0)), random_labels(8)
    gradients = []
    for weight in (1.0, 0.0):
        method = method_of(config(detector={"weight": weight}, ablation=ABLATIONS[4]))
        network.zero_grad()
        method.loss(network, batch(label, tokens), at(0.5)).total.backward()
        gradients.append(network.backbone.tuned[0].weight.grad.clone())
    assert not torch.allclose(*gradients)


def test_the_detectors_loss_stays_out_of_the_tail_if_it_is_told_to() -> None:
    """Preset small: the tail's gradient is that of the run without a detector, the detector's own is not."""
    tokens, label = torch.randn(16, TOKENS, generator=torch.Generator().manual_seed(0)), random_labels(8)
    tails, heads = [], []
    for weight in (1.0, 0.0):
        chosen = config(detector={"weight": weight, "tunes_tail": False}, ablation=ABLATIONS[4])
        network, method = made(chosen)
        method.loss(network, batch(label, tokens), at(0.5)).total.backward()
        tails.append(network.backbone.tuned[0].weight.grad.clone())
        heads.append(network.heads["detector"].prototypes.weight.grad.abs().sum())
    assert torch.equal(*tails)
    assert heads[0] > 0 and heads[1] == 0


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_the_unlabelled_term_of_the_detector_is_added_with_its_weight(weight: float) -> None:
    output, label = random_output(12), random_labels(12)
    free = [output["detector"][i].tolist() for i, y in enumerate(label.tolist() * 2) if y < 0]

    def total(unlabelled: float) -> float:
        chosen = config(detector={"weight": 0.3, "unlabelled_weight": unlabelled})
        return method_of(chosen).loss(says(output), batch(label), at(0.5)).total.item()

    assert total(weight) - total(0.0) == pytest.approx(0.3 * weight * oracles.one_vs_all_unlabelled(free), rel=1e-9)


def test_hard_labels_may_come_from_the_detectors_side() -> None:
    output, label = random_output(24), random_labels(24)
    free = label.repeat(2) < 0
    s = losses.novelty(output["detector"].detach())
    chosen = {"threshold": 0.0, "on_side": True}
    for row in (5, 6):
        loss = method_of(config(debiased=chosen, ablation=ABLATIONS[row])).loss(says(output), batch(label), at(0.5))
        expected = output["classifier"].argmax(1)
        if row == 6:  # with guidance; without, the detector has no say
            pairs = zip(output["classifier"].tolist(), s.tolist(), strict=True)
            expected = torch.tensor([oracles.choice_on_side(*pair, KNOWN) for pair in pairs])
        assert torch.equal(loss.hard_label[free], expected[free])
    assert not torch.equal(expected[free], output["classifier"].argmax(1)[free])


def test_the_debiased_loss_of_the_preset_small() -> None:
    """Shares of each category's rows, on the detector's side: the whole term against the slow form."""
    output, label = random_output(40), random_labels(40)
    free = [i for i, y in enumerate(label.tolist() * 2) if y < 0]
    s = oracles.novelty([output["detector"][i].tolist() for i in free])
    # the detector's side, then the surest half of each category by the classifier's probabilities on that side
    logits = [output["classifier"][i].tolist() for i in free]
    choice = [oracles.choice_on_side(row, novelty, KNOWN) for row, novelty in zip(logits, s, strict=True)]
    sided = [
        [cosine if (k >= KNOWN) == (novelty > 0.5) else -100.0 for k, cosine in enumerate(row)]
        for row, novelty in zip(logits, s, strict=True)
    ]
    confidence = [max(oracles.softmax([x / 0.1 for x in row])) for row in sided]
    expected = 0.0
    for category in range(K):
        rows = sorted((i for i in range(len(free)) if choice[i] == category), key=lambda i: -confidence[i])
        for i in rows[: int(0.5 * len(rows) + 0.5)]:
            expected -= abs(2 * s[i] - 1) * oracles.log_softmax(output["debiased"][free[i]].tolist(), 0.1)[category]
    chosen = {"utilisation": [[0, 0.5]], "balanced": True, "on_side": True}
    loss = method_of(config(debiased=chosen)).loss(says(output), batch(label), at(0.5))
    assert loss.terms["debiased_unlabelled"].item() == pytest.approx(expected / len(free), rel=1e-9)


@pytest.mark.parametrize("guides_start", [True, False])
@pytest.mark.parametrize("detector", [True, False])
def test_a_detector_may_guide_the_warm_start(detector: bool, guides_start: bool) -> None:
    chosen = config(
        heads={"hidden": 6, "warm_start": True},
        detector={"guides_start": guides_start},
        ablation=ABLATIONS[6 if detector else 3],
    )
    network, method = made(chosen, 60)
    rng = torch.Generator().manual_seed(0)
    truth = torch.arange(60) % K
    features = torch.randn(K, WIDTH, generator=rng)[truth] + torch.randn(60, WIDTH, generator=rng)
    label = torch.where((truth < KNOWN) & (torch.arange(60) % 2 == 0), truth, -1)
    with torch.no_grad():
        method.before_training(context(network, lambda: features, label))
    vote = Neighbours(WIDTH, 60)
    vote.fit(features, label)
    frozen = settle(features, label, K, (label < 0) & (vote(features) > 0.5), common.FROZEN).category
    unit = features / features.norm(dim=1, keepdim=True)
    guided = torch.stack([sum(row for row, own in zip(unit, frozen, strict=True) if own == k) for k in range(K)])
    guided = guided / guided.norm(dim=1, keepdim=True)
    plain = prototypes(features, label, K)
    assert float((plain - guided).abs().max()) > 0.01
    for name in ("classifier", "debiased"):
        expected = guided if detector and guides_start else plain
        torch.testing.assert_close(network.heads[name].weight.detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize("guides_start", [True, False])
def test_a_given_classifier_numbers_the_categories_of_both(guides_start: bool, warm_start: bool) -> None:
    """One that another run gave stays, and the debiased one starts there too."""
    chosen = config(
        heads={"hidden": 6, "warm_start": warm_start}, detector={"kind": "vote", "guides_start": guides_start}
    )
    network, method = made(chosen, 60)
    features, label = little_clouds()
    given = network.heads["classifier"].weight.detach().clone()
    with torch.no_grad():
        method.before_training(replace(context(network, lambda: features, label), given=frozenset({"classifier"})))
    for name in ("classifier", "debiased"):
        assert torch.equal(network.heads[name].weight, given)


# Detectors without a loss of their own: the vote of neighbours, and the distance to known classes.


def little_clouds() -> tuple[Tensor, Tensor]:
    """60 features of K classes, and the labels of half of the known ones."""
    rng = torch.Generator().manual_seed(0)
    truth = torch.arange(60) % K
    features = torch.randn(K, WIDTH, generator=rng)[truth] + 0.3 * torch.randn(60, WIDTH, generator=rng)
    return features, torch.where((truth < KNOWN) & (torch.arange(60) % 4 < 2), truth, -1)


@pytest.mark.parametrize("kind", ["vote", "distance"])
def test_hard_labels_follow_what_was_said_of_each_image_before_the_first_step(kind: str) -> None:
    """L_gcd and Eq. 13 with s of the image, whatever the heads say now; no L_sdl."""
    chosen = config(detector={"kind": kind})
    output, label = random_output(12), random_labels(12)
    network, method = made(chosen)
    said = torch.rand(12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    network.memory.novelty = said
    both = label.tolist() * 2
    free = [i for i, y in enumerate(both) if y < 0]
    without = expected_total(output, label.tolist(), 0.7, row=1)
    labelled = [i for i, y in enumerate(both) if y >= 0]
    expected = without + oracles.supervised(
        [output["debiased"][i].tolist() for i in labelled], [both[i] for i in labelled], 0.1
    )
    expected += oracles.debiased_unlabelled(
        [output["debiased"][i].tolist() for i in free],
        [output["classifier"][i].tolist() for i in free],
        [float(said[i % 12]) for i in free],
        KNOWN,
        0.85,
        0.1,
        use_certainty=True,
        use_consistency=True,
    )
    kept = Output(output.feature, {name: value for name, value in output.heads.items() if name != "detector"})
    network.forward = lambda tokens, heads=None: kept
    loss = method.loss(network, batch(label), at(0.7))
    assert loss.total.item() == pytest.approx(expected, rel=1e-6)
    assert not any("detector" in name for name in loss.terms)


@pytest.mark.parametrize("kind", ["vote", "distance"])
def test_a_detector_without_a_loss_is_fitted_at_the_start_and_moves_to_the_tuned_features(kind: str) -> None:
    network, method = made(config(heads={"hidden": 6}, detector={"kind": kind}), 60)
    features, label = little_clouds()
    with torch.no_grad():
        method.before_training(context(network, lambda: features, label))
        first = method.novelty(network.from_feature(features, ["detector"]))
        assert torch.equal(first, network.memory.novelty)
        assert network.learning == {"classifier", "debiased", "projection"}
        tuned = features + 5 * torch.nn.functional.one_hot(torch.arange(60) % K, WIDTH).float()
        stale = method.novelty(network.from_feature(tuned, ["detector"]))
        method.finalise(context(network, lambda: tuned, label))
        moved = method.novelty(network.from_feature(tuned, ["detector"]))
    assert torch.equal(first, network.memory.novelty)
    assert not torch.equal(stale, moved)
    new = (torch.arange(60) % K >= KNOWN)[label < 0]
    assert moved[label < 0][new].mean() > moved[label < 0][~new].mean() + 0.3


def test_a_known_fraction_of_labelled_images_fixes_the_share_of_new_ones() -> None:
    """18 labelled images, half of all those of known classes: 18 of the 42 others are known."""
    network, method = made(config(detector={"kind": "vote", "labelled_fraction": 0.5}), 60)
    features, label = little_clouds()
    with torch.no_grad():
        method.before_training(context(network, lambda: features, label))
    labelled = int((label >= 0).sum())
    assert network.heads["detector"].threshold().share == pytest.approx(1 - labelled / (60 - labelled), abs=1e-6)
    network, method = made(config(detector={"kind": "vote", "labelled_fraction": 0.1}), 60)
    with pytest.raises(UsageError, match="162 unlabelled ones of known classes, but there are only 42"):
        method.before_training(context(network, lambda: features, label))


# The detector alone: Table 12, "L_sdl".


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_the_detector_alone_is_its_weighted_loss_and_nothing_else(preset: str) -> None:
    for seed in range(3):
        output, label = random_output(12, seed), random_labels(12, seed)
        both = label.tolist() * 2
        labelled = [output["detector"][i].tolist() for i, y in enumerate(both) if y >= 0]
        free = [output["detector"][i].tolist() for i, y in enumerate(both) if y < 0]
        expected = oracles.one_vs_all_labelled(labelled, [y for y in both if y >= 0])
        entropy = oracles.one_vs_all_entropy(free)
        expected += 0.1 * entropy / KNOWN + oracles.one_vs_all_consistency(free) if preset == "released" else entropy
        loss = method_of(config(preset, method="detector", detector={"weight": 0.3})).loss(
            says(output), batch(label), at(0.5)
        )
        loss.total.backward()
        assert loss.total.item() == pytest.approx(0.3 * expected, rel=1e-10)
        assert output["detector"].grad.abs().sum() > 0
        assert (
            output["classifier"].grad is None and output["projection"].grad is None and output["debiased"].grad is None
        )
        assert loss.hard_label is None


def test_the_detector_alone_tunes_the_tail_and_leaves_the_classifier() -> None:
    network, totals = trained(config(method="detector", schedule={"lr": 1.0}))
    start, _ = made(config(method="detector"))
    changed = {name for name, value in network.state().items() if not torch.equal(value, start.state()[name])}
    assert {"tail.0.weight", "heads.detector.prototypes.weight"} <= changed
    assert "heads.classifier.weight" not in changed and network.learning == {"detector"}
    assert math.isfinite(totals[-1])


def test_categories_of_the_detector_alone_are_clusters_of_the_tuned_features() -> None:
    """As GCD's."""
    network, method = made(config(method="detector"))
    truth = torch.arange(60) % K
    features = 4 * torch.eye(WIDTH)[truth] + 0.1 * torch.randn(60, WIDTH, generator=torch.Generator().manual_seed(0))
    label = torch.where((truth < KNOWN) & (torch.arange(60) % 2 == 0), truth, -1)
    asked_for = []

    def all_features() -> Tensor:
        asked_for.append(True)
        return features

    with torch.no_grad():
        method.before_training(context(network, all_features, label))
        assert not asked_for
        method.finalise(context(network, all_features, label))
    category = network.from_feature(features, ["classifier"])["classifier"].argmax(1)
    assert torch.equal(category[truth < KNOWN], truth[truth < KNOWN])
    assert len({(a, b) for a, b in zip(category.tolist(), truth.tolist(), strict=True)}) == K


# SimGCD is DebGCD with two weights of zero.


def trained(chosen: Config, steps: int = 6) -> tuple[Network, list[float]]:
    """A few steps with the program's own optimiser."""
    network, method = made(chosen)
    optimiser = sgd(network, chosen.schedule)
    totals = []
    for step in range(steps):
        here = Progress(step, steps, 2)
        set_learning_rate(optimiser, chosen.schedule, 8, here)
        tokens = torch.randn(16, TOKENS, generator=torch.Generator().manual_seed(100 + step))
        loss = method.loss(network, batch(random_labels(8, step), tokens), here)
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        totals.append(loss.total.item())
    return network, totals


def shared(network: Network) -> dict[str, Tensor]:
    return {n: v for n, v in network.state().items() if not n.startswith(("heads.debiased", "heads.detector"))}


def test_without_its_two_losses_debgcd_is_simgcd_bit_for_bit() -> None:
    schedule = {"lr": 1.0}
    simple, totals = trained(config(method="simgcd", schedule=schedule))
    zero = {"detector": {"weight": 0.0}, "debiased": {"weight": 0.0}}
    for same in (config(schedule=schedule, **zero), config(schedule=schedule, ablation=ABLATIONS[1])):
        network, others = trained(same)
        assert others == totals
        assert shared(network).keys() == shared(simple).keys()
        for name, value in shared(network).items():
            assert torch.equal(value, shared(simple)[name]), name
    start, _ = made(config(method="simgcd"))
    assert not torch.equal(start.state()["tail.0.weight"], simple.state()["tail.0.weight"])  # something was learned
    other, _ = trained(config(schedule=schedule))
    assert not torch.equal(other.state()["tail.0.weight"], simple.state()["tail.0.weight"])


# Which rows are used.


def used(chosen: Config, output: Output, label: Tensor, progress: float = 0.5) -> Tensor:
    hard_label = method_of(chosen).loss(says(asked(output, chosen)), batch(label), at(progress)).hard_label
    assert hard_label is not None and hard_label.shape == (len(output["classifier"]),)
    taught = hard_label >= 0
    assert torch.equal(hard_label[taught], output["classifier"].argmax(1)[taught])
    return taught


@pytest.mark.parametrize("row", [2, 3, 5, 6])
def test_used_marks_the_unlabelled_rows_that_pass(row: int) -> None:
    output, label = random_output(40), random_labels(40)
    marks = used(config(ablation=ABLATIONS[row]), output, label).tolist()
    s = oracles.novelty(output["detector"].tolist())
    for i, y in enumerate((label.tolist()) * 2):
        p = oracles.softmax(output["classifier"][i].tolist(), 0.1)
        choice = oracles.first_argmax(p)
        expected = y < 0 and p[choice] > 0.85
        if ABLATIONS[row]["guidance"]:
            expected = expected and oracles.consistent([choice], [s[i]], KNOWN)[0]
        assert marks[i] == expected
    assert 0 < sum(marks) < 40


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.0), (0.25, 0.2), (0.5, 0.4), (0.75, 0.45), (1.0, 0.5)])
def test_a_utilisation_curve_lets_its_share_through(progress: float, share: float) -> None:
    """Whatever the confidences are; half of the 200 images are unlabelled, so there are 200 rows to choose from."""
    curve = {"utilisation": [[0, 0], [0.5, 0.4], [1, 0.5]], "consistency": False}
    label = random_labels(200)
    free = (label < 0).repeat(2)
    for sharpness in (0.1, 1.0):
        output = random_output(200)
        output = Output(output.feature, {**output.heads, "classifier": output["classifier"] * sharpness})
        marks = used(config(debiased=curve), output, label, progress)
        assert not marks[~free].any()
        assert abs(float(marks[free].double().mean()) - share) <= 1 / 200
        confidence = (output["classifier"] / 0.1).softmax(1).amax(1)[free]
        if share > 0:
            assert confidence[marks[free]].min() > confidence[~marks[free]].max()  # the surest ones


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_a_balanced_share_is_one_of_each_categorys_rows(share: float) -> None:
    curve = {"utilisation": [[0, share]], "balanced": True, "consistency": False}
    label = random_labels(200)
    free = (label < 0).repeat(2)
    output = random_output(200)
    confidence, choice = (output["classifier"] / 0.1).softmax(1).max(1)
    marks = used(config(debiased=curve), output, label, 0.5)
    assert not marks[~free].any()
    for category in choice[free].unique():
        rows = (free & (choice == category)).nonzero()[:, 0].tolist()
        surest = sorted(rows, key=lambda row: confidence[row].item(), reverse=True)[: int(share * len(rows) + 0.5)]
        assert [row for row in rows if marks[row]] == sorted(surest)
    assert abs(float(marks[free].double().mean()) - share) < 0.03


@pytest.mark.parametrize(("share", "passing"), [(0.1, []), (0.2, [0, 1, 2]), (0.5, [0, 1, 2, 4])])
def test_rows_of_one_category_that_are_equally_sure_pass_together(share: float, passing: list[int]) -> None:
    confidence, choice = torch.tensor([0.9, 0.9, 0.9, 0.8, 0.7]), torch.tensor([1, 1, 1, 1, 0])
    threshold = quantile_by_category(confidence, choice, share)
    assert (confidence > threshold).nonzero()[:, 0].tolist() == passing


def test_a_utilisation_curve_replaces_the_threshold_in_the_loss_too() -> None:
    output, label = random_output(30), random_labels(30)
    shut = method_of(config(debiased={"utilisation": [[0, 0]]})).loss(says(output), batch(label), at(0.5))
    assert shut.terms["debiased_unlabelled"].item() == 0
    half = method_of(config(debiased={"utilisation": [[0, 0.5]]})).loss(says(output), batch(label), at(0.5))
    assert half.terms["debiased_unlabelled"].item() > 0


# Batches of one kind.


@pytest.mark.parametrize("preset", ["paper", "released", "small"])
@pytest.mark.parametrize("kind", ["none labelled", "all labelled", "one image", "one labelled image"])
def test_batches_of_one_kind_are_finite(preset: str, kind: str) -> None:
    label = {
        "none labelled": torch.full((6,), -1),
        "all labelled": torch.arange(6) % KNOWN,
        "one image": torch.tensor([-1]),
        "one labelled image": torch.tensor([1]),
    }[kind]
    network, method = made(config(preset))
    tokens = torch.randn(2 * len(label), TOKENS, generator=torch.Generator().manual_seed(0))
    loss: Loss = method.loss(network, batch(label, tokens), at(0.5))
    loss.total.backward()
    assert loss.total.isfinite()
    for name, parameter in [*network.heads.named_parameters(), *network.backbone.tuned.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert loss.hard_label is not None
    assert (loss.hard_label[(label >= 0).repeat(2)] == -1).all()


def test_heads_of_the_ablations() -> None:
    expected = {
        1: set(),
        2: set(),
        3: {"debiased"},
        4: {"detector"},
        5: {"debiased", "detector"},
        6: {"debiased", "detector"},
    }
    for row, extra in expected.items():
        heads = method_of(config(ablation=ABLATIONS[row])).heads()
        assert set(heads) == {"classifier", "projection"} | extra
        assert heads["classifier"].weight.shape == (K, WIDTH)
