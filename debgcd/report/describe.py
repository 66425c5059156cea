"""What to show of each category: exemplars, borderline images, outliers, duplicates, what it looks like, its group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from debgcd.cluster.prototypes import principal
from debgcd.cluster.ward import ward
from debgcd.report.look import Look
from debgcd.report.trust import Ids, distances
from debgcd.system.progress import progress

EXEMPLARS, OTHERS = 12, 8  # images shown of a category; fewer where there are many categories
SHOWN = 5000  # images on a page; of more, a random part of each category
UNSURE = 0.5  # confidence below which an image is rather given its category's group
FAR = 2.0  # standard deviations from the category's mean distance: an outlier
ALIKE = 0.03  # root mean square difference of two images at 8 × 8 pixels, of 1: near-duplicates


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
    share = SHOWN // (4 * len(look.categories))
    most, others = max(2, min(EXEMPLARS, share)), max(1, min(OTHERS, share // 2))
    found = []
    for c in range(len(look.categories)):
        here = np.flatnonzero((look.category[look.there] == c) & (look.label[look.there] < 0))
        named = np.flatnonzero(look.label[look.there] == c)
        apart = between[c, :known].copy()
        if c < known:
            apart[c] = np.inf
        near = int(apart.argmin()) if len(apart) and np.isfinite(apart).any() and not missing[c] else None
        order, far = _by_distance(look, here, c)
        found.append(
            Description(
                exemplars=_one_per_scene(look, order)[:most],
                borderline=_borderline(look, look.there[here].tolist())[:others],
                outliers=far[:others],
                labelled=_one_per_scene(look, _by_distance(look, named, c)[0])[:others],
                like=near,
                group=int(group[c]),
            )
        )
    return found


def groups(look: Look) -> Ids:
    """(K,) a coarser group of each category: about √K of them, from the tree of the categories' means."""
    tree = ward(torch.from_numpy(np.nan_to_num(look.means)))
    return tree.cut(min(tree.leaves, max(1, round(len(look.categories) ** 0.5))))


def duplicates(prints: NDArray[np.float32], block: int = 1024) -> list[list[int]]:
    """Groups of images that are nearly the same, by fingerprints (N, d); nan: left out. A chain is one group."""
    usable = np.flatnonzero(~np.isnan(prints[:, 0]))
    points = prints[usable]
    parent = np.arange(len(points))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = int(parent[i])
        return i

    length = (points**2).sum(1)
    for start in range(0, len(points), block):
        some = slice(start, start + block)
        squared = length[some, None] + length - 2 * points[some] @ points.T
        for i, j in np.argwhere(squared < ALIKE**2 * points.shape[1]):
            if start + i < j:
                parent[root(int(j))] = root(int(start + i))
    members: dict[int, list[int]] = {}
    for i in range(len(points)):
        members.setdefault(root(i), []).append(int(usable[i]))
    return [group for group in members.values() if len(group) > 1]


def _by_distance(look: Look, here: Ids, c: int) -> tuple[list[int], list[int]]:
    """The images at these positions of `there`, nearest to the category's mean first; and the outliers, furthest first."""
    if not len(here):
        return [], []
    apart = np.linalg.norm(look.feature[here] - look.means[c], axis=1)
    order = np.argsort(apart, kind="stable")
    images = look.there[here][order].tolist()
    far = apart[order] > apart.mean() + FAR * apart.std()
    return images, [image for image, outlying in zip(images, far, strict=True) if outlying][::-1]


def _borderline(look: Look, images: list[int]) -> list[int]:
    """Images by how little the most probable category leads, the least first; none where it leads clearly."""

    def lead(image: int) -> float:
        row = look.rows[image]
        return row["top1_p"] - (row["top2_p"] or 0)

    return sorted((image for image in images if lead(image) < UNSURE), key=lead)


def _one_per_scene(look: Look, images: list[int]) -> list[int]:
    """Without images of a scene (column `group` of the manifest) that another one shows already; those come last."""
    scenes = [look.run.manifest.groups[row] for row in look.run.manifest.training_rows[images]] if images else []
    seen: set[str | None] = set()
    first: list[int] = []
    later: list[int] = []
    for image, scene in zip(images, scenes, strict=True):
        (later if scene is not None and scene in seen else first).append(image)
        seen.add(scene)
    return first + later


AXES = 50  # principal axes that t-SNE sees
FEWEST = 10  # with fewer points t-SNE has no neighbours to keep
ITERATIONS = 500


def project(feature: NDArray[np.float32], seed: int) -> tuple[NDArray[np.float64], str]:
    """(N, d) -> (N, 2), and how: "t-SNE" or "PCA". The same features and seed give the same picture."""
    points = principal(torch.from_numpy(feature), min(AXES, *feature.shape)).double().numpy()[:, ::-1]  # largest first
    flat = np.zeros((len(points), 2))
    flat[:, : min(2, points.shape[1])] = points[:, :2]
    if len(points) < FEWEST:
        return flat, "PCA"
    try:
        from openTSNE import TSNE
    except ImportError:
        return flat, "PCA"
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
