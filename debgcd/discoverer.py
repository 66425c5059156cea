"""Category discovery with scikit-learn's interface: fit, predict, transform."""

from __future__ import annotations

import operator
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from debgcd import config as configuration
from debgcd.data.decode import Reason
from debgcd.data.manifest import Manifest, from_arrays, from_paths
from debgcd.errors import UsageError
from debgcd.inference import predict as prediction
from debgcd.inference.model import Category, Model, save_model
from debgcd.machine import cache_folder
from debgcd.train.decide import choose_preset
from debgcd.train.run import require_new
from debgcd.train.start import begin

Images = Sequence[Any] | NDArray[Any]  # paths or arrays


class Discoverer(BaseEstimator):
    """Assigns every image to a known class or a newly discovered category.

    Images are paths, or arrays of shape (H, W), (H, W, 3) or (H, W, 4), uint8 or float 0..1. In `y`, -1, None and NaN
    mean unlabelled. Categories are numbers: the known classes are 0..M-1, sorted as strings, followed by the discovered
    categories; `categories_` describes each one. A file that cannot be used gets category -1 and a warning.

    >>> discoverer = Discoverer(k=10, seed=0).fit(paths, y)      # doctest: +SKIP
    >>> discoverer.categories_[discoverer.predict(new)[0]].id    # doctest: +SKIP
    'new-03'

    k: total number of categories, known and new (None: estimated). preset: None picks the one that suits the data.
    run: run directory to keep (None: a temporary one). overrides: configuration values, e.g. {"schedule": {"steps": 100}}.
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        method: str = "debgcd",
        preset: str | None = None,
        seed: int = 0,
        run: str | os.PathLike[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ):
        self.k, self.method, self.preset, self.seed = k, method, preset, seed
        self.run, self.cache, self.overrides = run, cache, overrides

    def fit(self, X: Images, y: Iterable[Any]) -> Discoverer:
        """Train on labelled and unlabelled images; sets `labels_` (the category of each image) and `categories_`."""
        if self.run is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="debgcd-")  # deleted together with this object
        folder = Path(self._temporary.name) / "run" if self.run is None else Path(self.run)
        X = list(X)
        require_new(folder)
        given = _listed(X, folder / "images", y)
        config = configuration.compose(self.preset or choose_preset(given), method=self.method)
        fixed = {
            "k": None if self.k is None else operator.index(self.k),
            "method": self.method,
            "seed": operator.index(self.seed),
        }
        if self.cache is not None:
            config = configuration.override(config, {"run": {"cache": os.fspath(self.cache)}}, where="Discoverer")
        for name in {"k", "method", "preset", "seed"} & set(self.overrides or {}):
            raise UsageError(f"Discoverer: give {name} as an argument of its own, not in overrides")
        config = configuration.override(config, {**(self.overrides or {}), **fixed}, where="Discoverer")
        self.run_ = begin(given, config, folder)
        self._model = prediction.open_model(folder, cache_folder(self.cache))
        self.labels_ = self.predict(X)
        return self

    def predict(self, X: Images) -> NDArray[np.int64]:
        """The category of each image, (N,); -1 for a file that cannot be used."""
        return self._each(X, lambda usable: prediction.ask(self._fitted(), usable).category, fill=-1)

    def transform(self, X: Images) -> NDArray[np.float32]:
        """The feature of each image, (N, width); NaN for a file that cannot be used."""
        return self._each(X, lambda usable: prediction.embed(self._fitted(), usable).cpu().numpy(), fill=np.nan)

    def novelty(self, X: Images) -> NDArray[np.float32]:
        """The novelty of each image in 0..1, (N,): near 1 if no known class fits; NaN for a file that cannot be used."""
        model = self._fitted()
        if not set(model.method.detectors) <= set(model.network.heads):
            raise UsageError(f"the method {model.config.method} has no novelty detector; use method='debgcd'")
        return self._each(X, lambda usable: prediction.ask(model, usable).novelty, fill=np.nan)

    def table(self, X: Images) -> list[prediction.Prediction]:
        """One row per usable image with the columns of predictions.csv, ready for a data frame."""
        with tempfile.TemporaryDirectory(prefix="debgcd-") as folder:
            return prediction.predict(self._fitted(), _listed(list(X), Path(folder))).rows

    @property
    def categories_(self) -> list[Category]:
        """All categories: number, id, name, and whether known or discovered."""
        return self._fitted().categories

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model folder that `debgcd predict` and `Discoverer.load` can read."""
        model, folder = self._fitted(), Path(path)
        require_new(folder)
        save_model(folder, model.network.state(), model.config, model.categories, model.images)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backbone: str | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> Discoverer:
        """A fitted Discoverer from a model folder or a run directory."""
        model = prediction.open_model(Path(path), cache_folder(cache), backbone)
        config = model.config
        found = cls(config.k, method=config.method, preset=config.preset, seed=config.seed, cache=cache)
        found._model = model
        return found

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    def _fitted(self) -> Model:
        if not hasattr(self, "_model"):
            raise UsageError("this Discoverer has no model yet; call fit or Discoverer.load")
        return self._model

    def _each(self, X: Images, ask: Callable[[Manifest], NDArray[Any] | None], fill: float) -> NDArray[Any]:
        """Call `ask` with the usable images and return the answers in the order of X, with `fill` for unusable ones."""
        self._fitted()
        X = list(X)
        with tempfile.TemporaryDirectory(prefix="debgcd-") as folder:
            given = _listed(X, Path(folder))
            usable = prediction.usable_images(given, None)
            answers = ask(usable)
            assert answers is not None
            # match by file, not by name: a file given twice, or through a link, is one manifest row but needs two answers
            place = {_file(path): i for i, path in enumerate(usable.paths)}
            rows = [place.get(_file(path)) for path in (given.paths if _are_arrays(X) else X)]
        result = np.full((len(X), *answers.shape[1:]), fill, dtype=answers.dtype)
        for i, row in enumerate(rows):
            if row is not None:
                result[i] = answers[row]
        if None in rows:
            first = next(entry for entry in usable.skipped if not entry.reason.startswith(Reason.DUPLICATE))
            warnings.warn(
                f"{rows.count(None)} of {len(X)} images cannot be used, e.g. {first.file}: {first.reason}",
                stacklevel=3,
            )
        return result


def _listed(X: Images, folder: Path, y: Iterable[Any] | None = None) -> Manifest:
    """The images as a manifest; arrays are written to `folder` as lossless PNG files."""
    return from_arrays(list(X), y, folder) if _are_arrays(X) else from_paths(X, y)


def _file(path: str | os.PathLike[str]) -> str:
    """The file that a path leads to."""
    try:
        return os.path.realpath(path)
    except ValueError:  # a null byte: no file has such a name
        return os.path.abspath(path)


def _are_arrays(X: Images) -> bool:
    return len(X) > 0 and isinstance(X[0], np.ndarray)
