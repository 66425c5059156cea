"""The interface: every detector fits, scores and states its threshold, or leaves it to the labelled images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from debgcd import losses
from debgcd.model.backbone import Backbone
from debgcd.model.heads import Part
from debgcd.model.network import Network
from debgcd.novelty.base import FEW_LABELS, Detector, detector_of, exceeded_by_few, novelty, remember, remembered
from debgcd.novelty.one_vs_all import DetectorShape, DistanceDetector, OneVsAll
from debgcd.novelty.vote import Neighbours, voted

WIDTH, KNOWN, IMAGES = 6, 2, 30


def made(kind: str) -> Detector:
    if kind == "one-vs-all":
        found = OneVsAll(WIDTH, KNOWN, DetectorShape(8, 2, 4), 0.1)
        found.reset(torch.Generator().manual_seed(0))
        return found
    return Neighbours(WIDTH, IMAGES) if kind == "vote" else DistanceDetector(WIDTH, KNOWN)


def images() -> tuple[Tensor, Tensor]:
    """Features of two known classes and a new one, and the labels of half of the known ones."""
    truth = torch.arange(IMAGES) % 3
    noise = torch.randn(IMAGES, WIDTH, generator=torch.Generator().manual_seed(0))
    return 5 * torch.eye(WIDTH)[truth] + noise, torch.where(
        (truth < KNOWN) & (torch.arange(IMAGES) % 2 == 0), truth, -1
    )


class Nothing(Backbone):
    width = WIDTH


@pytest.mark.parametrize("kind", ["one-vs-all", "vote", "distance"])
def test_every_detector_can_be_fitted_and_asked(kind: str) -> None:
    detector, (feature, label) = made(kind), images()
    detector.fit(feature, label, torch.full_like(label, -1))
    before = novelty(detector(feature)).detach()
    assert before.shape == (IMAGES,) and ((before >= 0) & (before <= 1)).all()
    detector.refit(2 * feature, label, before, torch.full_like(label, -1))
    assert novelty(detector(feature)).isfinite().all()
    assert detector.learned == (kind == "one-vs-all")
    assert (detector.threshold() is None) == (kind != "vote")


def test_a_fit_leaves_a_trained_detector_as_it_is() -> None:
    detector, (feature, label) = made("one-vs-all"), images()
    start = {name: value.clone() for name, value in detector.state_dict().items()}
    detector.fit(feature, label)
    detector.refit(feature, label, torch.zeros(IMAGES))
    assert all(torch.equal(value, start[name]) for name, value in detector.state_dict().items())


def test_scores_of_both_forms_mean_a_novelty() -> None:
    pairs = torch.randn(4, KNOWN, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(novelty(pairs), losses.novelty(pairs))
    assert novelty(torch.tensor([0.2, 0.7])).tolist() == pytest.approx([0.2, 0.7])


def test_a_vote_without_a_head_is_that_of_a_fitted_head() -> None:
    (feature, label), head = images(), made("vote")
    head.fit(feature, label)
    assert torch.equal(voted(feature, label), head(feature))


def test_the_detector_of_a_network_may_be_on_a_part_of_the_feature() -> None:
    detector = made("distance")
    backbone = Nothing()
    assert detector_of(Network(backbone, nn.ModuleDict())) is None
    assert detector_of(Network(backbone, nn.ModuleDict({"detector": detector}))) is detector
    assert detector_of(Network(backbone, nn.ModuleDict({"detector": Part(detector, 0, 3)}))) is detector


def test_what_is_remembered_is_a_buffer_of_the_memory() -> None:
    network = Network(Nothing(), nn.ModuleDict())
    assert remembered(network) is None
    remember(network.memory, IMAGES)
    before = remembered(network)
    assert before is not None and before.shape == (IMAGES,)
    assert list(network.remembered()) == ["memory.novelty"]


def test_one_in_twenty_labelled_images_exceeds_the_threshold() -> None:
    found = exceeded_by_few(np.linspace(0, 1, 101).astype(np.float32))
    assert found is not None
    assert (found.above, found.error_known) == pytest.approx((0.95, 5 / 101), abs=1e-6)
    assert exceeded_by_few(np.empty(0, np.float32)) is None
    few = exceeded_by_few(np.linspace(0, 1, FEW_LABELS - 1).astype(np.float32))
    assert few is not None and few.error_known is None and few.above > 0.9
