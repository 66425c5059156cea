"""The interface that every method implements.

A method is a subclass of `Method` that overrides what it needs; the default hooks do nothing. It holds no state. All that
training changes is in the network: the tail, the heads (saved with the model) and `network.memory` (saved in checkpoints
only). So a killed run resumes to the same bytes, whatever a method remembers.
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
from debgcd.novelty.so_far import Before

TEMPERATURE = 0.1  # softmax temperature of the probabilities of a cosine classifier


@dataclass(frozen=True)
class Sizes:
    """The sizes that determine the shapes of heads and memory."""

    width: int  # of the feature
    k: int  # categories, known and new
    known: int
    images: int  # training images


@dataclass(frozen=True)
class Batch:
    """B drawn images with V views each: V·B rows, first views of all images, then second views, ...

    Labelled rows are given as indices, never as a mask: their number decides the shapes of later tensors, and counting a
    mask on a GPU would synchronise.
    """

    # (V·B, ...) output of the trunk; with several ranks, only this rank's rows, and `network` returns those of all ranks
    tokens: Tensor
    image: Tensor  # (B,) indices of the training images
    labelled: Tensor  # (V·L,) rows of the L labelled images, view by view
    unlabelled: Tensor  # (V·F,) rows of the other images, view by view
    y: Tensor  # (L,) the labels
    draw: NDArray[np.int64]  # (B,) number of each draw in the run; see `uniform`
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
        """The batch of these draws; all indices reach the device in one copy.

        label: (B,) of the drawn images, -1 for unlabelled. views: V; None derives it from the length of `tokens`, which must
        then have the rows of all images.
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
        """V, the number of views per image."""
        return (len(self.labelled) + len(self.unlabelled)) // len(self.image)

    @property
    def labels(self) -> Tensor:
        """The label of each row, -1 for unlabelled: (V·B,)."""
        none = torch.full((self.views * len(self.image),), -1, device=self.y.device)
        return none.index_copy(0, self.labelled, self.y.repeat(self.views))

    def uniform(self, stream: str, each: int | None = None) -> Tensor:
        """Random numbers in [0, 1): (B,), or (B, each) if `each` is given.

        They are a function of (seed, stream, draw), so no generator state needs saving.
        """
        draw = (self.draw,) if each is None else (self.draw[:, None], np.arange(each))
        return _to_device(uniform(self.seed, stream, *draw).astype(np.float32), self.image.device)


def _to_device(values: NDArray[Any], device: torch.device | str) -> Tensor:
    tensor = torch.from_numpy(values)
    if torch.device(device).type == "cuda":
        # a copy from pageable memory would block
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True)
class Loss:
    """A method's loss on one batch."""

    total: Tensor  # a scalar with gradient
    terms: Mapping[str, Tensor | float]  # for the log only: each term without its weight, temperatures, ...
    hard_label: Tensor | None = None  # (V·B,) hard label of each row for the debiased classifier, -1 if none


@dataclass(frozen=True)
class Context:
    """The input of the hooks that run outside the steps; they may change the network."""

    network: Network
    features: Callable[[], Tensor]  # computes (N, width) features of all training images' centre crops
    averaged_features: Callable[[], Tensor]  # averaged over the views that a bank keeps, if there is one: steadier
    label: Tensor  # (N,), -1 for unlabelled
    group: Tensor | None = None  # (N,) images of one scene share a number; -1: no group
    before: Before | None = None  # where the images were in the run that this one continues; None: it continues none
    unlearned: Tensor | None = None  # (N,) bool, at the end: labelled images that no step learned from; None: all
    # in `before_training`, the names of the heads that `--start` copied from another run; empty in the other hooks
    given: frozenset[str] = frozenset()

    @property
    def voters(self) -> Tensor:
        """The class of each image for a detector: its label, or where an earlier run put it; (N,), -1 for none.

        After a review some classes are labelled as a whole and others in part. With the images that were put into them, all
        classes have every image that there was, and no share of labels has to be guessed.
        """
        if self.before is None:
            return self.label
        there = self.before.category
        return torch.where(there < self.before.known, there, -1)


@dataclass(frozen=True)
class FirstStage:
    """Length and view bank of the first of two stages, and the factor for the second stage's automatic steps."""

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
    """A method's entry in `debgcd methods`; the title is that of its row in the paper's tables."""

    title: str
    year: int
    venue: str
    idea: str
    finds_k: bool = False  # K is only a first guess: the method never gets a benchmark's true K
    needs_vit: bool = False
    package: str | None = None  # a required optional package


class Method:
    """Base class of all methods. A method that trains must override `heads` and `loss`; all else has a default."""

    about: ClassVar[About]
    Options: ClassVar[type[Options]] = Options  # the method's part of the configuration
    # the kind of each of the V views of a draw; a batch has their rows in this order
    views: ClassVar[Kinds] = TWO_PLAIN
    # where the frozen trunk ends, unless the configuration overrides it
    cut: ClassVar[TrunkSplit] = TrunkSplit(tuned=1)
    # False: there are no steps; only `before_training` and `finalise` fill the heads
    trains: ClassVar[bool] = True
    # categories are clusters; an evaluation during training clusters each split separately
    clusters: ClassVar[bool] = False
    # the method of the first stage, unless --start names a run
    first: ClassVar[str | None] = None
    # heads needed to predict an image's category; the first one is a Classifier
    answers: ClassVar[tuple[str, ...]] = ("classifier",)

    def __init__(self, config: Config, sizes: Sizes):
        self.config, self.sizes = config, sizes
        self.options: Any = config.options

    @property
    def final_answers(self) -> tuple[str, ...]:
        """The heads that give an image's category after `finalise`: `answers`, unless the answer is settled."""
        return self.answers

    # The parts of the network and of training.

    @classmethod
    def prompted(cls, backbone: Backbone, config: Config) -> Backbone:
        """The backbone with the prompts that learn before its trunk, for a method whose `cut` has `early`."""
        return backbone

    def heads(self) -> nn.ModuleDict:
        """The heads on the feature, by name; a head with parameters has `reset(generator)`."""
        raise NotImplementedError

    def memory(self, network: Network) -> nn.Module:
        """A module whose buffers the method keeps between steps. They are saved in checkpoints, not with the model."""
        return nn.Module()

    def sampler(self, label: NDArray[np.int64], batch: int, network: Network) -> Sampler:
        """The sampler, a function of (seed, step). It may read only those parts of the memory that `before_epoch` writes.

        If a method overrides this, a new sampler is made at the start of every epoch.
        """
        half = self.config.schedule.labelled == "half"
        return Sampler(half_labelled(label) if half else np.ones(len(label)), batch, self.config.seed)

    def optimiser(self, network: Network, schedule: ScheduleConfig) -> Optimiser:
        """The optimiser of `network.trained()`, e.g. one of torch.optim. The schedule sets its learning rate."""
        return sgd(network, schedule)

    # Hooks, in the order in which they run.

    def before_training(self, context: Context) -> None:
        """Runs before the first step: initialise the heads."""

    def before_epoch(self, context: Context, progress: Progress) -> None:
        """Runs before the first step of every epoch."""

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        """The loss of a batch; it must not wait for a GPU. Parameters that get no gradient are not changed by the step."""
        raise TypeError(f"{self.config.method} has nothing to train")

    def after_step(self, network: Network, progress: Progress) -> None:
        """Runs after the optimiser's step."""

    def finalise(self, context: Context) -> None:
        """Runs at the end: fill the heads that no gradient trains."""

    # Results.

    def scores(self, output: Output) -> dict[str, Tensor]:
        """Probabilities (N, K) of each classifier in `output`, by its name in evaluation.json.

        The first one gives the categories.
        """
        return {"gcd": (output[self.answers[0]] / TEMPERATURE).softmax(1)}

    def novelty(self, output: Output) -> Tensor | None:
        """(N,) in 0..1, near 1 where no known class fits; None if `output` has no detector."""
        return novelty(output[DETECTOR]) if DETECTOR in output else None
