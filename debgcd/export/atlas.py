"""atlas: a Parquet file of images with their places and features, for embedding-atlas and LightlyStudio."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd.data.image.crop import Picture
from debgcd.data.thumbnails import thumbnails
from debgcd.export.items import Item, kept, tell_left_out
from debgcd.report.describe import project
from debgcd.review.page.similar import compute, read_features
from debgcd.run.directory import Run, unusable_images
from debgcd.run.predictions import pyarrow
from debgcd.system.files import write_bytes
from debgcd.system.progress import progress

NEIGHBOURS = 10  # of each image
BLOCK = 1024  # images whose similarities to all others are in memory together

Features = NDArray[np.float32]


def write_atlas(run: Run, out: Path, cache: Path) -> None:
    """One row per image, labelled or not; neighbours are rows of this table, as embedding-atlas expects them."""
    arrow, parquet = pyarrow()
    found, feature = _with_features(run, cache)
    with progress("thumbnails") as report:
        pictures = thumbnails([item.picture for item in found], cache, report)
    place, _ = project(feature, run.config.seed)
    ids, distances = neighbours(feature)
    text, number = arrow.string(), arrow.float32()
    image = arrow.struct([("bytes", arrow.binary()), ("path", text)])
    near = arrow.struct([("ids", arrow.list_(arrow.int64())), ("distances", arrow.list_(number))])
    columns: dict[str, tuple[Any, list[Any]]] = {
        "path": (text, [str(item.picture) for item in found]),
        "thumbnail": (image, [{"bytes": one, "path": None} if isinstance(one, bytes) else None for one in pictures]),
        "category": (text, [item.category.name for item in found]),
        "id": (text, [item.category.id for item in found]),
        "known": (arrow.bool_(), [item.category.known for item in found]),
        "labelled": (arrow.bool_(), [item.row is None for item in found]),
        "review": (text, [item.review for item in found]),
        "novelty": (number, [item.novelty for item in found]),
        "confidence": (number, [item.confidence for item in found]),
        "x": (number, place[:, 0].tolist()),
        "y": (number, place[:, 1].tolist()),
        "neighbours": (near, [{"ids": one, "distances": far} for one, far in zip(ids, distances, strict=True)]),
        "vector": (arrow.list_(number, feature.shape[1]), list(feature)),
    }
    arrays = [arrow.array(values, kind) for kind, values in columns.values()]
    content = io.BytesIO()
    parquet.write_table(arrow.Table.from_arrays(arrays, list(columns)), content)
    write_bytes(out, content.getvalue())


def neighbours(feature: Features, count: int = NEIGHBOURS) -> tuple[list[list[int]], list[list[float]]]:
    """Of each row the nearest others and 1 - cosine, the nearest first; feature: (N, d) unit rows."""
    count = min(count, len(feature) - 1)
    ids, distances = [], []
    with progress("neighbours") as report:
        for start in range(0, len(feature), BLOCK):
            near = feature[start : start + BLOCK] @ feature.T
            rows = np.arange(len(near))
            near[rows, start + rows] = -np.inf
            some = (
                np.argpartition(-near, count, axis=1)[:, :count]
                if count < len(feature) - 1
                else np.argsort(-near, axis=1)
            )
            some = some[:, :count]
            order = np.argsort(-np.take_along_axis(near, some, 1), axis=1, kind="stable")
            some = np.take_along_axis(some, order, 1)
            ids += some.tolist()
            distances += (1 - np.take_along_axis(near, some, 1)).tolist()
            report(len(ids), len(feature))
    return ids, distances


def _with_features(run: Run, cache: Path) -> tuple[list[Item], Features]:
    """The images that are still what they were, but rejected ones, and their features."""
    feature = read_features(compute(run.folder, cache))
    number = {str(path): i for i, path in enumerate(run.manifest.training_paths)}
    reasons = unusable_images(run, run.manifest.training_rows, cache)
    found: list[Item] = []
    gone: dict[Picture, str] = {}
    for item in kept(run):
        i = number[str(item.picture)]
        if reasons[i] or not feature[i].any():
            gone[item.picture] = reasons[i] or "it cannot be decoded any more"
        else:
            found.append(item)
    tell_left_out(gone, len(found))
    return found, feature[[number[str(item.picture)] for item in found]]
