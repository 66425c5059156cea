"""Categories of new images from a trained model, in parts of bounded memory; on disk, the parts are resumable."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from debgcd import __version__
from debgcd.data.loader import default_workers, from_files
from debgcd.data.manifest import Manifest, Skipped
from debgcd.data.scan import scan
from debgcd.errors import DataError, UsageError
from debgcd.infer.infer import features, infer, probabilities
from debgcd.novelty.base import DETECTOR
from debgcd.review.log import carry
from debgcd.run import predictions
from debgcd.run.model_folder import Model, load_model
from debgcd.run.predictions import Inference, Table, prediction_table
from debgcd.system import distributed
from debgcd.system.files import named_errors, read_json, replacing, write_bytes, write_json
from debgcd.system.progress import Report, progress, say
from debgcd.tokens.sources import FreshTokens

STATE = "state.json"
UNIT = 8192  # images per rank in a part: the most that is in memory, and that a kill can lose


def open_model(folder: Path, cache: Path, backbone: str | None = None) -> Model:
    """The model of a run directory, or a model folder itself."""
    inner = folder / "model"
    if not inner.is_dir() and not (folder / "config.json").is_file():
        hint = f"the run has not finished; first: debgcd resume {folder}" if (folder / "config.yaml").is_file() else ""
        raise UsageError(f"{folder} holds no model: {hint or 'give a finished run, or its model folder'}")
    carry(folder)
    return load_model(inner if inner.is_dir() else folder, backbone=backbone, cache=cache)


@dataclass(frozen=True)
class Part:
    """What a model says of the next images of a list."""

    end: int  # how many images of the list are done with this part
    tables: list[bytes]  # its rows, one text or file per rank
    rows: int
    skipped: list[Skipped]


def csv_part(table: Table) -> bytes:
    """Rows as bytes of a part of a CSV file."""
    return predictions.to_csv(table, header=False).encode("utf-8", "backslashreplace")


def predict(
    model: Model,
    manifest: Manifest,
    workers: int | None = None,
    done: int = 0,
    form: Callable[[Table], bytes] = csv_part,
) -> Iterator[Part]:
    """Categories, confidence and novelty of the images of a list from number `done` on, in parts of bounded size.

    Each rank computes rows of its own, and `form` makes bytes of them; only rank 0 gets those of all.
    """
    begun, usable, total = done, 0, len(manifest)
    several = total - done > UNIT * distributed.count()
    with progress("predicting") if several else nullcontext() as report:  # of one part, its own steps are reported
        while done < total:
            unit = min(UNIT, -(-(total - done) // distributed.count()))
            start = min(total, done + distributed.rank() * unit)
            own = replace(manifest, skipped=()).select(np.arange(start, min(total, start + unit)))
            own = usable_images(own, workers)
            tables = distributed.blobs(form(tabulate(model, own, workers)) if len(own) else b"")
            facts = distributed.all_gather([len(own), [[entry.file, entry.reason] for entry in own.skipped]])
            rows, skipped = sum(count for count, _ in facts), [Skipped(*entry) for _, some in facts for entry in some]
            done, usable = min(total, done + distributed.count() * unit), usable + rows
            if not begun and not usable and done == total:
                raise _unusable(skipped, total)
            yield Part(done, tables, rows, skipped)
            if report is not None:
                report(done, total)


class Parts:
    """The table in `out`, CSV or Parquet, written part by part: a command that was stopped continues with the next part.

    .OUT.partial/{state.json, 000000008192-0, ...} lie beside OUT. Each part is whole; the state lists those that exist.
    form: makes a part's bytes.
    """

    def __init__(self, out: Path, model: Model, manifest: Manifest):
        self._out = Path(os.path.realpath(out))
        self._folder = self._out.with_name(f".{self._out.name}.partial")
        parquet = predictions.is_parquet(out)
        if parquet:
            predictions.pyarrow()  # refused now rather than after the first part
        self.form: Callable[[Table], bytes] = predictions.to_parquet if parquet else csv_part
        self._join = predictions.join_parquet if parquet else predictions.join_csv
        names = hashlib.sha256("\0".join(map(str, manifest.paths)).encode("utf-8", "surrogateescape")).hexdigest()
        said = [category.to_json() for category in model.categories]  # a review may have changed names
        self._facts = {"debgcd": __version__, "model": model.sha256, "images": names, "parquet": parquet}
        self._facts["categories"] = hashlib.sha256(json.dumps(said).encode()).hexdigest()
        self._done, self._rows = 0, 0
        self._parts: list[str] = []

    def begin(self) -> int:
        """How many images an earlier command has done."""
        try:
            state = read_json(self._folder / STATE)
            if state["facts"] == self._facts:
                self._done, self._rows, self._parts = int(state["done"]), int(state["rows"]), list(state["parts"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if self._done:
            say(f"{self._done} images are done already: going on")
            return self._done
        with named_errors(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._out.parent.mkdir(parents=True, exist_ok=True)
        return 0

    def add(self, part: Part) -> None:
        """Keep a part; the state is written last, so that all that it counts is there."""
        self._folder.mkdir(exist_ok=True)
        for i, content in enumerate(part.tables):
            if content:
                self._parts.append(f"{part.end:012d}-{i}")
                write_bytes(self._folder / self._parts[-1], content)
        write_json(self._folder / f"{part.end:012d}.skipped.json", [asdict(entry) for entry in part.skipped])
        self._done, self._rows = part.end, self._rows + part.rows
        state = {"facts": self._facts, "done": self._done, "rows": self._rows, "parts": self._parts}
        write_json(self._folder / STATE, state)

    def finish(self) -> tuple[int, list[Skipped]]:
        """Join the parts; returns how many rows there are, and what was skipped."""
        skipped = [
            Skipped(**entry) for path in sorted(self._folder.glob("*.skipped.json")) for entry in read_json(path)
        ]
        with replacing(self._out) as file:
            self._join((self._folder / name for name in self._parts), file)
        shutil.rmtree(self._folder, ignore_errors=True)
        return self._rows, skipped


def _unusable(skipped: Sequence[Skipped], total: int) -> DataError:
    return DataError(f"none of the {total} images can be used, e.g. {skipped[-1].file}: {skipped[-1].reason}")


def tabulate(model: Model, usable: Manifest, workers: int | None = None) -> Table:
    """The columns of predictions.csv of images that are known to be usable; refused if there are none."""
    if not len(usable):
        raise _unusable(usable.skipped, len(usable.skipped))
    return prediction_table(usable.paths, ask(model, usable, workers), model.categories, model.novel)


def ask(model: Model, usable: Manifest, workers: int | None = None) -> Inference:
    """What the model says of images that are known to be usable."""
    with progress("predicting") as report:
        return infer(
            model.network,
            model.method,
            _tokens(model, usable, workers, report),
            heads=(*model.method.final_answers, DETECTOR),
        )


def ask_all(model: Model, usable: Manifest, workers: int | None = None) -> NDArray[np.float32]:
    """The probability of every category for images that are known to be usable: (N, K)."""
    with progress("predicting") as report:
        return probabilities(model.network, model.method, _tokens(model, usable, workers, report))


def embed(model: Model, usable: Manifest, workers: int | None = None) -> Tensor:
    """The features of images that are known to be usable: (N, width)."""
    with progress("computing features") as report:
        return features(model.network, _tokens(model, usable, workers, report))


def usable_images(manifest: Manifest, workers: int | None) -> Manifest:
    """The manifest without what cannot be decoded."""
    with progress("reading images") as report:
        return scan(manifest, workers, report)


def _tokens(model: Model, usable: Manifest, workers: int | None, report: Report) -> Iterator[Tensor]:
    workers = default_workers() if workers is None else workers
    # the model of a benchmark may have been trained without turning images upright
    images = from_files(usable.paths, replace(model.config.views, upright=True))
    source = FreshTokens(model.network.backbone, images, model.config.seed, workers)
    done = 0
    for tokens in source.centre(np.arange(len(usable))):
        yield tokens
        done += len(tokens)
        report(done, len(usable))
