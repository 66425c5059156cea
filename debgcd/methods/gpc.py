"""GPC (Zhao et al. 2023): a Gaussian mixture that estimates K while the features learn; the given K is a first guess.

From the paper and the public code (MIT): L_rep, a contrast with the mixture's means at temperatures by density, and splits
and merges before every epoch. The public code begins every epoch with the true K and keeps the epoch with the best New
accuracy on the test split. In this file K starts from the user's value or an estimate, carries over from epoch to epoch, and
the last epoch counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.cluster.kmeans import kmeans
from debgcd.cluster.mixture import Prior, split_and_merge
from debgcd.cluster.prototypes import group_means, principal
from debgcd.config.schedules import Progress
from debgcd.config.schema import option
from debgcd.methods.base import About, Batch, Context, Loss
from debgcd.methods.shared import ContrastiveMethod, GCDOptions, clustered, fit_detector, memory_of, representation
from debgcd.model.network import Network
from debgcd.system.progress import say


@dataclass(frozen=True)
class GPCObjective:
    """L = L_rep + L_proto, and the criteria for splits and merges."""

    temperature: float = option(1.0, "mean of the temperatures by density, as in the public code", 1e-4, 100)
    warmup: int = option(1, "epochs before the mixture and L_proto begin, as in the public script", 0, 10**6)
    axes: int | None = option(
        None,
        "principal axes on which Gaussians are found, split and merged; null: all, as in the public code",
        1,
        10**6,
    )
    scale: float = option(0.005, "of the prior's covariance, as in the public code", 1e-9, 1e6)
    chance: float = option(0.1, "of a split or merge that the ratio is against, as in the public code", 0, 1)
    most: int = option(4, "times the first guess that K may grow to", 1, 1000)


@dataclass(frozen=True)
class GPCOptions(GCDOptions):
    gpc: GPCObjective = GPCObjective()


class GPC(ContrastiveMethod):
    """L_rep, and a contrast with the means of a mixture that splits and merges; K is the number of Gaussians."""

    about = About(
        "GPC", 2023, "ICCV", "a Gaussian mixture that splits and merges; finds K while it learns", finds_k=True
    )
    Options = GPCOptions
    options: GPCOptions

    def memory(self, network: Network) -> nn.Module:
        """The Gaussian of each image, their number, means and temperatures."""
        own, count = torch.full((self.sizes.images,), -1), torch.tensor(self.sizes.k)
        means, temperatures = torch.zeros(self._most, self.sizes.width), torch.ones(self._most)
        return memory_of(own=own, count=count, means=means, temperatures=temperatures)

    @property
    def _most(self) -> int:
        return min(self.options.gpc.most * self.sizes.k, self.sizes.images)

    def before_epoch(self, context: Context, progress: Progress) -> None:
        options, network, known = self.options.gpc, context.network, self.sizes.known
        if progress.epoch < options.warmup:
            return
        unit = normalize(context.features(), dim=1)
        count, seed = network.get_buffer("memory.count"), self.config.seed + progress.epoch
        # k-means, splits and merges use the same space
        points = unit if options.axes is None else principal(unit, options.axes)
        assignment = kmeans(points, context.label, int(count), seed=seed, restarts=10, iterations=100).assignment
        prior = Prior(points.mean(0), options.scale)
        assignment = split_and_merge(
            points, assignment, known, prior, most=self._most, seed=seed, chance=options.chance
        )
        count.copy_(assignment.amax() + 1)
        centres = group_means(unit, assignment, int(count))
        network.get_buffer("memory.own").copy_(assignment)
        network.get_buffer("memory.means")[: len(centres)] = normalize(centres, dim=1)
        temperatures = losses.density_temperatures(unit, assignment, centres, options.temperature)
        network.get_buffer("memory.temperatures")[: len(centres)] = temperatures

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        output = network(batch.tokens)
        total, terms = representation(output["projection"], batch, self.options.baseline)
        count = network.get_buffer("memory.count")
        prototypes: Tensor = losses.centre_contrast(
            normalize(output.feature, dim=1) @ network.get_buffer("memory.means").T,
            count,
            network.get_buffer("memory.own")[batch.image].repeat(2),
            network.get_buffer("memory.temperatures"),
        )
        return Loss(total + prototypes, {**terms, "prototypes": prototypes, "gaussians": count.to(total.dtype)})

    def finalise(self, context: Context) -> None:
        count = int(context.network.get_buffer("memory.count"))
        say(f"gpc: {count} categories were found, from a first guess of {self.sizes.k}")
        feature = context.features()
        unit = normalize(feature, dim=1)
        classifier = context.network.heads["classifier"]
        classifier.weight = clustered(unit, context.label, count, self.config).centres
        fit_detector(context, feature)
