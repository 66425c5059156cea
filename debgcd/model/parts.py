"""Categories that a reviewer split: what the network gives one of them goes to the part whose images it looks most like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot, pad


@dataclass(frozen=True)
class Parts:
    """P parts of some categories: part i is of category `of[i]`, goes to category `to[i]`, and has the mean feature `means[i]`."""

    of: Sequence[int]
    to: Sequence[int]
    means: Tensor  # (P, width), unit rows
    categories: int  # in all: those of the network, then those that began in the review

    def __call__(self, feature: Tensor, p: Tensor) -> Tensor:
        """Probabilities of all categories: feature (N, width), p (N, K) of the network's -> (N, categories).

        The whole probability of a category that was split goes to one of its parts, the one with the nearest mean.
        """
        similarity = normalize(feature, dim=1) @ self.means.to(feature).T
        p = pad(p, (0, self.categories - p.shape[1]))
        moved = torch.zeros_like(p)
        for category in sorted(set(self.of)):
            parts = [i for i, of in enumerate(self.of) if of == category]
            targets = torch.tensor([self.to[i] for i in parts], device=p.device)
            nearest = one_hot(similarity[:, parts].argmax(1), len(parts)).to(p)
            target = nearest @ one_hot(targets, self.categories).to(p)
            source = one_hot(torch.tensor(category, device=p.device), self.categories).to(p)
            moved = moved + p[:, category : category + 1] * (target - source)
        return p + moved
