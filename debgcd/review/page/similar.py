"""Which images look alike, by the features of the run's network: computed once in a worker process, kept in the cache."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debgcd.data.image.crop import Picture
from debgcd.data.thumbnails import Thumbnail
from debgcd.errors import DebgcdError, UsageError
from debgcd.review.page.maps import where_map
from debgcd.review.page.pictures import Workers
from debgcd.review.page.suggested import prepare, suggested
from debgcd.review.teach import teach_most
from debgcd.run.directory import Run, finished_run
from debgcd.system.files import read_sealed, write_sealed
from debgcd.system.progress import say

FOLDER = "review"
FORMAT = 2  # raise it when the meaning of a file's bytes changes
SUFFIX = f".features-{FORMAT}"
WIDTH = 128  # principal directions that are kept: cosines differ by less than the order of images depends on
MOST_PARTS = 8
LIKE = 2000  # most images that are offered as being like one

Ids = NDArray[np.int64]
Features = NDArray[np.float32]


class Similar:
    """Cosines between the images of a page, which may not be there yet: then `note` says why."""

    def __init__(self, run: Path, cache: Path, rows: Ids):
        """rows: the training image of each image of the page."""
        self._workers = Workers(1)
        self._rows, self._place = rows, (run, cache)
        self._feature: Features | None = None
        self.note = "the features of the images are being computed"
        self.suggests = False  # whether `suggested` has what it needs
        self.doubts: list[dict[str, Any]] = []  # labels that look wrong, once it has
        threading.Thread(target=self._compute, args=(run, cache), daemon=True).start()

    @property
    def ready(self) -> bool:
        return self._feature is not None

    def to_own(self, category: Ids) -> list[int]:
        """Per image, how near it is to the mean of its category: 1000 × cosine. category: (N,) of the images."""
        feature = self._all()
        order = np.argsort(category, kind="stable")
        found = np.zeros(len(category), np.int64)
        for some in np.split(order, np.flatnonzero(np.diff(category[order])) + 1):
            found[some] = _thousandths(feature[some] @ _mean(feature[some]))
        return found.tolist()

    def like(self, images: Ids, count: int) -> tuple[list[int], list[int]]:
        """The first `count` images of the page that are most like these, and 1000 × their cosine; these come first."""
        feature = self._all()
        near = feature[:count] @ _mean(feature[images])
        near[images[images < count]] = 2
        order = np.argsort(-near, kind="stable")[:LIKE]
        return order.tolist(), _thousandths(near[order].clip(-1, 1)).tolist()

    def nearest(self, image: int, groups: Mapping[str, Ids], count: int) -> dict[str, list[list[int]]]:
        """Of each group of images the `count` most like this one, and 1000 × their cosine."""
        feature, found = self._all(), {}
        for name, group in groups.items():
            others = group[group != image]
            near = _thousandths(feature[others] @ feature[image])
            order = np.argsort(-near, kind="stable")[:count]
            found[name] = np.stack([others[order], near[order]], 1).tolist()
        return found

    def typical(self, images: Ids) -> int:
        """1000 × the mean cosine of two of these images: as alike as images of one category are."""
        feature = self._all()[images]
        count = len(feature)
        if count < 2:
            return 1000
        total = float(np.square(feature.sum(0)).sum() - np.square(feature).sum())
        return round(1000 * total / (count * (count - 1)))

    def near(self, images: Ids, groups: list[Ids]) -> list[int]:
        """The numbers of the groups, the one whose mean is nearest to that of these images first; empty ones last."""
        feature = self._all()
        centre = _mean(feature[images])
        score = [float(_mean(feature[group]) @ centre) if len(group) else -2.0 for group in groups]
        return sorted(range(len(groups)), key=lambda i: (-score[i], i))

    def split(self, images: Ids, parts: int) -> list[list[int]]:
        """These images in parts that look alike, by k-means; the largest part first, in each the most typical image first."""
        if not 2 <= parts <= MOST_PARTS or parts > len(images):
            raise UsageError(f"{len(images)} images can be split into 2 to {min(MOST_PARTS, len(images))} parts")
        feature = self._all()[images]
        found = self._workers.do(cluster, feature, parts)
        kept = []
        for part in range(parts):
            own = np.flatnonzero(found == part)
            if len(own):
                kept.append(own[np.argsort(-(feature[own] @ _mean(feature[own])), kind="stable")])
        if len(kept) < 2:
            raise UsageError("these images look the same to the network; select some and move them instead")
        return [images[own].tolist() for own in sorted(kept, key=lambda own: (-len(own), own[0]))]

    def teach(
        self, images: Ids, category: Ids, lead: NDArray[np.float64], scene: list[str | None], count: int
    ) -> list[int]:
        """Those of these images to label next; category, lead, scene: of each, as for `teach_most`."""
        found = self._workers.do(teach_most, self._all()[images], category, lead, scene, count)
        return images[found].tolist()

    def suggested(self, category: Ids, status: Sequence[str]) -> dict[str, Any]:
        """See suggested.py; category: (N,) of the page's unlabelled images, status: (K,). All images of a split are in it, and
        `certain` are all N of them, "1" or "0" each.
        """
        if not self.suggests:
            return {"suggestions": [], "trust": [None] * len(status), "certain": ""}
        count = len(category)
        found: dict[str, Any] = self._workers.do(suggested, *self._place, self._rows[:count], category, status)
        for one in found["suggestions"]:
            if one["kind"] == "split":
                leaves, stays = (np.array(one.pop(name), np.int64) for name in ("leaves", "stays"))
                own = np.flatnonzero(category == one["categories"][0])
                one["images"] = [*leaves.tolist(), *self._rather(own, leaves, stays).tolist()]
        certain, doubtful = (np.array(found.pop(name), np.int64) for name in ("certain", "doubtful"))
        sure = np.zeros(count, bool)
        sure[certain] = True
        for c in np.unique(category) if len(certain) + len(doubtful) < count else ():
            own, yes, no = (some[category[some] == c] for some in (np.arange(count), certain, doubtful))
            sure[self._rather(own, yes, no)] = True
        return found | {"certain": "".join("01"[one] for one in sure.tolist())}

    def _rather(self, own: Ids, these: Ids, those: Ids) -> Ids:
        """Of a category's own images that are in neither group, those whose features are nearer to the mean of the first."""
        others = np.setdiff1d(own, np.concatenate([these, those]))
        if not len(these) or not len(those):
            return others if len(these) else others[:0]
        near = self._all()[others] @ np.stack([_mean(self._all()[part]) for part in (these, those)], 1)
        return others[near.argmax(1) == 0]

    def where(self, path: Picture, digest: str) -> Thumbnail:
        """A picture of where the network looks in an image; or the reason why there is none."""
        if not self.ready:  # the worker is busy with the features
            return self.note
        try:
            found: Thumbnail = self._workers.do(where_map, *self._place, path, digest)
        except BrokenProcessPool:
            return "corrupt: the process that looked at it was killed"
        return found

    def close(self) -> None:
        """End the worker process."""
        self._workers.close()

    def _all(self) -> Features:
        if self._feature is None:
            raise UsageError(self.note)
        return self._feature

    def _compute(self, run: Path, cache: Path) -> None:
        try:
            place = self._workers.do(compute, run, cache)
            self._feature = read_features(place)[self._rows]
            self.doubts = self._workers.do(prepare, run, cache)
            self.suggests = True
        except (DebgcdError, OSError, ValueError) as error:
            self.note = f"there are no features: {error}"
        except BrokenProcessPool:  # the server ends, or the system was short of memory
            self.note = "there are no features: the process that computed them was killed"
        except Exception as error:
            self.note = f"there are no features: {type(error).__name__}: {error}"
            raise


def compute(run: Path, cache: Path) -> Path:
    """The file with the features of all training images of a run, unit rows (N, ≤ WIDTH), 0 for those that cannot be read."""
    import torch  # in the worker alone: the server needs neither its memory nor the seconds it takes

    from debgcd.cluster.kmeans import kmeans  # noqa: F401 (so that the first split does not wait for it)
    from debgcd.grow.features import run_features

    opened = finished_run(run)
    place = feature_file(opened, cache)
    if place.is_file():
        try:
            read_features(place)
            return place
        except ValueError:
            say(f"features of the review: {place} is damaged; computing them again")
    found = torch.nn.functional.normalize(run_features(opened, cache).float(), dim=1)
    products = (found.double().T @ found.double()).numpy()  # not centred, so that cosines stay cosines
    axes = torch.from_numpy(np.linalg.eigh(products)[1][:, -WIDTH:].copy()).float()
    rows = torch.nn.functional.normalize(found @ axes, dim=1).numpy()
    content = io.BytesIO()
    np.save(content, rows, allow_pickle=False)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(place, content.getvalue())
    return place


def feature_file(run: Run, cache: Path) -> Path:
    """Where the features of a run are kept, by its model and its images."""
    with open(run.model / "model.safetensors", "rb") as file:
        model = hashlib.file_digest(file, "sha256").hexdigest()
    key = hashlib.sha256(f"{WIDTH} {model} {run.images_digest}".encode()).hexdigest()[:32]
    return cache / FOLDER / f"{key}{SUFFIX}"


def read_features(place: Path) -> Features:
    """What a file of features holds; a ValueError if that is not what was written."""
    return np.load(io.BytesIO(read_sealed(place)), allow_pickle=False)


def cluster(feature: Features, parts: int) -> Ids:
    """The part of each row; the same call gives the same parts."""
    import torch

    from debgcd.cluster.kmeans import kmeans

    free = torch.full((len(feature),), -1)
    return kmeans(torch.from_numpy(feature), free, parts, restarts=4).assignment.numpy()


def _mean(feature: Features) -> Features:
    mean = feature.mean(0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)


def _thousandths(cosine: Features) -> Ids:
    return np.rint(1000 * cosine).astype(np.int64)
