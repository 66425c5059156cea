"""What to show of each category: exemplars, borderline images, outliers, duplicates, what it looks like, its group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from scipy.sparse.csgraph import connected_components

from debgcd.cluster.prototypes import principal
from debgcd.cluster.ward import ward
from debgcd.report.look import Look
from debgcd.report.trust import Ids, distances, rows_per_category
from debgcd.system.progress import progress, say

EXEMPLARS, OTHERS = 12, 8  # images shown per category; fewer if there are many categories
IMAGES_ON_PAGE = 5000  # of more, a random part is shown
UNSURE = 0.5  # confidence below which the group of a category is the safer answer
OUTLIER_DEVIATIONS = 2.0  # standard deviations above the category's mean distance
DUPLICATE_RMS = 0.03  # root mean square difference of near-duplicates at 8 × 8 pixels, values in 0..1


@dataclass(frozen=True)
class Description:
    """One category; images by number."""

    exemplars: list[int]  # nearest to the mean; at most one per group of the manifest
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
    most, others = max(2, min(EXEMPLARS, share)), max(1, min(OTHERS, share // 2))
    label = look.label[look.there]
    members = rows_per_category(np.where(label < 0, look.category[look.there], -1), k)
    descriptions = []
    for c, (free, labelled) in enumerate(zip(members, rows_per_category(label, k), strict=True)):
        apart = between[c, :known].copy()
        if c < known:
            apart[c] = np.inf
        near = int(apart.argmin()) if len(apart) and np.isfinite(apart).any() and not missing[c] else None
        order, far = _by_distance(look, free, c)
        descriptions.append(
            Description(
                exemplars=_one_per_scene(look, order)[:most],
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


def duplicates(prints: NDArray[np.float32], block: int = 1024) -> list[list[int]]:
    """Groups of near-duplicate images by their fingerprints (N, d); NaN: left out. A chain of similar images is one group."""
    usable = np.flatnonzero(~np.isnan(prints[:, 0]))
    if not len(usable):
        return []
    points = prints[usable]
    length = (points**2).sum(1)
    near = []
    for start in range(0, len(points), block):
        rows = slice(start, start + block)
        squared = length[rows, None] + length - 2 * points[rows] @ points.T
        near.append(csr_array(squared < DUPLICATE_RMS**2 * points.shape[1]))
    _, group = connected_components(vstack(near), directed=False)
    return [usable[rows].tolist() for rows in rows_per_category(group, int(group.max()) + 1) if len(rows) > 1]


def _by_distance(look: Look, rows: Ids, c: int) -> tuple[list[int], list[int]]:
    """The images in these rows of `feature`, nearest to the category's mean first; and the outliers, furthest first."""
    if not len(rows):
        return [], []
    apart = np.linalg.norm(look.feature[rows] - look.means[c], axis=1)
    order = np.argsort(apart, kind="stable")
    images = look.there[rows][order]
    return images.tolist(), images[apart[order] > apart.mean() + OUTLIER_DEVIATIONS * apart.std()][::-1].tolist()


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
NO_TSNE = "PCA; t-SNE, which separates categories better, needs the package openTSNE: pip install 'debgcd[figures]'"


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
        from openTSNE import TSNE
    except ImportError:
        say(f"map: {NO_TSNE}")
        return flat, NO_TSNE
    with progress("drawing the map") as report:
        model = TSNE(
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
