"""Features in two dimensions: t-SNE where openTSNE is installed, else the two principal axes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from debgcd.cluster.prototypes import principal
from debgcd.system.progress import progress

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
