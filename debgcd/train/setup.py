"""What training and evaluation of a run have in common: the network on its device, and where its tokens come from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.config import ViewsConfig
from debgcd.data.loader import default_workers
from debgcd.methods import Method, create
from debgcd.model.backbone import Backbone
from debgcd.model.heads import reset_heads
from debgcd.model.network import Network
from debgcd.model.precision import pick_device
from debgcd.progress import progress, say
from debgcd.train.bank import BankTokens, bank_bytes, open_bank, token_shape
from debgcd.train.infer import features
from debgcd.train.run import Run, training_rows
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


def prepare(run: Run, backbone: Backbone, cache: Path) -> Setup:
    """Build the network with its initial heads, and the view bank if the run has one."""
    config, rows = run.config, training_rows(run.manifest)
    known = len(run.manifest.classes)
    method = create(config, known)
    network = Network(backbone, method.heads(backbone.width))
    reset_heads(network.heads, config.seed)
    network.to(pick_device(config.run.device))
    tokens: Tokens
    if config.views.bank == "on":
        tuned = config.backbone.tuned_blocks
        assert tuned is not None
        paths = [run.manifest.paths[row] for row in rows]
        with progress("computing views") as report:
            array = open_bank(backbone, tuned, paths, config.views, cache, workers(run), report)
        tokens = BankTokens(array, config.seed, network.feature_mean.device)
    else:
        tokens = fresh_tokens(run, network, rows)
    return Setup(network, method, tokens, run.manifest.label_index()[rows], known)


def fresh_tokens(run: Run, network: Network, rows: NDArray[np.int64]) -> FreshTokens:
    """Tokens of these rows of the manifest, computed when needed."""
    paths = [run.manifest.paths[row] for row in rows]
    return FreshTokens(network.backbone, paths, run.config.views, run.config.seed, workers(run))


def workers(run: Run) -> int:
    """Decoding processes of this run."""
    return default_workers() if run.config.run.workers is None else run.config.run.workers


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
