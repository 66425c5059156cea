"""What training and evaluation of a run share: the network on its device, the method, and the source of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debgcd.config.schema import Config
from debgcd.data.image.crop import Picture
from debgcd.data.loader import Images, default_workers, from_files
from debgcd.data.manifest import Manifest
from debgcd.data.sampler import uniform
from debgcd.errors import DataError
from debgcd.infer.infer import averaged_features_shared, features_shared
from debgcd.methods import METHODS, create
from debgcd.methods.base import Method, Sizes
from debgcd.model.backbone import Backbone, pick_device
from debgcd.model.heads import classifiers, reset_heads
from debgcd.model.network import Network
from debgcd.novelty.base import detector_of
from debgcd.novelty.so_far import UNEVEN, Before
from debgcd.novelty.vote import Neighbours
from debgcd.run.directory import Run
from debgcd.system import distributed
from debgcd.system.progress import progress
from debgcd.tokens.bank import BankTokens, missing_views, open_bank
from debgcd.tokens.image_cache import open_image_cache
from debgcd.tokens.sources import FreshTokens, MixedTokens, Tokens
from debgcd.train.continue_run import read_before

FEWEST_LABELS = 10  # images that a class must have for some to be held out
FEWEST_HELD_OUT = 10  # of all classes together; an accuracy on fewer means nothing


class StartFeatures:
    """Raw features of all training images before the first step, computed at the first call; rank 0 gets them."""

    def __init__(self, backbone: Backbone, tokens: Tokens, paths: Sequence[Picture]):
        self._backbone, self._tokens, self._paths = backbone, tokens, paths
        self._raw: Tensor | None = None
        self.valid = True  # False once the network changes

    def __call__(self) -> Tensor:
        """(N, width) on rank 0, no rows on other ranks. All ranks must call it."""
        assert self.valid, "the network has changed"
        if self._raw is None:
            network = Network(self._backbone, nn.ModuleDict()).to(self._backbone.pixel_mean.device)
            self._raw = finite_features(network, self._tokens, self._paths)
        return self._raw

    def forget(self) -> None:
        """Free the features, because the network is about to change."""
        self.valid, self._raw = False, None


@dataclass(frozen=True)
class Setup:
    """What a run trains and evaluates with; images are numbered as the training rows of the manifest."""

    network: Network
    method: Method
    tokens: Tokens  # of the training images
    label: NDArray[np.int64]  # (N,), -1 where unlabelled
    held_out: NDArray[np.bool_]  # (N,) labelled images whose labels training never sees
    known: int  # M, the number of known classes
    paths: Sequence[Picture]  # (N,)
    start: StartFeatures | None = None  # None: the network is a trained one
    before: Before | None = None  # see `Context`

    @property
    def device(self) -> torch.device:
        return self.network.feature_mean.device

    @property
    def training_labels(self) -> NDArray[np.int64]:
        """The labels that training sees: (N,), -1 where there is none."""
        return np.where(self.held_out, -1, self.label)

    def features(self) -> Tensor:
        """(N, width) features of all training images' centre crops by the current network; rank 0 gets them."""
        if self.at_start:
            assert self.start is not None
            return (self.start() - self.network.feature_mean) * self.network.feature_scale
        return finite_features(self.network, self.tokens, self.paths)

    def averaged_features(self) -> Tensor:
        """(N, width) as `features`, but averaged over the views that a bank keeps, if there is one; rank 0 gets them."""
        averaged = averaged_features_shared(self.network, self.tokens, np.arange(len(self.paths)))
        return self.features() if averaged is None else averaged

    def features_of(self, images: NDArray[np.int64]) -> Tensor:
        """(n, width) features of these training images' centre crops by the current network; rank 0 gets them."""
        if not self.at_start:
            return features_shared(self.network, self.tokens, images)
        feature = self.features()
        return feature[torch.from_numpy(images).to(feature.device)] if len(feature) else feature

    @property
    def at_start(self) -> bool:
        """Whether the tail is still the pretrained one, so that the features in `start` are valid."""
        return self.start is not None and self.start.valid


def open_tokens(config: Config, manifest: Manifest, backbone: Backbone, cache: Path) -> Tokens:
    """Tokens of the training images; moves the backbone to the run's device, and builds image cache and bank if needed."""
    device, kinds = pick_device(config.run.device), METHODS[config.method].views
    backbone.to(device)
    paths = manifest.training_paths
    images = from_files(paths, config.views)
    if config.run.image_cache == "on":
        with progress("decoding images") as report:
            opener = open_image_cache(paths, config.views, cache, workers(config), report)
        images = Images(opener, config.views.crop)
    fresh = FreshTokens(backbone, images, config.seed, workers(config), kinds)
    if config.views.bank != "on":
        return fresh
    with progress("computing views") as report:
        views = open_bank(backbone, paths, config.views, cache, workers(config), report, kinds)
    bank = BankTokens(views, config.seed, device, kinds)
    return MixedTokens(bank, fresh, config.views.fresh, config.seed) if config.views.fresh else bank


def centre_tokens(config: Config, manifest: Manifest, backbone: Backbone, cache: Path) -> Tokens:
    """Tokens of the training images' centre crops, for a single pass: from the bank if it exists; none is built."""
    # for one pass, decoding is less work than filling the image cache
    once = replace(config, run=replace(config.run, image_cache="off"))
    backbone.to(pick_device(config.run.device))
    kinds = METHODS[config.method].views
    bank_exists = config.views.bank == "on" and distributed.from_rank0(
        lambda: not missing_views(backbone, manifest.training_paths, config.views, cache, kinds)
    )
    if config.views.bank == "on" and not bank_exists:
        once = replace(once, views=replace(once.views, bank="off"))
    return open_tokens(once, manifest, backbone, cache)


def fresh_tokens(config: Config, manifest: Manifest, backbone: Backbone, rows: NDArray[np.int64]) -> FreshTokens:
    """Tokens of these rows of the manifest, computed when needed."""
    images = from_files([manifest.paths[row] for row in rows], config.views)
    return FreshTokens(backbone, images, config.seed, workers(config))


def prepare(run: Run, backbone: Backbone, tokens: Tokens, start: StartFeatures | None = None) -> Setup:
    """The setup of a run before its first step. start: the features of its images before training."""
    known, label = len(run.manifest.classes), run.manifest.training_labels
    assert run.config.k is not None
    method = create(run.config, Sizes(backbone.width, run.config.k, known, len(label)))
    network = build(method, backbone).to(pick_device(run.config.run.device))
    share, group = run.config.run.held_out if method.trains else 0.0, run.manifest.training_groups
    held = held_out(label, share, run.config.seed, group)
    continued = read_before(run)
    before = None if continued is None else continued.so_far(run.manifest)
    detector = detector_of(network)
    if before is not None and isinstance(detector, Neighbours):
        detector.uneven = UNEVEN  # it compares what there was with what came, as three answers do
    return Setup(network, method, tokens, label, held, known, run.manifest.training_paths, start, before)


def held_out(
    label: NDArray[np.int64], share: float, seed: int, group: NDArray[np.int64] | None = None
) -> NDArray[np.bool_]:
    """Which labelled images the loss never sees, (N,): this share of each class with FEWEST_LABELS or more.

    group: (N,), -1 for none; a group is held out as a whole or not at all. Without groups the seed decides which images are
    held out, not how many.
    """
    held, scene = np.zeros(len(label), dtype=bool), np.arange(len(label))
    if group is not None:  # the first image of a group represents it
        first, of = np.unique(np.where(group >= 0, group, -1 - scene), return_index=True, return_inverse=True)[1:]
        scene = first[of]
    order = uniform(seed, "held out", scene)
    for name in np.unique(label[label >= 0]):
        rows = np.flatnonzero(label == name)
        if len(rows) >= FEWEST_LABELS:
            held[rows[np.argsort(order[rows])[: int(share * len(rows))]]] = True
    held &= ~np.isin(scene, scene[(label >= 0) & ~held])
    return held if held.sum() >= FEWEST_HELD_OUT else np.zeros_like(held)


def build(method: Method, backbone: Backbone) -> Network:
    """The network of a method, with initial heads by the configuration's seed and with its memory."""
    network = Network(backbone, method.heads())
    if method.answers[0] not in classifiers(network.heads) or not set(method.answers) <= set(network.heads):
        raise TypeError(f"{type(method).__name__} answers by {method.answers}, but its heads have no such classifier")
    reset_heads(network.heads, method.config.seed)
    network.memory = method.memory(network)
    return network


def finite_features(network: Network, tokens: Tokens, paths: Sequence[Picture]) -> Tensor:
    """(N, width) features of these images' centre crops, on rank 0; a DataError if one is not finite."""
    feature = features_shared(network, tokens, np.arange(len(paths)))
    broken = (~feature.isfinite().all(1)).nonzero()[:, 0].tolist()
    if broken:
        raise DataError(
            f"the features of {len(broken)} of {len(paths)} images are not finite, first of {paths[broken[0]]}; look at "
            "the image if it is one of few, else at the backbone's weights"
        )
    return feature


def frozen_features(backbone: Backbone, tokens: Tokens, paths: Sequence[Picture]) -> Tensor:
    """(N, width) of all training images' centre crops before any training, standardised where the backbone needs it."""
    return standardised(backbone, StartFeatures(backbone, tokens, paths)())


def standardised(backbone: Backbone, raw: Tensor) -> Tensor:
    """Raw features (N, width) standardised as for the heads; no rows in, no rows out."""
    if not len(raw):
        return raw
    network = Network(backbone, nn.ModuleDict()).to(raw.device)
    network.standardise(raw)
    return (raw - network.feature_mean) * network.feature_scale


def workers(config: Config) -> int:
    """The number of decoding processes of a run."""
    return default_workers() if config.run.workers is None else config.run.workers
