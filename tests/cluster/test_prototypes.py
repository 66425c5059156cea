"""Where a classifier starts from: unit centres of a semi-supervised clustering along principal axes."""

from __future__ import annotations

import pytest
import torch
from clouds import mixture
from sklearn.decomposition import PCA

from debgcd.cluster.prototypes import AXES, principal, prototypes


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


def beside_a_known_class() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two known classes, a new one close beside the first, and a new one far away that has two parts."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.zeros(5, 12)
    centres[0, 0] = centres[1, 1] = centres[2, 0] = 4.0
    centres[2, 2] = 1.5
    centres[3, 3] = centres[4, 3] = 4.0
    centres[3, 4], centres[4, 4] = 1.7, -1.7
    part = torch.arange(5).repeat_interleave(60)
    points = centres[part] + 0.5 * torch.randn(300, 12, generator=rng)
    truth = part.clamp_max(3)
    return points, truth, torch.where((truth < 2) & (torch.arange(300) % 2 == 0), truth, -1)


def test_what_looks_new_is_clustered_alone_so_a_class_beside_a_known_one_is_found() -> None:
    points, truth, label = beside_a_known_class()
    unit = points / points.norm(dim=1, keepdim=True)
    right = []
    for new in (None, truth >= 2):
        nearest = (unit @ prototypes(points, label, 4, new=new).T).argmax(1)
        right.append(float((nearest[truth == 2] >= 2).double().mean()))
    assert right[1] > 0.9
    assert right[0] < 0.5  # drawn into the known class


def test_new_points_are_clustered_with_the_scatter_within_classes_taken_out() -> None:
    """One axis, in which every class varies widely, hides all others unless it is made short."""
    rng = torch.Generator().manual_seed(1)
    truth = torch.arange(4).repeat_interleave(60)
    points = 0.3 * torch.randn(240, 12, generator=rng)
    points[torch.arange(240), truth] += 2.0
    points[:, 11] = 12 * torch.randn(240, generator=rng)
    label = torch.where((truth < 2) & (torch.arange(240) % 2 == 0), truth, -1)
    found = prototypes(points, label, 4, new=truth >= 2)
    ours = found[2:, :11] / found[2:, :11].norm(dim=1, keepdim=True)
    assert sorted(ours.argmax(1).tolist()) == [2, 3]
    assert ours.amax(1).min() > 0.9


def test_a_guided_start_reports_and_depends_on_the_seed_as_the_plain_one_does() -> None:
    points, _ = mixture(2, 9, 20, 6, 1.0)  # no clusters worth the name, so that restarts differ
    label = torch.where(torch.arange(180) < 20, torch.arange(180) % 2, -1)
    reports: list[tuple[int, int]] = []
    starts = [
        prototypes(points, label, 20, new=label < 0, seed=seed, on_progress=lambda *at: reports.append(at))
        for seed in (0, 0, 1)
    ]
    assert torch.equal(starts[0], starts[1]) and not torch.equal(starts[0], starts[2])
    assert reports and reports[-1][0] == reports[-1][1]


def test_a_guided_start_takes_a_cluster_for_a_class_that_has_no_labelled_image() -> None:
    points, _, label = beside_a_known_class()
    label = torch.where(label == 1, 2, label)  # number 1 is missing
    assert torch.equal(prototypes(points, label, 5, new=label < 0), prototypes(points, label, 5))


def test_a_guided_start_has_known_classes_at_their_labelled_images() -> None:
    points, _, label = beside_a_known_class()
    unit = points / points.norm(dim=1, keepdim=True)
    found = prototypes(points, label, 4, new=label < 0)
    for k in range(2):
        mean = unit[label == k].mean(0)
        torch.testing.assert_close(found[k], mean / mean.norm())
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("k", [2, 290])
def test_a_guided_start_without_new_classes_or_with_too_few_images_is_the_plain_start(k: int) -> None:
    points, truth, label = beside_a_known_class()
    assert torch.equal(prototypes(points, label, k, new=truth >= 2), prototypes(points, label, k))
