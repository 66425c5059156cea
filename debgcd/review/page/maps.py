"""Pictures of where the run's network looks, for the close-up; in the worker process of `similar`, which keeps the model."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from debgcd.data.fingerprints import require_own
from debgcd.data.image.crop import Picture
from debgcd.data.image.decode import Unusable
from debgcd.data.thumbnails import Thumbnail
from debgcd.errors import DebgcdError

if TYPE_CHECKING:
    from debgcd.run.model_folder import Model


def where_map(run: Path, cache: Path, path: Picture, digest: str) -> Thumbnail:
    """A WebP of what the network sees of an image, bright where it looks; or the reason why there is none."""
    from debgcd.infer.where import where  # in the worker alone, as in `similar`

    try:
        require_own(path, digest)
        pixels = where(_model(run, cache), path)
    except (Unusable, DebgcdError) as error:
        return str(error)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "WEBP", quality=85, method=2)
    return content.getvalue()


@lru_cache(maxsize=1)
def _model(run: Path, cache: Path) -> Model:
    from debgcd.grow.splits import run_model

    return run_model(run, cache)
