"""What to show of each category: its most certain and its least certain images, one of each part, outliers, what it looks like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from debgcd.cluster.kmeans import kmeans
from debgcd.cluster.prototypes import principal
from debgcd.cluster.structure import distances
from debgcd.cluster.ward import ward
from debgcd.errors import UsageError
from debgcd.report.look import Look
from debgcd.report.trust import Ids, rows_per_category
from debgcd.system.machine import optional
from debgcd.system.progress import progress, say

CERTAIN, OTHERS = 6, 8  # images shown per category; fewer if there are many categories
PARTS, PART = 4, 5  # parts of a category at most, of at least this many images on average
IMAGES_ON_PAGE = 5000  # of more, a random part is shown
UNSURE = 0.5  # confidence below which the group of a category is the safer answer
OUTLIER_DEVIATIONS = 2.0  # standard deviations above the category's mean distance


@dataclass(frozen=True)
class Description:
    """One category; images by number."""

    certain: list[int]  # the most probable ones, then those nearest to the mean; at most one per group of the manifest
    typical: list[int]  # of each part that it falls into, the image nearest to the part's mean; the largest part first
    part_sizes: list[int]  # of these parts
    borderline: list[int]  # the two most probable categories are nearly as probable
    outliers: list[int]  # much further from the mean than the others
    labelled: list[int]  # of a known class: labelled images nearest to the mean
    like: int | None  # the known class whose mean is nearest, other than itself
    group: int  # coarser group


def describe(look: Look) -> list[Description]:
    """A description of every category, in their order."""
    known = sum(category.known for category in look.categories)
    group = groups(look)
    between = distances(np.nan_to_num(look.means), look.means)  # (K, K)
    missing = np.isnan(look.means[:, 0])
    k = len(look.categories)
    share = IMAGES_ON_PAGE // (4 * k)
    most, others = max(2, min(CERTAIN, share)), max(1, min(OTHERS, share // 2))
    label = look.label[look.there]
    members = rows_per_category(np.where(label < 0, look.category[look.there], -1), k)
    descriptions = []
    for c, (free, labelled) in enumerate(zip(members, rows_per_category(label, k), strict=True)):
        apart = between[c, :known].copy()
        if c < known:
            apart[c] = np.inf
        near = int(apart.argmin()) if len(apart) and np.isfinite(apart).any() and not missing[c] else None
        order, far = _by_distance(look, free, c)
        typical, part_sizes = _parts(look, free)
        surest = sorted(order, key=lambda image: -round(look.rows[image]["top1_p"], 2))
        descriptions.append(
            Description(
                certain=_one_per_scene(look, surest)[: 2 * most],  # the page leaves out near-duplicates
                typical=typical,
                part_sizes=part_sizes,
                borderline=_borderline(look, look.there[free].tolist())[:others],
                outliers=far[:others],
                labelled=_one_per_scene(look, _by_distance(look, labelled, c)[0])[:others],
                like=near,
                group=int(group[c]),
            )
        )
    return descriptions


def groups(look: Look) -> Ids:
    """(K,) a coarser group of each category: about √K of them, from the tree of the categories' means."""
    tree = ward(torch.from_numpy(np.nan_to_num(look.means)))
    return tree.cut(min(tree.leaves, max(1, round(len(look.categories) ** 0.5))))


def _by_distance(look: Look, rows: Ids, c: int) -> tuple[list[int], list[int]]:
    """The images in these rows of `feature`, nearest to the category's mean first; and the outliers, furthest first."""
    if not len(rows):
        return [], []
    apart = np.linalg.norm(look.feature[rows] - look.means[c], axis=1)
    order = np.argsort(apart, kind="stable")
    images = look.there[rows][order]
    return images.tolist(), images[apart[order] > apart.mean() + OUTLIER_DEVIATIONS * apart.std()][::-1].tolist()


def _parts(look: Look, rows: Ids) -> tuple[list[int], list[int]]:
    """Of each part of these rows of `feature`, by k-means: the image nearest to its mean, and its size; the largest part first."""
    count = min(PARTS, len(rows) // PART)
    if count < 2:
        return [], []
    feature = look.feature[rows]
    found = kmeans(torch.from_numpy(feature), torch.full((len(rows),), -1), count, restarts=2).assignment.numpy()
    parts = sorted((np.flatnonzero(found == part) for part in np.unique(found)), key=lambda part: (-len(part), part[0]))
    near = [part[np.linalg.norm(feature[part] - feature[part].mean(0), axis=1).argmin()] for part in parts]
    return look.there[rows[near]].tolist(), [len(part) for part in parts]


def _borderline(look: Look, images: list[int]) -> list[int]:
    """Images in which the most probable category leads by less than UNSURE, the smallest lead first."""
    lead = {image: look.rows[image]["top1_p"] - (look.rows[image]["top2_p"] or 0) for image in images}
    return sorted((image for image in images if lead[image] < UNSURE), key=lead.__getitem__)


def _one_per_scene(look: Look, images: list[int]) -> list[int]:
    """The same images; those of a scene (column `group` of the manifest) that an earlier one shows come last."""
    seen: set[str | None] = set()
    repeated = []
    for image in images:
        scene = look.scenes[image]
        repeated.append(scene is not None and scene in seen)
        seen.add(scene)
    return [images[i] for i in np.argsort(repeated, kind="stable")]


TSNE_AXES = 50  # principal axes that t-SNE sees
TSNE_POINTS = 10  # with fewer points t-SNE has no neighbours to keep
ITERATIONS = 500


def project(feature: NDArray[np.float32], seed: int) -> tuple[NDArray[np.float64], str]:
    """(N, d) -> (N, 2), and how: t-SNE, or PCA and why. The same features and seed give the same picture."""
    points = (
        principal(torch.from_numpy(feature), min(TSNE_AXES, *feature.shape)).double().numpy()[:, ::-1]
    )  # largest first
    flat = np.zeros((len(points), 2))
    flat[:, : min(2, points.shape[1])] = points[:, :2]
    if len(points) < TSNE_POINTS:
        return flat, "PCA, because they are few"
    try:
        tsne = optional("openTSNE", "figures", "t-SNE, which separates categories better,").TSNE
    except UsageError as missing:
        say(f"map: PCA; {missing}")
        return flat, f"PCA; {missing}"
    with progress("drawing the map") as report:
        model = tsne(
            perplexity=min(30, (len(points) - 1) / 3),
            initialization="pca",
            neighbors="exact",
            negative_gradient_method="bh",  # exact enough, and for some thousand points faster than its alternative
            n_iter=ITERATIONS,
            n_jobs=1,  # more threads wait for each other: two took three times as long on a busy machine
            random_state=seed,
            callbacks=lambda done, error, embedding: report(done, ITERATIONS),
            callbacks_every_iters=50,
        )
        return np.asarray(model.fit(np.ascontiguousarray(points))), "t-SNE"
