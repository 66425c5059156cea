"""Which points are like none of the labelled ones: a first answer, before anything is trained."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 0.1  # of the sum of a coordinate's squares, on average over the coordinates


def unlike_labelled(points: Tensor, label: Tensor) -> Tensor:
    """How much a point is like the unlabelled ones rather than the labelled: (N, d), (N,) -> (N,), above 0 if it is.

    Labelled points come from known classes alone, unlabelled ones from all. So where labelled points are rare among the
    others lies what is new; if, that is, about the same part of each known class is labelled.

    A ridge regression of "unlabelled" (1) against "labelled" (-1) on the points, both sides counted alike. Each point is
    judged by the regression without it (its residual over 1 - leverage), or else a point would be found on its own side
    because it was put there.
    """
    z = torch.where(label >= 0, -1.0, 1.0).to(points.device, torch.float64)
    share = torch.where(z < 0, (z < 0).double().mean(), (z > 0).double().mean())
    root = (0.5 / share).sqrt()  # of the weights
    x = points.double() / points.double().square().mean().sqrt().clamp_min(1e-30)  # as long as the constant beside it
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1) * root[:, None]
    gram = x.T @ x
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    root_of_gram = torch.linalg.cholesky(gram)
    leverage = torch.linalg.solve_triangular(root_of_gram, x.T, upper=False).square().sum(0)
    fitted = x @ torch.cholesky_solve((x.T @ (root * z))[:, None], root_of_gram)[:, 0]
    return ((fitted - leverage * root * z) / (1 - leverage) / root).to(points.dtype)
