"""What looks new before anything is trained: like the unlabelled points, unlike the labelled ones."""

from __future__ import annotations

import pytest
import torch
from clouds import half_labelled, mixture
from sklearn.linear_model import Ridge

from debgcd.cluster.prototypes import RIDGE, unlike_labelled


@pytest.mark.parametrize(("seed", "width"), [(0, 3), (1, 8), (2, 40)])
def test_each_point_is_judged_by_the_regression_without_it(seed: int, width: int) -> None:
    """scikit-learn's ridge, fitted anew for every point; the weights and the ridge are those of all points."""
    points, truth = mixture(seed, 4, 6, width, 1.0)
    points, label = points.double() / points.double().square().mean().sqrt(), half_labelled(truth, 2)
    z = torch.where(label >= 0, -1.0, 1.0).double()
    weight = torch.where(z < 0, 0.5 / (z < 0).double().mean(), 0.5 / (z > 0).double().mean())
    x = torch.cat([points, torch.ones(len(points), 1)], 1)  # the constant is shrunk like the rest
    ridge = RIDGE * float((weight[:, None] * x.square()).sum(0).mean())
    found = unlike_labelled(7 * points, label)  # of any scale
    for i in range(len(points)):
        rest = torch.arange(len(points)) != i
        model = Ridge(alpha=ridge, fit_intercept=False).fit(x[rest], z[rest], sample_weight=weight[rest])
        assert float(found[i]) == pytest.approx(float(model.predict(x[i : i + 1])[0]), abs=1e-9)


def test_new_points_look_new_and_known_ones_do_not() -> None:
    points, truth = mixture(3, 6, 60, 12, 0.3)
    label = half_labelled(truth, 3)
    looks_new = unlike_labelled(points, label) > 0
    free = label < 0
    assert looks_new[free & (truth >= 3)].double().mean() > 0.95
    assert looks_new[free & (truth < 3)].double().mean() < 0.2


def test_a_known_class_that_is_hardly_labelled_looks_new() -> None:
    """What it assumes: about the same part of each known class is labelled. Here one of ten, and half of the others."""
    points, truth = mixture(6, 3, 100, 12, 0.3)
    every = torch.where(truth == 0, 10, 2)
    label = torch.where(torch.arange(300) % every == 0, truth, -1)
    looks_new = (unlike_labelled(points, label) > 0) & (label < 0)
    shares = [float(looks_new[(label < 0) & (truth == k)].double().mean()) for k in range(3)]
    assert shares[0] > 0.8 and max(shares[1:]) < 0.2


def test_a_point_is_no_evidence_for_itself() -> None:
    """Without leaving it out, a lone unlabelled point in a cloud of labelled ones would look new because it is unlabelled."""
    points, truth = mixture(4, 2, 30, 80, 1.0)  # more axes than points: a plain fit reproduces every side
    label = torch.where(torch.arange(60) % 2 == 0, truth, -1)
    found = unlike_labelled(points, label)
    assert abs(float((found[label < 0] > 0).double().mean()) - 0.5) < 0.3


@pytest.mark.parametrize("known", [0, 2])
def test_all_labelled_or_none(known: int) -> None:
    points, truth = mixture(5, 2, 10, 4, 1.0)
    assert unlike_labelled(points, torch.where(truth < known, truth, -1)).isfinite().all()
