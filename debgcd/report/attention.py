"""Figure 7 of the paper: where the CLS token of a vision transformer looks, before and after tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from debgcd.data.loader import from_files
from debgcd.data.views import CENTRE, PLAIN
from debgcd.errors import DataError, UsageError
from debgcd.model.vit import VitBackbone
from debgcd.run.directory import Run
from debgcd.train.decide import run_backbone
from debgcd.train.start import open_setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACES = 6  # images


def attention(figure: Figure, runs: Sequence[Run], cache: Path) -> None:
    """Figure 7: attention of the last block's CLS token, mean over heads, over the image: untuned beside tuned."""
    columns = 1 + 2 * len(runs)
    figure.set_size_inches(1.9 * columns, 2.0 * FACES)
    grid: Any = figure.subplots(FACES, columns, squeeze=False)
    for at, run in enumerate(runs):
        setup = open_setup(run, run.manifest, cache)
        tuned = setup.network.backbone
        if not isinstance(tuned, VitBackbone):
            raise UsageError(
                f"the backbone {run.config.backbone.name} of {run.folder} is no vision transformer and has no attention to show"
            )
        untuned = run_backbone(run, cache).to(setup.device)
        free = np.flatnonzero(setup.label < 0)
        chosen = free[np.linspace(0, len(free) - 1, FACES).round().astype(int)]
        images = from_files([setup.paths[i] for i in chosen], run.config.views)
        for row in range(FACES):
            pixels = images[row, CENTRE, (PLAIN,)]
            if isinstance(pixels, str):
                raise DataError(pixels)
            face = pixels[0].permute(1, 2, 0).numpy()
            if at == 0:
                grid[row, 0].imshow(face)
            for place, network in ((1 + 2 * at, untuned), (2 + 2 * at, tuned)):
                assert isinstance(network, VitBackbone)
                seen = network.attention(network.trunk(pixels)).mean(1)[0].detach().cpu().numpy()
                grid[row, place].imshow(_over(face, seen))
        for place, what in ((1 + 2 * at, "untuned"), (2 + 2 * at, "tuned")):
            grid[0, place].set_title(f"{title_of(run)}\n{what}", fontsize=9)
    for axis in grid.flat:
        axis.set_axis_off()


def title_of(run: Run) -> str:
    """The name of a run in a figure; its folder's too, unless that only repeats the seed, as in a grid of runs."""
    said, folder = f"{run.config.method}, seed {run.config.seed}", run.folder.resolve().name
    # matplotlib would set what is between two dollars as a formula
    return said if folder == f"seed-{run.config.seed}" else f"{folder} ({said})".replace("$", r"\$")


def _over(face: NDArray[np.uint8], seen: NDArray[np.float32]) -> NDArray[np.float64]:
    """The image, bright where the attention (h, w) is high."""
    size = face.shape[1::-1]
    smooth = np.asarray(Image.fromarray(seen / max(float(seen.max()), 1e-12)).resize(size, Image.Resampling.BICUBIC))
    return (0.25 + 0.75 * smooth.clip(0, 1))[..., None] * face / 255
