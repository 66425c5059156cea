"""What a method of category discovery is to the rest of the program: heads + loss + assign."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from debgcd.model.network import Output


@dataclass(frozen=True)
class Loss:
    """What a method's loss says of one batch."""

    total: Tensor  # a scalar with gradient
    terms: Mapping[str, Tensor | float]  # for the log: each term unweighted, temperatures, ...
    used: Tensor | None = None  # (2B,) which rows gave a hard label to the debiased classifier


class Method(Protocol):
    """A method; it is made from the configuration and the number of known classes, and holds no other state.

    What training changes lives in the heads, so a checkpoint of the network is a checkpoint of the method.
    """

    tuned_blocks: int  # of the backbone, unless the configuration says otherwise
    trains: bool  # False: the heads come from `at_epoch` alone

    def heads(self, width: int) -> nn.ModuleDict:
        """The heads on a feature of this width, named as in `model.network.FIELDS`; "classifier" must be among them."""
        ...

    def at_epoch(self, epoch: int, heads: nn.ModuleDict, features: Callable[[], Tensor], label: Tensor) -> None:
        """Before each epoch and once after the last: change the heads in the light of all images' features.

        `features()` gives (N, width) of the centre crops, computed when called; label: (N,), -1 where there is none.
        """
        ...

    def loss(self, output: Output, label: Tensor, progress: float) -> Loss:
        """The loss of a batch of B images; output has 2B rows, two views each; label: (B,), -1 where there is none."""
        ...

    def assign(self, logits: Tensor) -> Tensor:
        """Probabilities of the categories, (N, K), from the logits of a classifier."""
        ...
