"""Names suggested for the new categories of a run; a person decides.

What a category looks like, by the features of the run, is always known; which of some words fits, a text–image model tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from debgcd.data.image.decode import Unusable
from debgcd.data.thumbnails import square
from debgcd.errors import DataError, UsageError
from debgcd.model.text_image import TextImage, load_text_image
from debgcd.review.log import reviewed_predictions
from debgcd.review.page.similar import compute, read_features
from debgcd.run.categories import Category
from debgcd.run.directory import Run, unusable_images
from debgcd.system.files import readable
from debgcd.system.progress import progress

BEST = 3  # suggestions of either kind
SEEN = 30  # images per category that a text–image model looks at: the most typical ones

Scored = list[tuple[str, float]]  # the best first


@dataclass(frozen=True)
class Suggestion:
    """What a new category may be called."""

    category: Category
    images: int
    like: Scored  # known classes, and the cosine between the mean features
    words: Scored  # words, and the mean probability over the images


def suggest(run: Run, cache: Path, words: Sequence[str] = (), model: str = "") -> list[Suggestion]:
    """Suggestions for each new category that has images, the largest first. model: of `load_text_image`, needed for words."""
    rows, categories = reviewed_predictions(run.folder)
    known = [one for one in categories if one.known]
    feature = read_features(compute(run.folder, cache))
    category = run.manifest.training_labels.copy()
    category[category < 0] = [row["category"] for row in rows]
    free = run.manifest.training_labels < 0
    there = np.linalg.norm(feature, axis=1) > 0  # no features of images that cannot be read
    new = [one for one in categories if not one.known and one.merged_into is None and (category == one.category).any()]
    new.sort(key=lambda one: -int((category == one.category).sum()))
    means = {one.id: _mean(feature[(category == one.category) & there]) for one in (*known, *new)}
    judge = _Judge(run, cache, load_text_image(model, cache), words) if words else None
    found = []
    with progress("comparing with the words" if judge else "comparing") as report:
        for done, one in enumerate(new, 1):
            members = np.flatnonzero((category == one.category) & free & there)
            typical = members[np.argsort(-(feature[members] @ means[one.id]), kind="stable")][:SEEN]
            like = [(other.name, float(means[one.id] @ means[other.id])) for other in known]
            size = int((category == one.category).sum())
            found.append(Suggestion(one, size, _best(like), judge.words_for(typical) if judge else []))
            report(done, len(new))
    return found


def read_words(path: Path) -> list[str]:
    """The words of a file, one or several per line; empty lines and those that begin with # are left out."""
    with readable(path, "give a text file with a word per line", missing=False):
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    words = list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if len(words) < 2:
        raise UsageError(f"{path} has {len(words)} words; two or more can be compared with each other")
    return words


class _Judge:
    """A text–image model that was given the words."""

    def __init__(self, run: Run, cache: Path, model: TextImage, words: Sequence[str]):
        self._run, self._cache, self._model, self._words = run, cache, model, words
        self._text: Tensor = model.words(words)

    def words_for(self, images: NDArray[np.int64]) -> Scored:
        """The best words for these training images together."""
        reasons = unusable_images(self._run, self._run.manifest.training_rows[images], self._cache)
        paths = [
            self._run.manifest.training_paths[i] for i, why in zip(images.tolist(), reasons, strict=True) if not why
        ]
        try:
            pixels = [np.asarray(square(path, self._model.size)) for path in paths]
        except Unusable as error:
            raise DataError(f"an image of the run cannot be read any more ({error}); put it back") from error
        if not pixels:
            return []
        fit = self._model.fit(self._model.images(pixels), self._text).mean(0)
        return _best(list(zip(self._words, fit.tolist(), strict=True)))


def _best(scored: Scored) -> Scored:
    return sorted(scored, key=lambda pair: -pair[1])[:BEST]


def _mean(feature: NDArray[np.float32]) -> NDArray[np.float32]:
    mean = feature.sum(0)
    return mean / max(float(np.linalg.norm(mean)), 1e-12)
