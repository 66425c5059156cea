"""GCD (Vaze et al. 2022): contrastive training alone, then semi-supervised k-means; and its L_rep, which others share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from debgcd import losses
from debgcd.config.schedules import Progress
from debgcd.config.schema import option
from debgcd.methods.base import About, Batch, Loss
from debgcd.methods.kmeans import KMeansOptions, SemiSupervisedKMeans
from debgcd.model.backbone import TrunkSplit
from debgcd.model.heads import Projection, PrototypeProjection
from debgcd.model.network import Network


@dataclass(frozen=True)
class ContrastOptions:
    """L_rep."""

    supervised_weight: float = option(0.35, "λ_b^gcd", 0, 1)
    unlabelled_temperature: float = option(
        1.0, "InfoNCE as in SimGCD; the paper's 'others 0.1' is for the classifiers", 1e-4, 100
    )
    labelled_temperature: float = option(0.07, "supervised contrast, as in SimGCD", 1e-4, 100)


@dataclass(frozen=True)
class ProjectionOptions:
    """The projection for L_rep."""

    hidden: int = option(2048, "width of the hidden layers, as in SimGCD", 1, 65536)
    projection_depth: int = option(3, "layers of the projection for L_rep", 1, 32)
    projection_width: int = option(256, "its output", 1, 65536)

    def projection(self, width: int) -> Projection:
        return Projection(width, self.hidden, self.projection_width, self.projection_depth)


@dataclass(frozen=True)
class GCDHeads(ProjectionOptions):
    projection_prototypes: int = option(0, "contrast cosines to this many prototypes on top; 0: none", 0, 10**6)


@dataclass(frozen=True)
class GCDOptions(KMeansOptions):
    heads: GCDHeads = GCDHeads()
    baseline: ContrastOptions = ContrastOptions()


class GCD(SemiSupervisedKMeans):
    """L_rep alone; the categories come from clustering the tuned features.

    The public code contrasts the 65,536 outputs of DINO's head (`heads.projection_prototypes`). Without them the projection
    is SimGCD's, so that the two methods differ in the classifier alone.
    """

    about = About("GCD", 2022, "CVPR", "contrastive tuning, then semi-supervised k-means")
    Options = GCDOptions
    cut = TrunkSplit(tuned=1)
    trains = True
    options: GCDOptions

    def heads(self) -> nn.ModuleDict:
        heads = super().heads()
        heads["projection"] = self.projection()
        return heads

    def projection(self, width: int | None = None) -> Projection | PrototypeProjection:
        """What L_rep contrasts: (N, width) -> (N, d), unit rows; the feature's width unless told."""
        shape, width = self.options.heads, width or self.sizes.width
        if not shape.projection_prototypes:
            return shape.projection(width)
        sizes = (width, shape.hidden, shape.projection_width, shape.projection_depth)
        return PrototypeProjection(*sizes, shape.projection_prototypes)

    def loss(self, network: Network, batch: Batch, progress: Progress) -> Loss:
        return Loss(*representation(network(batch.tokens)["projection"], batch, self.options.baseline))


def representation(z: Tensor, batch: Batch, options: ContrastOptions) -> tuple[Tensor, dict[str, Tensor | float]]:
    """L_rep: InfoNCE on all rows and supervised contrast on the labelled ones, weighted, and both terms.

    z: (2B, d) unit rows.
    """
    info_nce = losses.info_nce(z, options.unlabelled_temperature)
    contrastive = losses.supervised_contrastive(z[batch.labelled], batch.y, options.labelled_temperature)
    total = (1 - options.supervised_weight) * info_nce + options.supervised_weight * contrastive
    return total, {"info_nce": info_nce, "supervised_contrastive": contrastive}
