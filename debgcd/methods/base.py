"""What a method of category discovery is to the rest of the program.

A method is a subclass of `Method` that overrides what it needs; every default does nothing. It holds no state. What training
changes lives in the network: in its tail, in the heads (which become the model) and in `network.memory` (which is only in
checkpoints). So a run that is killed resumes to the same bytes, whatever a method remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debgcd.config.schedules import Progress
from debgcd.config.schema import Config, Options, ScheduleConfig, option
from debgcd.data.sampler import Draws, Sampler, half_labelled, uniform
from debgcd.data.views import TWO_PLAIN, Kinds
from debgcd.model.backbone import Backbone, TrunkSplit
from debgcd.model.network import Network, Output
from debgcd.model.optimiser import Optimiser, sgd
from debgcd.novelty.base import DETECTOR, novelty

TEMPERATURE = 0.1  # of the probabilities that a classifier of cosines reports


@dataclass(frozen=True)
class Sizes:
    """What the shapes of heads and memory may depend on."""

    width: int  # of the feature
    k: int  # categories, known and new
    known: int
    images: int  # in training


@dataclass(frozen=True)
class Batch:
    """B drawn images with V views each: V·B rows, first views of all images, then second views, ...

    Which rows are labelled is given as numbers, never as a mask: how many there are decides the shapes of what follows, and
    a mask on a GPU would have to be waited for to know.
    """

    tokens: Tensor  # (V·B, ...) of the trunk; of several ranks each has its own images' rows, and `network` says of all
    image: Tensor  # (B,) numbers of the training images
    labelled: Tensor  # (V·L,) rows of the L labelled images, view by view
    unlabelled: Tensor  # (V·F,) rows of the other images, view by view
    y: Tensor  # (L,) the labels
    draw: NDArray[np.int64]  # (B,) each draw's number: what randomness is a function of
    seed: int = 0

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        draws: Draws,
        label: NDArray[np.int64],
        device: torch.device | str,
        seed: int = 0,
        views: int | None = None,
    ) -> Batch:
        """label: (B,) of the drawn images, -1 where there is none; all numbers reach the device in one copy.

        views: per image; None where the tokens are those of all images, so that they tell.
        """
        views = len(tokens) // len(label) if views is None else views
        starts = len(label) * np.arange(views)[:, None]
        labelled, unlabelled = np.flatnonzero(label >= 0), np.flatnonzero(label < 0)
        parts = [draws.image, (starts + labelled).ravel(), (starts + unlabelled).ravel(), label[labelled]]
        rows = _to_device(np.concatenate(parts), device)
        image, labelled_rows, unlabelled_rows, y = rows.split([len(part) for part in parts])
        return cls(tokens, image, labelled_rows, unlabelled_rows, y, draws.draw, seed)

    @property
    def views(self) -> int:
        """V."""
        return (len(self.labelled) + len(self.unlabelled)) // len(self.image)

    @property
    def labels(self) -> Tensor:
        """Of each row, -1 where there is none: (V·B,)."""
        none = torch.full((self.views * len(self.image),), -1, device=self.y.device)
        return none.index_copy(0, self.labelled, self.y.repeat(self.views))

    def uniform(self, stream: str, each: int | None = None) -> Tensor:
        """Random numbers in [0, 1), one or so many per image: (B,) or (B, each).

        A function of (seed, stream, draw), so nothing needs saving.
        """
        draw = (self.draw,) if each is None else (self.draw[:, None], np.arange(each))
        return _to_device(uniform(self.seed, stream, *draw).astype(np.float32), self.image.device)


def _to_device(values: NDArray[Any], device: torch.device | str) -> Tensor:
    tensor = torch.from_numpy(values)
    if torch.device(device).type == "cuda":
        tensor = tensor.pin_memory()  # from other memory the copy would be waited for
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True)
class Loss:
    """What a method's loss says of one batch."""

    total: Tensor  # a scalar with gradient
    terms: Mapping[str, Tensor | float]  # for the log: each term unweighted, temperatures, ...
    hard_label: Tensor | None = None  # (V·B,) the category that each row taught another classifier, -1 where none


@dataclass(frozen=True)
class Context:
    """What hooks outside the steps may look at, and change in the network."""

    network: Network
    features: Callable[[], Tensor]  # (N, width) of all training images' centre crops, computed when called
    label: Tensor  # (N,), -1 where there is none
    group: Tensor | None = None  # (N,) images of one scene have the same number, -1: none
    given: frozenset[str] = frozenset()  # in `before_training`: heads that came from the run this one started from


@dataclass(frozen=True)
class FirstStage:
    """The first stage of a method with two, and the second one's share of steps that are auto."""

    epochs: int | None = option(
        None, "passes over the data; null here and in steps: those of the second stage", 1, 10**6
    )
    steps: int | None = option(None, "a length in steps; before epochs", 1, 10**9)
    times: float = option(
        1.0, "factor applied to the second stage's steps, where the first has no length of its own", 1e-3, 1e3
    )
    second: float = option(1.0, "factor applied to the second stage's steps that are auto", 1e-3, 1e3)
    bank: Literal["auto", "on", "off"] | None = option(
        None, "its view bank, where the second stage can have none; null: the preset's"
    )


@dataclass(frozen=True)
class About:
    """What `debgcd methods` says of a method; the title is that of its row in the paper's tables."""

    title: str
    year: int
    venue: str
    idea: str
    finds_k: bool = False  # K is only a first guess: a benchmark's true K is never given to it
    needs_vit: bool = False
    package: str | None = None  # an optional package that it needs


class Method:
    """A method; see above. `loss` is the only function that a method with gradients must have besides `heads`."""

    about: ClassVar[About]
    Options: ClassVar[type[Options]] = Options  # what it can be told
    views: ClassVar[Kinds] = TWO_PLAIN  # the views of a draw; a batch has their rows in this order
    cut: ClassVar[TrunkSplit] = TrunkSplit(
        tuned=1
    )  # where the frozen trunk ends, unless the configuration says otherwise
    trains: ClassVar[bool] = (
        True  # False: there are no steps; the heads come from `before_training` and `finalise` alone
    )
    clusters: ClassVar[bool] = False  # categories are clusters; an evaluation during training clusters each split alone
    first: ClassVar[str | None] = None  # the method whose run comes first, unless --start names one
    answers: ClassVar[tuple[str, ...]] = (
        "classifier",
    )  # heads that the category of an image needs; first a Classifier

    def __init__(self, config: Config, sizes: Sizes):
        self.config, self.sizes = config, sizes
        self.options: Any = config.options

    # What there is.

    @classmethod
    def prompted(cls, backbone: Backbone, config: Config) -> Backbone:
        """The backbone with what learns before its trunk, for a method whose `cut` says `early`."""
        return backbone

    def heads(self) -> nn.ModuleDict:
        """The heads on the feature. Their names are free; each has `reset(generator)` if it has parameters."""
        raise NotImplementedError

    def memory(self, network: Network) -> nn.Module:
        """What is remembered between steps besides the heads: buffers. It is in checkpoints and not in the model."""
        return nn.Module()

    def sampler(self, label: NDArray[np.int64], batch: int, network: Network) -> Sampler:
        """Which images a step sees, a function of (seed, step); of the memory only what `before_epoch` wrote may count.

        A method with a sampler of its own is asked for a new one at the start of every epoch.
        """
        return Sampler(half_labelled(label), batch, self.config.seed)

    def optimiser(self, network: Network, schedule: ScheduleConfig) -> Optimiser:
        """What changes `network.trained()`: any optimiser, e.g. of torch.optim. The schedule sets its learning rate."""
        return sgd(network, schedule)

    # What happens when.

    def before_training(self, context: Context) -> None:
        """Before the first step: where the heads start from."""

    def before_epoch(self, context: Context, progress: Progress) -> None:
        """Before the first step of every epoch."""

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        """The loss of a batch. Nothing in it may wait for a GPU. A parameter that it sets to need no gradient stays as it is."""
        raise TypeError(f"{self.config.method} has nothing to train")

    def after_step(self, network: Network, progress: Progress) -> None:
        """After the optimiser's step."""

    def finalise(self, context: Context) -> None:
        """At the end: fill the heads that no gradient trains."""

    # What is reported.

    def scores(self, output: Output) -> dict[str, Tensor]:
        """Probabilities (N, K) of each classifier that was asked, by the name it has in evaluation.json.

        The first one says the categories.
        """
        return {"gcd": (output[self.answers[0]] / TEMPERATURE).softmax(1)}

    def novelty(self, output: Output) -> Tensor | None:
        """(N,) in 0..1, near 1 where no known class fits; None if no detector was asked."""
        return novelty(output[DETECTOR]) if DETECTOR in output else None
