"""BIA (ICLR 2026) and EAGC (CVPR 2026) as options of any method that trains a classifier; off unless asked for.

BIA is written from a short description, EAGC's numbers are those of its public code. Its reference ẑ is there a network trained
on the labels; here it is one product of matrices: a ridge regression from the features before training to the mean of their class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.config.schema import ExtrasConfig
from debgcd.methods.base import Batch, Context, Loss, Method
from debgcd.model.network import Network, Output

RIDGE = 0.1  # of the regression, relative to the mean diagonal of its Gram matrix
MOMENTUM = 0.95  # of the mean energy of labelled images, as in the public code
NAME = "extras"  # of the part of the memory


def remember(method: Method, network: Network) -> None:
    """Add to the network's memory what EAGC needs in every step: references of all images, S, the mean energy."""
    if method.config.extras.eagc:
        images, width = method.sizes.images, method.sizes.width
        part = nn.Module()
        part.register_buffer("reference", torch.zeros(images, width))
        part.register_buffer("subspace", torch.zeros(width, width))
        part.register_buffer("mean_energy", torch.ones(()))
        network.memory.add_module(NAME, part)


def begin(method: Method, context: Context) -> None:
    """Fill it, from the features of the labelled images before training."""
    how = method.config.extras
    if not how.eagc:
        return
    features, label = context.features(), context.label
    known, y = features[label >= 0], label[label >= 0]
    buffer = context.network.memory.get_buffer
    subspace = losses.known_subspace(known, how.eagc_eta)
    buffer(f"{NAME}.subspace").copy_(subspace)
    buffer(f"{NAME}.mean_energy").copy_(losses.energy(known, subspace).mean())
    sums = known.new_zeros(method.sizes.known, known.shape[1]).index_add_(0, y, known)
    target = (sums / torch.bincount(y, minlength=len(sums)).clamp_min(1)[:, None])[y].double()
    gram = known.double().T @ known.double()
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    weights = torch.linalg.solve(gram, known.double().T @ target)
    buffer(f"{NAME}.reference").copy_(features.double() @ weights)


def loss_of(method: Method, network: Network, batch: Batch, progress: Progress) -> Loss:
    """The method's loss, with what the options add to it and to the features' gradient."""
    how = method.config.extras
    if not how.any:
        return method.loss(network, batch, progress)
    seen: list[Tensor] = []

    def watch(module: nn.Module, given: object, output: Output) -> None:
        if output.feature.requires_grad:  # not a teacher's
            seen.append(output.feature)
            if how.eagc:
                output.feature.register_hook(_guide(how, network, batch, output.feature.detach()))

    handle = network.register_forward_hook(watch)
    try:
        loss = method.loss(network, batch, progress)
    finally:
        handle.remove()
    if not how.bia_weight:
        return loss
    norms = [losses.nuclear_norm(feature[batch.free[: _count(batch.free, feature, batch)]]) for feature in seen]
    nuclear = torch.stack(norms).mean()
    total = loss.total - how.bia_weight * nuclear
    return Loss(total, {**loss.terms, "nuclear_norm": nuclear}, loss.hard_label)


def _count(rows: Tensor, feature: Tensor, batch: Batch) -> int:
    """How many of the rows are of the views that this feature has; a method may ask the network about some views alone."""
    of_all = (len(batch.labelled) + len(batch.free)) // len(feature)  # views of the batch per view of the feature
    return len(rows) // of_all


def _guide(how: ExtrasConfig, network: Network, batch: Batch, feature: Tensor) -> Callable[[Tensor], Tensor]:
    """What changes the gradient of a feature: (N, d) -> (N, d)."""
    labelled = batch.labelled[: _count(batch.labelled, feature, batch)]
    free = batch.free[: _count(batch.free, feature, batch)]
    part = {name: network.memory.get_buffer(f"{NAME}.{name}") for name in ("reference", "subspace", "mean_energy")}
    reference = part["reference"][batch.image][labelled % len(batch.image)]
    if len(labelled):
        part["mean_energy"].lerp_(losses.energy(feature[labelled], part["subspace"]).mean(), 1 - MOMENTUM)
    rest = (reference, part["subspace"], part["mean_energy"].clone(), how.eagc_align, how.eagc_project)

    def change(gradient: Tensor) -> Tensor:
        return losses.guided_gradient(gradient, feature, labelled, free, *rest)

    return change
