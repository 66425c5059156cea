"""GCD (Vaze et al. 2022): contrastive training alone, then semi-supervised k-means."""

from __future__ import annotations

from torch import nn

from debgcd.methods.kmeans import SemiSupervisedKMeans
from debgcd.methods.protocol import Batch, Loss
from debgcd.methods.representation import representation
from debgcd.model.heads import Projection
from debgcd.model.network import Output


class GCD(SemiSupervisedKMeans):
    """L_rep of SimGCD without its classifier; the categories come from clustering the tuned features.

    The projection is SimGCD's, so that the two differ in the classifier alone; the public code of GCD contrasts the 65,536
    outputs of DINO's head instead.
    """

    tuned_blocks = 1
    trains = True

    def heads(self, width: int) -> nn.ModuleDict:
        heads, shape = super().heads(width), self.config.heads
        heads["projection"] = Projection(width, shape.hidden, shape.projection_width, shape.projection_depth)
        return heads

    def loss(self, output: Output, batch: Batch, progress: float) -> Loss:
        assert output.projection is not None
        return Loss(*representation(output.projection, batch, self.config.gcd))
