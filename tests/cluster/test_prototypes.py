"""Where a classifier starts from: unit centres of a semi-supervised clustering along principal axes."""

from __future__ import annotations

import pytest
import torch
from clouds import mixture
from sklearn.decomposition import PCA

from debgcd.cluster.prototypes import AXES, class_means, principal, prototypes


@pytest.mark.parametrize(("axes", "width"), [(1, 6), (3, 6), (6, 6), (9, 6), (4, 40)])
def test_principal_axes_are_scikit_learns(axes: int, width: int) -> None:
    points = mixture(0, 5, 6, width, 1.0)[0] + 10
    found = principal(points, axes)
    count = min(axes, width)
    assert found.shape == (30, count)
    assert found.dtype == points.dtype
    expected = torch.from_numpy(PCA(count).fit_transform(points.double().numpy())).float().flip(1)  # largest last here
    torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-3, atol=1e-3)  # the sign of an axis is free


@pytest.mark.parametrize("width", [8, AXES + 20])
def test_prototypes_are_the_unit_centres_of_a_semi_supervised_clustering(width: int) -> None:
    points, truth = mixture(1, 6, 12, width, 0.05)
    label = torch.where((truth < 3) & (torch.arange(len(truth)) % 2 == 0), truth, -1)
    found = prototypes(points, label, 6)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(6))
    unit = points / points.norm(dim=1, keepdim=True)
    centres = torch.stack([unit[truth == k].mean(0) for k in range(6)])
    centres = centres / centres.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found[:3], centres[:3])  # known classes under their own numbers
    nearest = torch.cdist(found[3:], centres).min(1)
    assert sorted(nearest.indices.tolist()) == [3, 4, 5]
    assert float(nearest.values.max()) < 1e-4


def test_every_prototype_has_a_length() -> None:
    """Three free points for eight new categories: a prototype of zeros would have a gradient without bound."""
    points, _ = mixture(0, 13, 1, 8, 1.0)
    label = torch.tensor([0] * 5 + [1] * 5 + [-1] * 3)
    torch.testing.assert_close(prototypes(points, label, 10).norm(dim=1), torch.ones(10))
    assert prototypes(torch.ones(6, 4), torch.tensor([0, -1, -1, -1, -1, -1]), 3).isfinite().all()


def test_class_means_are_the_unit_means_of_their_rows_and_an_empty_category_gets_a_row() -> None:
    unit = torch.nn.functional.normalize(torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    category = torch.arange(30) % 5 - 1  # -1 for none
    found = class_means(unit, category, 6)  # nobody is in 4 and 5
    for k in range(4):
        total = torch.zeros(4)
        for row, own in zip(unit, category.tolist(), strict=True):
            total += row * (own == k)
        torch.testing.assert_close(found[k], total / total.norm())
    torch.testing.assert_close(found[4:], unit[:2])
