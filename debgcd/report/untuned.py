"""What the features before training say of a run's images: their structure, and labels that look wrong.

Computed once for the report and the review together, and kept in the cache. Training bends features to its own answer, and to
wrong labels; these it has not touched.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import debgcd.cluster.structure as cluster
from debgcd.check import Doubt, doubtful_labels
from debgcd.errors import DataError
from debgcd.grow.features import of_readable
from debgcd.review.log import joined_predictions
from debgcd.run.directory import Run
from debgcd.system.files import parse_json, read_sealed, write_sealed
from debgcd.system.progress import say
from debgcd.train.plan import run_backbone
from debgcd.train.setup import centre_tokens, frozen_features

FOLDER = "untuned"
FORMAT = 1  # raise it when the meaning of a file's bytes changes
SUFFIX = f".features-{FORMAT}"

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Untuned:
    """Of the training images that can be read."""

    there: Ids  # (P,) their numbers
    structure: cluster.Structure  # its rows are positions in `there`
    doubts: list[Doubt]  # labels that look wrong


def untuned(run: Run, cache: Path) -> Untuned:
    """As in the cache, or computed now."""
    place = untuned_file(run, cache)
    if place.is_file():
        try:
            return _read(read_sealed(place))
        except ValueError:
            say(f"structure of {run.folder}: {place} is damaged; computing it again")
    there, feature = of_readable(run, cache, lambda there: _features(run, there, cache))
    if len(there) < 2:
        raise DataError("fewer than two images can be read")
    manifest = run.manifest.select(run.manifest.training_rows[there])
    found = Untuned(there, _structure(run, there, feature), [])
    if len(manifest.classes) > 1:
        found = Untuned(there, found.structure, doubtful_labels(manifest, feature))
    place.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(place, _written(found))
    return found


def untuned_file(run: Run, cache: Path) -> Path:
    """Where this is kept, by the run's images, labels, answer and backbone."""
    facts = [
        *((run.folder / name).read_bytes() for name in ("manifest.csv", "predictions.csv")),
        run.images_digest.encode(),
        json.dumps([run.config.backbone.name, run.config.views.crop, run.config.seed]).encode(),
    ]
    key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in facts)).hexdigest()[:32]
    return cache / FOLDER / f"{key}{SUFFIX}"


def _features(run: Run, there: Ids, cache: Path) -> Tensor:
    manifest = run.manifest.select(run.manifest.training_rows[there])
    backbone = run_backbone(run, cache)
    tokens = centre_tokens(run.config, manifest, backbone, cache)
    return frozen_features(backbone, tokens, manifest.training_paths).cpu()


def _structure(run: Run, there: Ids, feature: Tensor) -> cluster.Structure:
    """The categories, which a large sample is taken from evenly, are those of the run itself, before any review."""
    said = joined_predictions(run.folder, ("path", "category"))
    category_of = dict(zip(said["path"], said["category"], strict=True))
    label, paths = run.manifest.training_labels[there], run.manifest.training_paths
    category = np.array(
        [one if one >= 0 else category_of[str(paths[i])] for i, one in zip(there, label.tolist(), strict=True)]
    )
    assert run.config.k is not None
    return cluster.structure(feature, label, category, max(run.config.k, int(category.max()) + 1), run.config.seed)


def _written(found: Untuned) -> bytes:
    content = io.BytesIO()
    doubts = np.frombuffer(json.dumps([asdict(doubt) for doubt in found.doubts]).encode(), np.uint8)
    np.savez(content, there=found.there, doubts=doubts, **vars(found.structure))
    return content.getvalue()


def _read(content: bytes) -> Untuned:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        parts = {name: arrays[name] for name in arrays.files}
    there, doubts = parts.pop("there"), parse_json(parts.pop("doubts").tobytes())
    return Untuned(there, cluster.Structure(**parts), [Doubt(**doubt) for doubt in doubts])
