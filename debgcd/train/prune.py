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

DOUBLE = 0.8  # of the squared distance of the nearest two known classes
FEWEST_KNOWN = 5  # below, there are so few pairs that how near the nearest one is is a matter of luck
PER_CATEGORY = ("heads.classifier.weight", "heads.debiased.weight")  # tensors with a row a category


def prune(setup: Setup, config: Config, inference: Inference) -> Setup:
    """The setup without new categories that no unlabelled image is in, and with doubles merged; known classes stay.

    Doubles are two new categories whose prototypes are much nearer to each other than any two known classes are; the
    nearest pair is merged first, weighted by the number of images, until none is left. With fewer than FEWEST_KNOWN known
    classes nothing is merged.
    """
    state = setup.network.state()
    images = np.bincount(inference.category, minlength=len(state[PER_CATEGORY[0]]))
    groups = in_use(state[PER_CATEGORY[0]], images, setup.known)
    if len(groups) == len(images):
        return setup
    empty = int((images[setup.known :] == 0).sum())
    doubles = len(images) - len(groups) - empty
    say(f"categories: {len(groups)} of {len(images)} are in use ({empty} are empty, {doubles} merged into another)")
    for name in PER_CATEGORY:
        if name in state:
            state[name] = merged(state[name], images, groups)
    method = create(replace(config, k=len(groups)), setup.known)
    network = Network(setup.network.backbone, method.heads(setup.network.backbone.width)).to(setup.device)
    network.load_state(state)
    return replace(setup, network=network, method=method)


def in_use(prototypes: Tensor, images: NDArray[np.int64], known: int) -> list[list[int]]:
    """Which prototypes make up each category that is left: known classes first, then the new ones in their order.

    prototypes: (K, width); images: (K,) how many unlabelled images are in each.
    """
    unit = normalize(prototypes.double().cpu(), dim=1)
    limit = DOUBLE * float(_distances(unit[:known]).amin()) if known >= FEWEST_KNOWN else 0.0
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


def merged(weight: Tensor, images: NDArray[np.int64], groups: list[list[int]]) -> Tensor:
    """The mean direction of each group's rows, weighted by their images, at their mean length: (K, width) -> (G, width).

    Directions, because `in_use` compares these; a prototype's length means nothing, but that of a cluster's centre does.
    """
    share = torch.from_numpy(images).to(weight).clamp_min(1)  # a known class may have no unlabelled image
    unit, length = normalize(weight, dim=1), weight.norm(dim=1)
    parts = [(group, share[group] / share[group].sum()) for group in groups]
    return torch.stack([(part @ length[group]) * normalize(part @ unit[group], dim=0) for group, part in parts])


def _distances(unit: Tensor) -> Tensor:
    """Squared distances of unit rows, infinite to themselves."""
    return (2 - 2 * unit @ unit.T).fill_diagonal_(torch.inf)
