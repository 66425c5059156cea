"""Parts that several methods share: options, L_rep, prototype classifiers with a warm start, categories by k-means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from debgcd import losses
from debgcd.cluster.kmeans import Clustering, kmeans
from debgcd.cluster.prototypes import class_means, prototypes
from debgcd.cluster.settle import Answer, SettleOptions, settle
from debgcd.config import schedules
from debgcd.config.schedules import Progress
from debgcd.config.schema import Config, Options, option
from debgcd.methods.base import TEMPERATURE, Batch, Context, Method
from debgcd.model.heads import Centres, Projection, PrototypeProjection, Prototypes, Settled, classifiers
from debgcd.model.network import Output
from debgcd.novelty.base import detector_of, novelty
from debgcd.novelty.one_vs_all import DistanceDetector
from debgcd.novelty.vote import voted
from debgcd.system.progress import progress


def memory_of(**buffers: Tensor) -> nn.Module:
    """A module with these tensors as buffers."""
    memory = nn.Module()
    for name, value in buffers.items():
        memory.register_buffer(name, value)
    return memory


# L_rep


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


def representation(z: Tensor, batch: Batch, options: ContrastOptions) -> tuple[Tensor, dict[str, Tensor | float]]:
    """L_rep, the weighted sum of InfoNCE on all rows and supervised contrast on the labelled ones; and both terms.

    z: (2B, d) unit rows.
    """
    info_nce = losses.info_nce(z, options.unlabelled_temperature)
    contrastive = losses.supervised_contrastive(z[batch.labelled], batch.y, options.labelled_temperature)
    total = (1 - options.supervised_weight) * info_nce + options.supervised_weight * contrastive
    return total, {"info_nce": info_nce, "supervised_contrastive": contrastive}


# Classifiers of prototypes


@dataclass(frozen=True)
class BaselineOptions(ContrastOptions):
    """L_gcd (Eq. 1–3)."""

    entropy_weight: float = option(1.0, "ξ; the public scripts take 2 for CUB and 4 for CIFAR-100", 0, 1e6)
    student_temperature: float = option(0.1, "τ_s, and the debiased classifier's τ_a", 1e-4, 100)
    teacher_start: float = option(0.07, "temperature of the teacher at the start", 1e-4, 100)
    teacher_end: float = option(0.04, "and after its warm-up", 1e-4, 100)
    teacher_warmup: float = option(0.15, "share of the run: the paper's 30 of 200 epochs", 0, 1)
    teacher_shape: Literal["cosine", "linear"] = option("cosine", "the paper says cosine; the public code is linear")

    def teacher_temperature(self, progress: Progress) -> float:
        shape = {"cosine": schedules.cosine, "linear": schedules.linear}[self.teacher_shape]
        return shape(self.teacher_start, self.teacher_end, progress.of_warmup(self.teacher_warmup))


@dataclass(frozen=True)
class WarmStart:
    """The initial prototypes of a classifier."""

    warm_start: bool = option(False, "prototypes from semi-supervised k-means; the paper starts from random ones")


class PrototypeMethod(Method):
    """A method whose classifier is plain prototypes; with `heads.warm_start` they start from k-means."""

    @property
    def temperature(self) -> float:
        """Softmax temperature of the classifier's probabilities."""
        raise NotImplementedError

    def heads(self) -> nn.ModuleDict:
        return nn.ModuleDict({"classifier": Prototypes(self.sizes.width, self.sizes.k)})

    def before_training(self, context: Context) -> None:
        warm = self.options.heads.warm_start
        start_prototypes(context, partial(warm_prototypes, self, context) if warm else None)

    def scores(self, output: Output) -> dict[str, Tensor]:
        return {"gcd": self.probabilities(output["classifier"])}

    def probabilities(self, logits: Tensor) -> Tensor:
        """Eq. 1: (N, K) cosines -> (N, K)."""
        return torch.softmax(logits / self.temperature, 1)


def start_prototypes(context: Context, start: Callable[[], Tensor] | None) -> None:
    """Initialise all prototypes: from a classifier that another run gave, else by `start` (K, width), if it is not None."""
    heads = {name: head for name, head in classifiers(context.network.heads).items() if isinstance(head, Prototypes)}
    given = [head for name, head in heads.items() if name in context.given]
    if given:  # all classifiers must number the categories in the same way
        weight = given[0].weight.clone()
    elif start is not None:
        weight = start()
    else:
        return
    for head in heads.values():
        head.weight.copy_(weight)


def warm_prototypes(method: Method, context: Context) -> Tensor:
    """Unit-length centres of a semi-supervised clustering of all training images: (K, width)."""
    with progress("clustering") as report:
        return prototypes(
            context.features(), context.label, method.sizes.k, seed=method.config.seed, on_progress=report
        )


# The frozen and the settled answer

FROZEN = SettleOptions()


def answer(method: Method, context: Context, options: SettleOptions | None = None) -> Answer:
    """Sort all training images by their averaged features, as `settle` does, and fill the settled head if there is one."""
    feature, options = context.averaged_features(), options or FROZEN
    k, seed, so_far, new = method.sizes.k, method.config.seed, None, None
    if context.before is not None and context.before.count <= k:
        so_far = context.before.category
        new = (context.label < 0) & (context.before.judge(context.features())[0] > 0.5)
    elif options.guided:
        new = looks_new(context, feature)
    with progress("settling") as report:
        found = settle(
            feature,
            context.label,
            k,
            new,
            options,
            so_far=so_far,
            unlearned=context.unlearned,
            seed=seed,
            on_progress=report,
        )
    for head in classifiers(context.network.heads).values():
        if isinstance(head, Settled):
            # scores are divided by TEMPERATURE
            weight = found.weight * (TEMPERATURE / found.temperature)
            head.fill(found.points.mean, found.points.directions, weight)
    return found


def frozen_prototypes(method: Method, context: Context) -> Tensor:
    """The unit-length mean feature of each of the frozen answer's categories: (K, width)."""
    category = answer(method, context).category
    return class_means(normalize(context.features(), dim=1), category, method.sizes.k)


def looks_new(context: Context, averaged: Tensor) -> Tensor:
    """Which unlabelled images are more likely new than known: (N,) bool.

    By a calibrated detector, which reads the features of centre crops, or else by a vote on averaged features (N, width).
    """
    detector, free = detector_of(context.network), context.label < 0
    if detector is None or detector.threshold() is None:
        return free & (voted(averaged, context.voters, context.group) > 0.5)
    return free & (novelty(detector(context.features())) > 0.5)


# Categories by semi-supervised k-means


@dataclass(frozen=True)
class ClusteringOptions:
    """Effort of k-means."""

    restarts: int = option(10, "random restarts; the lowest inertia wins", 1, 10**5)
    iterations: int = option(300, "at most, per restart", 1, 10**6)


@dataclass(frozen=True)
class KMeansOptions(Options):
    clustering: ClusteringOptions = ClusteringOptions()


@dataclass(frozen=True)
class GCDHeads(ProjectionOptions):
    projection_prototypes: int = option(0, "contrast cosines to this many prototypes on top; 0: none", 0, 10**6)


@dataclass(frozen=True)
class GCDOptions(KMeansOptions):
    heads: GCDHeads = GCDHeads()
    baseline: ContrastOptions = ContrastOptions()


class ClusteredMethod(Method):
    """A method whose categories come from semi-supervised k-means on the final features; novelty by distance."""

    Options: ClassVar[type[Options]] = KMeansOptions
    clusters = True

    def heads(self) -> nn.ModuleDict:
        classifier = Centres(self.sizes.width, self.sizes.k)
        return nn.ModuleDict(
            {"classifier": classifier, "detector": DistanceDetector(self.sizes.width, self.sizes.known)}
        )

    def finalise(self, context: Context) -> None:
        feature = context.features()
        settle_centres(self, context, normalize(feature, dim=1))
        fit_detector(context, feature)


class ContrastiveMethod(ClusteredMethod):
    """A clustered method that first tunes the features by a contrastive loss on their projection, as GCD does.

    The public code of GCD contrasts the 65,536 outputs of DINO's head (`heads.projection_prototypes`). Without them the
    projection is SimGCD's, so that the two methods differ in the classifier alone.
    """

    Options = GCDOptions
    options: Any

    def heads(self) -> nn.ModuleDict:
        heads = super().heads()
        heads["projection"] = self.projection()
        return heads

    def projection(self, width: int | None = None) -> Projection | PrototypeProjection:
        """The projection for L_rep: (N, width) -> (N, d), unit rows; width defaults to the feature's."""
        shape, width = self.options.heads, width or self.sizes.width
        if not shape.projection_prototypes:
            return shape.projection(width)
        sizes = (width, shape.hidden, shape.projection_width, shape.projection_depth)
        return PrototypeProjection(*sizes, shape.projection_prototypes)


def settle_centres(method: Method, context: Context, unit: Tensor) -> None:
    """Set the classifier's centres by semi-supervised k-means; unit: (N, width) unit-length features of all training images."""
    fill_centres(context, clustered(unit, context.label, method.sizes.k, method.config).centres)


def fill_centres(context: Context, centres: Tensor) -> None:
    """Copy the categories' centres (K, width) into the classifier."""
    classifiers(context.network.heads)["classifier"].weight.copy_(centres)


def fit_detector(context: Context, feature: Tensor) -> None:
    """Fit the detector to all training images' features: (N, width), only the columns that it reads."""
    detector = detector_of(context.network)
    assert detector is not None
    detector.fit(feature, context.voters, context.group)


def clustered(points: Tensor, label: Tensor, k: int, config: Config) -> Clustering:
    """k-means with the configuration's restarts, iterations and seed, and a progress bar."""
    options: ClusteringOptions = config.options.clustering
    with progress("clustering") as report:
        return kmeans(
            points,
            label,
            k,
            seed=config.seed,
            restarts=options.restarts,
            iterations=options.iterations,
            on_progress=report,
        )


def known_first(assignment: Tensor, label: Tensor, k: int, known: int) -> Tensor:
    """(K,) order of the clusters in which cluster i is known class i, by the best matching on the labelled images."""
    from scipy.optimize import linear_sum_assignment

    labelled = label >= 0
    pairs = assignment[labelled] * known + label[labelled]
    together = torch.bincount(pairs, minlength=k * known).reshape(k, known)
    clusters, classes = linear_sum_assignment(together.cpu().numpy(), maximize=True)
    first = dict(zip(classes.tolist(), clusters.tolist(), strict=True))
    rest = [cluster for cluster in range(k) if cluster not in set(first.values())]
    return torch.tensor([first[i] for i in range(known)] + rest, dtype=torch.int64)
