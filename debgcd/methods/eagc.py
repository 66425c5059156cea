"""EAGC (CVPR 2026), a wrapper for any method that trains a classifier: it changes the features' gradient, not the loss.

Its numbers are those of its public code. In the public code the reference ẑ is a network trained on the labels; in this file
it is a ridge regression from the features before training to their class mean.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from debgcd import losses
from debgcd.cluster.prototypes import group_means
from debgcd.config.schedules import Progress
from debgcd.methods.base import Batch, Context, Loss, Method
from debgcd.model.network import Network, Output

RIDGE = 0.1  # ridge penalty relative to the mean diagonal of the Gram matrix
MOMENTUM = 0.95  # of the mean energy of labelled images, as in the public code
# Name of EAGC's part of the memory. Checkpoints contain it, so it must not change.
PART = "extras"


def with_eagc(method: type[Method]) -> type[Method]:
    """A subclass of the method in which EAGC wraps `memory`, `before_training` and `loss`."""
    return type(f"{method.__name__}WithEAGC", (EAGC, method), {})


class EAGC(Method):
    """Mixin that adds EAGC to the next class in the method resolution order; see `with_eagc`."""

    def memory(self, network: Network) -> nn.Module:
        """The method's own memory, and the references of all images, S and the mean energy."""
        part = nn.Module()
        part.register_buffer("reference", torch.zeros(self.sizes.images, self.sizes.width))
        part.register_buffer("subspace", torch.zeros(self.sizes.width, self.sizes.width))
        part.register_buffer("mean_energy", torch.ones(()))
        memory = super().memory(network)
        memory.add_module(PART, part)
        return memory

    def before_training(self, context: Context) -> None:
        """Run the method's own hook; then compute references, S and energy from the labelled images' features."""
        super().before_training(context)
        features, label = context.features(), context.label
        known, y = features[label >= 0], label[label >= 0]
        buffer = context.network.memory.get_buffer
        subspace = losses.known_subspace(known, self.config.extras.eagc_eta)
        buffer(f"{PART}.subspace").copy_(subspace)
        buffer(f"{PART}.mean_energy").copy_(losses.energy(known, subspace).mean())
        target = group_means(known, y, self.sizes.known)[y].double()
        gram = known.double().T @ known.double()
        gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        weights = torch.linalg.solve(gram, known.double().T @ target)
        buffer(f"{PART}.reference").copy_(features.double() @ weights)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        """The method's own loss; a hook changes the gradient that it sends back to the features."""

        def watch(module: nn.Module, given: object, output: Output) -> None:
            if output.feature.requires_grad:  # not a teacher's
                output.feature.register_hook(self._guide(network, batch, output.feature.detach()))

        handle = network.register_forward_hook(watch)
        try:
            # gathered before the heads, each feature row receives its own gradient
            with network.gathering(len(batch.image), before_heads=True):
                return super().loss(network, batch, progress)
        finally:
            handle.remove()

    def _guide(self, network: Network, batch: Batch, feature: Tensor) -> Callable[[Tensor], Tensor]:
        """A function that changes the gradient of the features: (N, d) -> (N, d)."""
        extras = self.config.extras
        # A method may pass only some views; rows are ordered by view, so those of the views passed come first.
        views = len(feature) // len(batch.image)
        labelled, free = (rows[: len(rows) * views // batch.views] for rows in (batch.labelled, batch.unlabelled))
        part = {name: network.memory.get_buffer(f"{PART}.{name}") for name in ("reference", "subspace", "mean_energy")}
        reference = part["reference"][batch.image][labelled % len(batch.image)]
        if len(labelled):
            part["mean_energy"].lerp_(losses.energy(feature[labelled], part["subspace"]).mean(), 1 - MOMENTUM)
        rest = (reference, part["subspace"], part["mean_energy"].clone(), extras.eagc_align, extras.eagc_project)

        def change(gradient: Tensor) -> Tensor:
            return losses.guided_gradient(gradient, feature, labelled, free, *rest)

        return change
