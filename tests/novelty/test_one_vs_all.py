"""The one-vs-all detector: cosines in the space of its projection, of any depth."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.novelty.one_vs_all import DetectorShape, OneVsAll


def features() -> Tensor:
    return 3 * torch.randn(5, 6, generator=torch.Generator().manual_seed(0)) + 1


def test_a_detector_is_projection_and_pairs_of_cosines_over_the_temperature() -> None:
    detector = OneVsAll(6, 3, DetectorShape(9, 2, 4), temperature=0.05)
    detector.reset(torch.Generator().manual_seed(0))
    x = features()
    scores = detector(x)
    z, weight = detector.projection(x), normalize(detector.prototypes.weight, dim=1)
    for k in range(3):
        for channel in range(2):
            torch.testing.assert_close(scores[:, k, channel], z @ weight[2 * k + channel] / 0.05)


@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_detectors_of_any_depth(depth: int) -> None:
    """The appendix' table of depths; 0 is the classifiers' own feature space."""
    detector = OneVsAll(6, 3, DetectorShape(9, depth, 4), temperature=0.1)
    detector.reset(torch.Generator().manual_seed(0))
    assert len(detector.projection.layers) == depth
    assert detector.prototypes.weight.shape == (6, 4 if depth else 6)
    x = features()
    assert detector(x).shape == (5, 3, 2)
    torch.testing.assert_close(detector.projection(x).norm(dim=1), torch.ones(5))
    if depth == 0:
        torch.testing.assert_close(detector.projection(x), normalize(x, dim=1))
