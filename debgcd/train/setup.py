"""What training and evaluation of a run have in common: the network on its device, and where its tokens come from."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debgcd.config import Config, ViewsConfig
from debgcd.data.image_cache import open_image_cache
from debgcd.data.loader import Images, default_workers, from_files
from debgcd.data.manifest import Manifest
from debgcd.data.views import TWO_PLAIN, Kinds
from debgcd.errors import DataError, UsageError
from debgcd.methods import Method, create
from debgcd.model.backbone import Backbone
from debgcd.model.heads import reset_heads
from debgcd.model.network import Network
from debgcd.model.precision import pick_device
from debgcd.progress import progress, say
from debgcd.store import amount
from debgcd.train.bank import BankTokens, bank_bytes, has_bank, open_bank, stored_kinds, token_shape
from debgcd.train.infer import features
from debgcd.train.run import Run
from debgcd.train.tokens import FreshTokens, MixedTokens, Tokens


@dataclass(frozen=True)
class Setup:
    """A run's moving parts; images are numbered as the training rows of the manifest."""

    network: Network
    method: Method
    tokens: Tokens  # of the training images
    label: NDArray[np.int64]  # (N,), -1 where unlabelled
    known: int
    paths: Sequence[Path]  # (N,)

    @property
    def device(self) -> torch.device:
        return self.network.feature_mean.device

    def features(self) -> Tensor:
        """(N, width) of all training images' centre crops, as the network stands."""
        return finite_features(self.network, self.tokens, self.paths)


def open_tokens(
    config: Config, manifest: Manifest, backbone: Backbone, cache: Path, kinds: Kinds = TWO_PLAIN
) -> Tokens:
    """Tokens of the training images; moves the backbone to the run's device, and fills the cache if need be.

    kinds: of the views of each draw, in the order of the rows that `random` gives.
    """
    device = pick_device(config.run.device)
    backbone.to(device)
    paths = manifest.training_paths
    images = from_files(paths, config.views)
    if config.run.image_cache == "on":
        with progress("decoding images") as report:
            opener = open_image_cache(paths, config.views, cache, workers(config), report)
        images = Images(opener, config.views.size)
    fresh = FreshTokens(backbone, images, config.seed, workers(config), kinds)
    if config.views.bank != "on":
        return fresh
    tuned = config.backbone.tuned_blocks
    assert tuned is not None
    with progress("computing views") as report:
        array = open_bank(backbone, tuned, paths, config.views, cache, workers(config), report, kinds)
    bank = BankTokens(array, config.seed, device, kinds)
    return MixedTokens(bank, fresh, config.views.fresh, config.seed) if config.views.fresh else bank


def centre_tokens(
    config: Config, manifest: Manifest, backbone: Backbone, cache: Path, kinds: Kinds = TWO_PLAIN
) -> Tokens:
    """Tokens of the training images' centre crops, for a look at each: from the bank if it is there, never building one."""
    once = replace(config, run=replace(config.run, image_cache="off"))  # decoding is less work than keeping the pixels
    paths, tuned = manifest.training_paths, config.backbone.tuned_blocks
    assert tuned is not None
    backbone.to(pick_device(config.run.device))
    if config.views.bank == "on" and not has_bank(backbone, tuned, paths, config.views, cache, kinds):
        once = replace(once, views=replace(once.views, bank="off"))
    return open_tokens(once, manifest, backbone, cache, kinds)


def fresh_tokens(
    config: Config, manifest: Manifest, backbone: Backbone, rows: NDArray[np.int64], kinds: Kinds = TWO_PLAIN
) -> FreshTokens:
    """Tokens of these rows of the manifest, computed when needed."""
    images = from_files([manifest.paths[row] for row in rows], config.views)
    return FreshTokens(backbone, images, config.seed, workers(config), kinds)


def prepare(run: Run, backbone: Backbone, tokens: Tokens) -> Setup:
    """Build the network with its initial heads."""
    known = len(run.manifest.classes)
    method = create(run.config, known)
    network = Network(backbone, method.heads(backbone.width))
    reset_heads(network.heads, run.config.seed)
    network.to(pick_device(run.config.run.device))
    return Setup(network, method, tokens, run.manifest.training_labels, known, run.manifest.training_paths)


def finite_features(network: Network, tokens: Tokens, paths: Sequence[Path]) -> Tensor:
    """(N, width) of the centre crops of these images; refused where they are not finite, before that spreads."""
    found = features(network, tokens.centre(np.arange(len(paths))))
    broken = (~found.isfinite().all(1)).nonzero()[:, 0].tolist()
    if broken:
        raise DataError(
            f"the features of {len(broken)} of {len(paths)} images are not finite, first of {paths[broken[0]]}; look at "
            "the image if it is one of few, else at the backbone's weights"
        )
    return found


def frozen_features(backbone: Backbone, tokens: Tokens, paths: Sequence[Path]) -> Tensor:
    """(N, width) of all training images' centre crops before any training, standardised where the backbone needs it."""
    network = Network(backbone, nn.ModuleDict()).to(backbone.pixel_mean.device)
    raw = finite_features(network, tokens, paths)
    network.standardise(raw)
    return (raw - network.feature_mean) * network.feature_scale


def workers(config: Config) -> int:
    """Decoding processes of a run."""
    return default_workers() if config.run.workers is None else config.run.workers


def decide_bank(
    backbone: Backbone,
    tuned_blocks: int,
    paths: Sequence[Path],
    views: ViewsConfig,
    cache: Path,
    kinds: Kinds = TWO_PLAIN,
) -> bool:
    """Whether the run has a view bank; "auto" takes one if it is there or fits into half of the free disk. Says its size."""
    if views.bank == "off" or views.fresh == 1:
        return False
    needed = max(Counter(kinds).values())
    if 0 < views.bank_views < needed:  # without any, the bank is of centre crops alone
        raise UsageError(
            f"views.bank_views is {views.bank_views}, but a step draws {needed} different views of one kind; "
            f"use {needed} or more"
        )
    size = bank_bytes(len(paths), views, token_shape(backbone, views.size), kinds)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    takes = views.bank == "on" or size <= free / 2 or has_bank(backbone, tuned_blocks, paths, views, cache, kinds)
    which = f"{views.bank_views} views" if views.bank_views else "the centre crops"
    if views.bank_views and len(stored_kinds(kinds)) > 1:
        which += f" of each of {len(stored_kinds(kinds))} kinds"
    say(
        f"view bank: {'on' if takes else 'off'} ({amount(size)} for {which} of {len(paths)} images; "
        f"{amount(free)} free in {cache})"
    )
    return takes
