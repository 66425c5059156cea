"""GCD (Vaze et al. 2022): contrastive training alone, then semi-supervised k-means."""

from __future__ import annotations

from torch import nn

from debgcd.methods.kmeans import SemiSupervisedKMeans
from debgcd.methods.protocol import Batch, Loss
from debgcd.methods.representation import representation
from debgcd.model.heads import Projection, PrototypeProjection
from debgcd.model.network import Output
from debgcd.schedules import Progress


class GCD(SemiSupervisedKMeans):
    """L_rep alone; the categories come from clustering the tuned features.

    The public code contrasts the 65,536 outputs of DINO's head (`heads.projection_prototypes`). Without them the projection
    is SimGCD's, so that the two methods differ in the classifier alone.
    """

    tuned_blocks = 1
    trains = True

    def heads(self, width: int) -> nn.ModuleDict:
        heads, shape = super().heads(width), self.config.heads
        sizes = (width, shape.hidden, shape.projection_width, shape.projection_depth)
        wide = shape.projection_prototypes
        heads["projection"] = PrototypeProjection(*sizes, wide) if wide else Projection(*sizes)
        return heads

    def loss(self, output: Output, batch: Batch, progress: Progress) -> Loss:
        assert output.projection is not None
        return Loss(*representation(output.projection, batch, self.config.gcd))
