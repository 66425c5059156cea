"""What a method of category discovery is to the rest of the program: heads + loss + assign."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debgcd.model.network import Output
from debgcd.schedules import Progress

Features = Callable[[], Tensor]  # (N, width) of all training images' centre crops, computed when called


@dataclass(frozen=True)
class Batch:
    """Which of the 2B rows of a batch are labelled, two views of each of B images; as numbers, never as a mask.

    How many are labelled decides the shapes of what follows, and a mask on a GPU would have to be waited for to know.
    """

    labelled: Tensor  # (2L,) rows of the L labelled images: first views, then second views
    free: Tensor  # (2F,) rows of the other images, likewise
    y: Tensor  # (L,) the labels

    @classmethod
    def of(cls, label: NDArray[np.int64], device: torch.device | str = "cpu") -> Batch:
        """From the labels of the B images, -1 where there is none; they reach the device in one copy."""
        labelled, free = np.flatnonzero(label >= 0), np.flatnonzero(label < 0)
        second = len(label)
        rows = torch.from_numpy(np.concatenate([labelled, labelled + second, free, free + second, label[labelled]]))
        if torch.device(device).type == "cuda":
            rows = rows.pin_memory().to(device, non_blocking=True)  # from other memory the copy would be waited for
        sizes = [2 * len(labelled), 2 * len(free), len(labelled)]
        return cls(*rows.to(device).split(sizes))


@dataclass(frozen=True)
class Loss:
    """What a method's loss says of one batch."""

    total: Tensor  # a scalar with gradient
    terms: Mapping[str, Tensor | float]  # for the log: each term unweighted, temperatures, ...
    hard_label: Tensor | None = None  # (2B,) the category each row taught the debiased classifier, -1 where none


class Method(Protocol):
    """A method; it is made from the configuration and the number of known classes, and holds no other state.

    What training changes lives in the heads, so a checkpoint of the network is a checkpoint of the method. `begin` and
    `settle` change heads in the light of all images' features; their label is (N,), -1 where there is none.
    """

    k: int  # categories
    tuned_blocks: int  # of the backbone, unless the configuration says otherwise
    trains: bool  # False: there are no steps, and the heads come from `begin` and `settle` alone
    clusters: (
        bool  # the categories are clusters of the features; an evaluation during training clusters each split alone
    )

    def heads(self, width: int) -> nn.ModuleDict:
        """The heads on a feature of this width, named as in `model.network.FIELDS`; "classifier" must be among them."""
        ...

    def begin(self, heads: nn.ModuleDict, features: Features, label: Tensor) -> None:
        """Before the first step: where the heads start from."""
        ...

    def settle(self, heads: nn.ModuleDict, features: Features, label: Tensor) -> None:
        """At the end: fill the heads that no gradient trains."""
        ...

    def loss(self, output: Output, batch: Batch, progress: Progress) -> Loss:
        """The loss of a batch of B images: what the trained heads say of its 2B rows. Nothing in it may wait for a GPU."""
        ...

    def assign(self, logits: Tensor) -> Tensor:
        """Probabilities of the categories, (N, K), from the logits of a classifier."""
        ...
