"""GCD (Vaze et al. 2022): contrastive training, then semi-supervised k-means."""

from __future__ import annotations

from debgcd.config.schedules import Progress
from debgcd.methods.base import About, Batch, Loss
from debgcd.methods.shared import ContrastiveMethod, GCDOptions, representation
from debgcd.model.network import Network


class GCD(ContrastiveMethod):
    """L_rep alone; the categories come from clustering the tuned features."""

    about = About("GCD", 2022, "CVPR", "contrastive tuning, then semi-supervised k-means")
    options: GCDOptions

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        return Loss(*representation(network(batch.tokens)["projection"], batch, self.options.baseline))
