"""What is left of K at the end: new categories that are empty go, those that are doubles become one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.config import Config
from debgcd.methods import create
from debgcd.model.network import Network
from debgcd.progress import say
from debgcd.train.infer import Inference
from debgcd.train.setup import Setup

DOUBLE = 0.6  # of the squared distance of the nearest two known classes
PER_CATEGORY = ("heads.classifier.weight", "heads.debiased.weight")  # tensors with a row a category


def prune(setup: Setup, config: Config, inference: Inference) -> Setup:
    """The setup without new categories that no unlabelled image is in, and with doubles merged; known classes stay.

    Doubles are two new categories whose prototypes are much nearer to each other than any two known classes are; the
    nearest pair is merged first, weighted by the number of images, until none is left.
    """
    state = setup.network.state()
    images = np.bincount(inference.category, minlength=len(state[PER_CATEGORY[0]]))
    groups = in_use(state[PER_CATEGORY[0]], images, setup.known)
    if len(groups) == len(images):
        return setup
    empty = int((images[setup.known :] == 0).sum())
    merged = len(images) - len(groups) - empty
    say(f"categories: {len(groups)} of {len(images)} are in use ({empty} are empty, {merged} merged into another)")
    share = (
        torch.from_numpy(images).to(state[PER_CATEGORY[0]]).clamp_min(1)
    )  # a known class may have no unlabelled image
    for name in PER_CATEGORY:
        if name in state:
            state[name] = torch.stack([share[group] @ state[name][group] / share[group].sum() for group in groups])
    method = create(replace(config, k=len(groups)), setup.known)
    network = Network(setup.network.backbone, method.heads(setup.network.backbone.width)).to(setup.device)
    network.load_state(state)
    return replace(setup, network=network, method=method)


def in_use(prototypes: Tensor, images: NDArray[np.int64], known: int) -> list[list[int]]:
    """Which prototypes make up each category that is left: known classes first, then the new ones in their order.

    prototypes: (K, width); images: (K,) how many unlabelled images are in each.
    """
    unit = normalize(prototypes.double().cpu(), dim=1)
    limit = DOUBLE * _nearest(unit[:known])
    groups = [[i] for i in range(known, len(unit)) if images[i]]
    while len(groups) > 1:
        centres = torch.stack([normalize((torch.from_numpy(images[g]).double() @ unit[g]), dim=0) for g in groups])
        distance = _distances(centres)
        flat = int(distance.argmin())
        first, second = sorted(divmod(flat, len(groups)))
        if distance[first, second] >= limit:
            break
        groups[first] = sorted(groups[first] + groups.pop(second))
    return [[i] for i in range(known)] + sorted(groups)


def _nearest(unit: Tensor) -> float:
    """The squared distance of the nearest two rows; of unrelated ones, where there are not two."""
    return float(_distances(unit).amin()) if len(unit) > 1 else 2.0


def _distances(unit: Tensor) -> Tensor:
    """Squared distances of unit rows, infinite to themselves."""
    return (2 - 2 * unit @ unit.T).fill_diagonal_(torch.inf)
