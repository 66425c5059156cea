"""What training and evaluation of a run have in common: the network on its device, and where its tokens come from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debgcd.config import Config, ViewsConfig
from debgcd.data.loader import default_workers
from debgcd.data.manifest import Manifest
from debgcd.methods import Method, create
from debgcd.model.backbone import Backbone
from debgcd.model.heads import reset_heads
from debgcd.model.network import Network
from debgcd.model.precision import pick_device
from debgcd.progress import progress, say
from debgcd.train.bank import BankTokens, bank_bytes, open_bank, token_shape
from debgcd.train.infer import features
from debgcd.train.run import Run, training_labels, training_rows
from debgcd.train.tokens import FreshTokens, Tokens


@dataclass(frozen=True)
class Setup:
    """A run's moving parts; images are numbered as the training rows of the manifest."""

    network: Network
    method: Method
    tokens: Tokens  # of the training images
    label: NDArray[np.int64]  # (N,), -1 where unlabelled
    known: int

    @property
    def device(self) -> torch.device:
        return self.network.feature_mean.device

    def features(self) -> Tensor:
        """(N, width) of all training images' centre crops, as the network stands."""
        return features(self.network, self.tokens.centre(np.arange(len(self.label))))


def open_tokens(config: Config, manifest: Manifest, backbone: Backbone, cache: Path) -> Tokens:
    """Tokens of the training images; moves the backbone to the run's device, and builds the view bank if need be."""
    device = pick_device(config.run.device)
    backbone.to(device)
    rows = training_rows(manifest)
    if config.views.bank != "on":
        return fresh_tokens(config, manifest, backbone, rows)
    tuned = config.backbone.tuned_blocks
    assert tuned is not None
    paths = [manifest.paths[row] for row in rows]
    with progress("computing views") as report:
        array = open_bank(backbone, tuned, paths, config.views, cache, workers(config), report)
    return BankTokens(array, config.seed, device)


def fresh_tokens(config: Config, manifest: Manifest, backbone: Backbone, rows: NDArray[np.int64]) -> FreshTokens:
    """Tokens of these rows of the manifest, computed when needed."""
    paths = [manifest.paths[row] for row in rows]
    return FreshTokens(backbone, paths, config.views, config.seed, workers(config))


def prepare(run: Run, backbone: Backbone, tokens: Tokens) -> Setup:
    """Build the network with its initial heads."""
    known = len(run.manifest.classes)
    method = create(run.config, known)
    network = Network(backbone, method.heads(backbone.width))
    reset_heads(network.heads, run.config.seed)
    network.to(pick_device(run.config.run.device))
    return Setup(network, method, tokens, training_labels(run.manifest), known)


def frozen_features(backbone: Backbone, tokens: Tokens, images: int) -> Tensor:
    """(N, width) of all training images' centre crops before any training, standardised where the backbone needs it."""
    network = Network(backbone, nn.ModuleDict()).to(backbone.pixel_mean.device)
    raw = features(network, tokens.centre(np.arange(images)))
    network.standardise(raw)
    return (raw - network.feature_mean) * network.feature_scale


def workers(config: Config) -> int:
    """Decoding processes of a run."""
    return default_workers() if config.run.workers is None else config.run.workers


def decide_bank(backbone: Backbone, images: int, views: ViewsConfig, cache: Path) -> bool:
    """Whether the run has a view bank; "auto" takes one if it fits into half of the free disk. Says how large it is."""
    if views.bank == "off":
        return False
    size = bank_bytes(images, views, token_shape(backbone, views.size))
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    fits = views.bank == "on" or size <= free / 2
    say(
        f"view bank: {'on' if fits else 'off'} ({size / 1e6:,.0f} MB for {views.bank_views} views of {images} images; "
        f"{free / 1e9:.0f} GB free in {cache})"
    )
    return fits
