"""Category discovery with scikit-learn's interface: fit, predict, transform."""

from __future__ import annotations

import html
import operator
import os
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError

from debgcd import config as configuration
from debgcd.config.schema import Config, k_values
from debgcd.data.image.decode import Reason
from debgcd.data.manifest import Manifest, from_arrays, from_paths, label_text
from debgcd.data.python_inputs import given_column, given_images, labels_of_frame
from debgcd.errors import UsageError
from debgcd.grow.add import add
from debgcd.grow.splits import carry_splits, open_model
from debgcd.infer import predict as prediction
from debgcd.report.inline import Page, gallery
from debgcd.report.page import write_report
from debgcd.review.log import Log, changed, outcome
from debgcd.run.categories import Category, find, merged_numbers
from debgcd.run.directory import Run, finished_run, new_run, require_new
from debgcd.run.hub import pull
from debgcd.run.model_folder import LABELS, Label, Model, save_model
from debgcd.run.parts_file import read_parts, write_parts
from debgcd.run.predictions import COLUMNS, Prediction, rows_of
from debgcd.system.files import write_json
from debgcd.system.machine import cache_folder, optional
from debgcd.system.progress import speaking
from debgcd.train.plan import choose_preset, require_ready
from debgcd.train.train import train_locked

SHOWN = 10  # names of categories, in a line of text
Images = Sequence[Any] | NDArray[Any]  # see `Discoverer`


class NotFitted(UsageError, NotFittedError):
    """A Discoverer was asked before it had a model; scikit-learn's tools catch its own class."""


class Discoverer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Assigns every image to a known class or a newly discovered category.

    X is a list or column of images of one kind: paths, arrays (H, W), (H, W, 3) or (H, W, 4), PIL images, or tensors
    (H, W), (3, H, W) or (H, W, 3); values are uint8 or floats in 0..1. In `y`, -1, None and NaN mean unlabelled.
    X may be a data frame with a column `path`; without `y`, its columns `label` and, if there, `group` are taken.
    Categories are numbers: the known classes are 0..M-1, sorted as strings, followed by the discovered categories.
    `classes_` has the label of each category, as given in `y` or "new-01", ...; `categories_` describes each one. A file
    that cannot be used gets category -1 and a warning.

    >>> discoverer = Discoverer(k=10, seed=0).fit(paths, y)      # doctest: +SKIP
    >>> discoverer.predict_labels(new)                           # doctest: +SKIP
    array([7, 'new-03'], dtype=object)

    k: total number of categories, known and new (None or "auto": estimated; "2x": twice the estimate). preset: None picks
    the one that suits the data. quality: "fast", "balanced" (None) or "best", how much time the preset small takes.
    backbone: "dino" or "dinov2" (the paper's two, with 224 px views), "lite0", "lite1", "lite2", a hub id, a folder or a
    .pth file. run: run directory to keep (None: a temporary one). overrides: configuration values, e.g.
    {"schedule": {"steps": 100}}. verbose: show progress and decisions on standard error or, in a notebook, under the cell.
    """

    def __init__(
        self,
        k: int | str | None = None,
        *,
        method: str = "debgcd",
        preset: str | None = None,
        quality: str | None = None,
        backbone: str | os.PathLike[str] | None = None,
        seed: int = 0,
        run: str | os.PathLike[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        verbose: bool = True,
    ):
        self.verbose = verbose
        self.k, self.method, self.preset, self.quality, self.seed = k, method, preset, quality, seed
        self.backbone, self.run, self.cache, self.overrides = backbone, run, cache, overrides

    def fit(self, X: Images, y: Iterable[Any] | None = None, groups: Iterable[Any] | None = None) -> Discoverer:
        """Train on labelled and unlabelled images; sets `labels_`, the category of each image.

        groups: images of one scene, such as a burst, have the same entry; None, NaN or "" means none.
        """
        _require_own_threads()
        if y is None:
            y, groups = labels_of_frame(X, groups)
        X, y = given_images(X), given_column("y", y)
        groups = None if groups is None else given_column("groups", groups)
        if self.run is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="debgcd-")  # deleted together with this object
        folder = Path(self._temporary.name) / "run" if self.run is None else Path(self.run)
        require_new(folder)
        with speaking(self.verbose), new_run(folder):  # held before arrays are written into it
            given = _listed(X, folder / "images", y, groups)
            require_ready(given, config := self._config(given))
            self.run_ = train_locked(given, config, folder)
        self._folder: Path | None = folder
        model = open_model(folder, cache_folder(self.cache))
        labels = _labels(y, [category.id for category in model.categories if category.known])
        if labels is not None:
            write_json(self.run_.model / LABELS, labels)
        self._model = replace(model, labels=labels)
        self.labels_ = self.predict(X)
        return self

    def fit_predict(
        self, X: Images, y: Iterable[Any] | None = None, groups: Iterable[Any] | None = None
    ) -> NDArray[np.int64]:
        """`fit`, then the category of each of its images: (N,)."""
        return self.fit(X, y, groups).labels_

    def _config(self, given: Manifest) -> Config:
        fixed = {**_k_values(self.k), "method": self.method, "seed": _whole("seed", self.seed)}
        overrides = {} if self.overrides is None else self.overrides
        if not isinstance(overrides, Mapping):
            raise UsageError(f"overrides must be a mapping of configuration values, not {overrides!r:.80}")
        section = overrides.get("backbone")
        twice = {"k", "method", "preset", "quality", "seed"} & set(overrides)
        if self.backbone is not None and isinstance(section, Mapping) and "name" in section:
            twice.add("backbone")
        for name in sorted(twice):
            raise UsageError(f"Discoverer: give {name} as an argument of its own, not in overrides")
        backbone = None if self.backbone is None else os.fspath(self.backbone)
        preset = self.preset or choose_preset(given, self.quality)
        config = configuration.compose(preset, None, backbone, method=self.method, quality=self.quality)
        changes: list[Mapping[str, Any]] = [] if self.cache is None else [{"run": {"cache": os.fspath(self.cache)}}]
        return configuration.override_all(config, [(each, "Discoverer") for each in (*changes, overrides, fixed)])

    def partial_fit(self, X: Images) -> Discoverer:
        """Add images to the run without training, as `debgcd add` does; sets `labels_`, the category of each of them.

        What was assigned before does not change; what fits no category becomes new ones. It needs the run, not a model alone.
        """
        self._fitted()
        _require_own_threads()
        if self._folder is None:
            raise UsageError("partial_fit needs its run, and this is a model alone; load the run's folder")
        X = given_images(X)
        cache = cache_folder(self.cache)
        place = self._folder / "images" / f"added-{uuid.uuid4().hex[:8]}"
        with speaking(self.verbose):
            add(self._folder, _listed(X, place), cache)
        self._model = replace(open_model(self._folder, cache), labels=self._fitted().labels)
        self.labels_ = self.predict(X)
        return self

    def predict(self, X: Images) -> NDArray[np.int64]:
        """The category of each image, (N,); -1 for a file that cannot be used."""
        now = np.array(merged_numbers(self.categories_))
        return self._each(X, lambda usable: now[prediction.ask(self._fitted(), usable).category], fill=-1)

    def predict_labels(self, X: Images) -> NDArray[Any]:
        """The label of each image as in `classes_`, (N,); None for a file that cannot be used.

        The array's type is that of the labels if they have one type in common, otherwise object.
        """
        classes = [*self.classes_.tolist(), None]
        return _array([classes[category] for category in self.predict(X)])  # -1 is the last

    def predict_proba(self, X: Images) -> NDArray[np.float32]:
        """The probability of each category, (N, K); NaN for a file that cannot be used.

        One that was merged into another has none: the other has both.
        """
        now = np.eye(len(self.categories_), dtype=np.float32)[merged_numbers(self.categories_)]
        return self._each(X, lambda usable: prediction.ask_all(self._fitted(), usable) @ now, fill=np.nan)

    def transform(self, X: Images) -> NDArray[np.float32]:
        """The feature of each image, (N, width); NaN for a file that cannot be used."""
        return self._each(X, lambda usable: prediction.embed(self._fitted(), usable).cpu().numpy(), fill=np.nan)

    def novelty(self, X: Images) -> NDArray[np.float32]:
        """The novelty of each image in 0..1, (N,): near 1 if no known class fits; NaN for a file that cannot be used."""
        model = self._fitted()
        if "detector" not in model.network.heads:
            raise UsageError(f"the method {model.config.method} has no novelty detector; use method='debgcd'")
        return self._each(X, lambda usable: prediction.ask(model, usable).novelty, fill=np.nan)

    def table(self, X: Images) -> list[Prediction]:
        """One row per usable image with the columns of predictions.csv, ready for a data frame; None where it is empty."""
        _require_own_threads()
        with tempfile.TemporaryDirectory(prefix="debgcd-") as folder, speaking(self.verbose):
            usable = prediction.usable_images(_listed(given_images(X), Path(folder)), None)
            return rows_of(prediction.tabulate(self._fitted(), usable))

    def frame(self, X: Images) -> Any:
        """The same columns as a pandas data frame: a row per image of X, in its order and with its index if it has one.

        A file that cannot be used has an empty row.
        """
        pandas = optional("pandas", None, "a data frame")
        ask = lambda usable: np.array(rows_of(prediction.tabulate(self._fitted(), usable)), object)  # noqa: E731
        rows = self._each(X, ask, fill=None)
        index = getattr(X, "index", None) if hasattr(X, "iloc") else None
        return pandas.DataFrame([row or {} for row in rows], columns=list(COLUMNS), index=index)

    def report(self) -> Page:
        """Write the report of the run (RUN/report.html); in a notebook it is shown under the cell."""
        run = self._own_run("a report")
        with speaking(self.verbose):
            write_report(run, run.report, cache_folder(self.cache or run.config.run.cache))
        return Page(run.report)

    @property
    def classes_(self) -> NDArray[Any]:
        """The label of each category, (K,): its name if it was renamed, else the known class as given in `y`, or the id."""
        model = self._fitted()
        ids: list[Any] = [category.id for category in model.categories]
        labels = ids if model.labels is None else [*model.labels, *ids[len(model.labels) :]]
        return _array([each.name if each.name != each.id else labels[each.category] for each in model.categories])

    @property
    def categories_(self) -> list[Category]:
        """All categories: number, id, name, whether known or discovered, and the id of the one that it was merged into."""
        return self._fitted().categories

    def rename(self, category: int | str, name: str) -> Discoverer:
        """Give a category, by its number, id or name, a name; "" takes it away. The id stays."""
        return self._act({"act": "name", "category": find(self.categories_, category), "name": name})

    def merge(self, categories: Sequence[int | str], into: int | str | None = None) -> Discoverer:
        """Make several categories one: the one that `into` names, or the first, lives on, and the others are part of it."""
        ids = [find(self.categories_, category) for category in (categories if into is None else [into, *categories])]
        return self._act({"act": "merge", "categories": ids, "into": next(iter(ids), "")})

    def _act(self, values: Mapping[str, Any]) -> Discoverer:
        """Save an act of review in the log of the run, if there is one, and change the categories by it."""
        model = self._fitted()
        if self._folder is None:
            found, parts = changed(model.categories, values), model.parts
        else:
            with Log(self._folder) as log:
                log.act(values)
                found = outcome(log.review)
            carry_splits(self._folder, cache_folder(self.cache))
            parts = read_parts(self._folder / "model", found, model.network.backbone.width)
        self._model = replace(model, categories=found, parts=parts)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model folder that `debgcd predict` and `Discoverer.load` can read."""
        model, folder = self._fitted(), Path(path)
        require_new(folder)
        state = model.network.state()
        save_model(
            folder,
            state,
            model.config,
            model.categories,
            model.images,
            model.labels,
            model.novel,
            so_far=model.so_far,
        )
        if model.parts is not None:
            ids = [category.id for category in model.categories]
            of, to = ([ids[number] for number in numbers] for numbers in (model.parts.of, model.parts.to))
            write_parts(folder, of, to, model.parts.means)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backbone: str | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> Discoverer:
        """A fitted Discoverer from a model folder or a run directory."""
        _require_own_threads()
        model = open_model(Path(path), cache_folder(cache), backbone)
        config = model.config
        found = cls(
            config.k,
            method=config.method,
            preset=config.preset,
            quality=config.quality,
            seed=config.seed,
            backbone=backbone,
            cache=cache,
        )
        found._model = model
        found._folder = Path(path) if (Path(path) / "predictions.csv").is_file() else None  # of a run, or a model alone
        return found

    @classmethod
    def from_pretrained(
        cls, name: str, *, revision: str | None = None, cache: str | os.PathLike[str] | None = None
    ) -> Discoverer:
        """A fitted Discoverer from a model folder, or from a model that `debgcd push` put on the hub as USER/NAME.

        revision: a branch, a tag or, so that the model can never change, a commit.
        """
        if Path(name).is_dir():
            return cls.load(name, cache=cache)
        return cls.load(pull(name, revision=revision, cache=cache_folder(cache)), cache=cache)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        said = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "_model"):
            return said
        living = [one for one in self.categories_ if one.merged_into is None]
        sides = []
        for known, what in ((True, "known"), (False, "new")):
            names = [one.name for one in living if one.known is known]
            more = ", ..." if len(names) > SHOWN else ""
            sides.append(f"{len(names)} {what} ({', '.join(names[:SHOWN])}{more})")
        return f"{said}\n{len(living)} categories: {', '.join(sides)}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """In a notebook: the categories with their most certain images, if the run is there; else as scikit-learn shows it."""
        shown: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if getattr(self, "_folder", None) is not None:
            run = self._own_run("a gallery")
            text = f"<pre>{html.escape(repr(self))}</pre>"
            shown["text/html"] = text + gallery(run, cache_folder(self.cache or run.config.run.cache))
        return shown

    def _own_run(self, what: str) -> Run:
        self._fitted()
        if self._folder is None:
            raise UsageError(f"{what} needs a run, and this is a model without one; load the run directory instead")
        return finished_run(self._folder)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array, tags.input_tags.string = False, True, True
        tags.target_tags.required = True
        tags.no_validation = True  # a list of paths has no columns to count
        assert tags.transformer_tags is not None
        tags.transformer_tags.preserves_dtype = []  # features are 32-bit floats, whatever the images are
        return tags

    @property
    def _n_features_out(self) -> int:
        return self._fitted().network.backbone.width

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    def _fitted(self) -> Model:
        if not hasattr(self, "_model"):
            raise NotFitted("this Discoverer has no model yet; call fit or Discoverer.load")
        return self._model

    def _each(self, X: Images, ask: Callable[[Manifest], NDArray[Any] | None], fill: float | None) -> NDArray[Any]:
        """Call `ask` with the usable images and return the answers in the order of X, with `fill` for unusable ones."""
        self._fitted()
        _require_own_threads()
        X = given_images(X)
        with tempfile.TemporaryDirectory(prefix="debgcd-") as folder, speaking(self.verbose):
            given = _listed(X, Path(folder))
            usable = prediction.usable_images(given, None)
            answers = ask(usable)
            assert answers is not None
            # match by file, not by name: a file given twice, or through a link, is one manifest row but needs two answers
            place = {_file(path): i for i, path in enumerate(usable.paths)}
            files: Iterable[Any] = given.paths if _are_arrays(X) else X
            rows = [place.get(_file(path)) for path in files]
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


_worked_in: int | None = None  # the process that was the first to compute something here


def _require_own_threads() -> None:
    """Refuse to compute in a fork of a process that has computed: PyTorch would wait for threads that the fork has not."""
    global _worked_in
    _worked_in = _worked_in or os.getpid()
    if _worked_in != os.getpid() and torch.get_num_threads() > 1:
        raise UsageError(
            "this process is a fork of one that has used a Discoverer, where PyTorch would wait for ever; start it with "
            "multiprocessing's spawn instead, or call torch.set_num_threads(1) before the fork"
        )


def _listed(X: Images, folder: Path, y: Iterable[Any] | None = None, groups: Iterable[Any] | None = None) -> Manifest:
    """The images as a manifest; arrays are written to `folder` as lossless PNG files."""
    return from_arrays(list(X), y, folder, groups=groups) if _are_arrays(X) else from_paths(X, y, groups=groups)


def _k_values(k: int | str | None) -> dict[str, Any]:
    if isinstance(k, str):
        if (found := k_values(k)) is None:
            raise UsageError(f"k must be a whole number, 'auto', or a factor such as '2x', not {k!r:.80}")
        return found
    return {"k": None if k is None else _whole("k", k)}


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise UsageError(f"{name} must be a whole number, not {value!r:.80}") from error


def _labels(y: Iterable[Any], ids: list[str]) -> tuple[Label, ...] | None:
    """The label in y of each known class, None if all are the ids; of labels with the same text, the first counts."""
    found: dict[str | None, Any] = {}
    for label in y:
        found.setdefault(label_text(label), label.item() if hasattr(label, "item") else label)
    numbers = {name: label for name, label in found.items() if type(label) in (int, float, bool) and np.isfinite(label)}
    labels = [numbers.get(name, name) for name in ids]
    return None if labels == ids else tuple(labels)


def _array(values: list[Any]) -> NDArray[Any]:
    """One-dimensional, of the values' common type if they have one, otherwise of objects."""
    if len({type(value) for value in values}) == 1 and isinstance(values[0], int | float | bool | str):
        return np.array(values)
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _file(path: str | os.PathLike[str]) -> str:
    """The file that a path leads to."""
    try:
        return os.path.realpath(path)
    except ValueError:  # a null byte: no file has such a name
        return os.path.abspath(path)


def _are_arrays(X: Images) -> bool:
    return len(X) > 0 and isinstance(X[0], np.ndarray)
