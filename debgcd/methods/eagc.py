"""EAGC (CVPR 2026) around any method that trains a classifier: it changes the gradient of the features, not the loss.

Its numbers are those of its public code. There the reference ẑ is a network trained on the labels; here it is one product of
matrices: a ridge regression from the features before training to the mean of their class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.methods.base import Batch, Context, Loss, Method
from debgcd.model.network import Network, Output

RIDGE = 0.1  # of the regression, relative to the mean diagonal of its Gram matrix
MOMENTUM = 0.95  # of the mean energy of labelled images, as in the public code
# The part of the memory that EAGC adds. Checkpoints have the name, so it stays.
PART = "extras"


def with_eagc(method: type[Method]) -> type[Method]:
    """The method, with EAGC around its memory, its first hook and its loss."""
    return type(f"{method.__name__}WithEAGC", (EAGC, method), {})


class EAGC(Method):
    """What EAGC adds to the method that follows it in the order of inheritance; see `with_eagc`."""

    def memory(self, network: Network) -> nn.Module:
        """The method's own, and the references of all images, S and the mean energy."""
        part = nn.Module()
        part.register_buffer("reference", torch.zeros(self.sizes.images, self.sizes.width))
        part.register_buffer("subspace", torch.zeros(self.sizes.width, self.sizes.width))
        part.register_buffer("mean_energy", torch.ones(()))
        memory = super().memory(network)
        memory.add_module(PART, part)
        return memory

    def before_training(self, context: Context) -> None:
        """The method's own, then references, S and energy from the features of the labelled images before training."""
        super().before_training(context)
        features, label = context.features(), context.label
        known, y = features[label >= 0], label[label >= 0]
        buffer = context.network.memory.get_buffer
        subspace = losses.known_subspace(known, self.config.extras.eagc_eta)
        buffer(f"{PART}.subspace").copy_(subspace)
        buffer(f"{PART}.mean_energy").copy_(losses.energy(known, subspace).mean())
        sums = known.new_zeros(self.sizes.known, known.shape[1]).index_add_(0, y, known)
        target = (sums / torch.bincount(y, minlength=len(sums)).clamp_min(1)[:, None])[y].double()
        gram = known.double().T @ known.double()
        gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        weights = torch.linalg.solve(gram, known.double().T @ target)
        buffer(f"{PART}.reference").copy_(features.double() @ weights)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        """The method's own; what it sends back through a feature is changed on the way."""

        def watch(module: nn.Module, given: object, output: Output) -> None:
            if output.feature.requires_grad:  # not a teacher's
                output.feature.register_hook(self._guide(network, batch, output.feature.detach()))

        handle = network.register_forward_hook(watch)
        try:
            with network.gathering(
                len(batch.image), before_heads=True
            ):  # the gradient of a feature passes by its own row
                return super().loss(network, batch, progress)
        finally:
            handle.remove()

    def _guide(self, network: Network, batch: Batch, feature: Tensor) -> Callable[[Tensor], Tensor]:
        """What changes the gradient of a feature: (N, d) -> (N, d)."""
        how = self.config.extras
        # A method may ask the network for some views alone; rows come view by view, so the first ones are of those.
        views = len(feature) // len(batch.image)
        labelled, free = (rows[: len(rows) * views // batch.views] for rows in (batch.labelled, batch.unlabelled))
        part = {name: network.memory.get_buffer(f"{PART}.{name}") for name in ("reference", "subspace", "mean_energy")}
        reference = part["reference"][batch.image][labelled % len(batch.image)]
        if len(labelled):
            part["mean_energy"].lerp_(losses.energy(feature[labelled], part["subspace"]).mean(), 1 - MOMENTUM)
        rest = (reference, part["subspace"], part["mean_energy"].clone(), how.eagc_align, how.eagc_project)

        def change(gradient: Tensor) -> Tensor:
            return losses.guided_gradient(gradient, feature, labelled, free, *rest)

        return change
