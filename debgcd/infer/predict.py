"""Categories of new images from a trained model, in parts of bounded memory; on disk, the parts are resumable."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd import __version__
from debgcd.data.fingerprints import file_stamp
from debgcd.data.loader import default_workers, from_files
from debgcd.data.manifest import Manifest, Skipped
from debgcd.data.scan import scan
from debgcd.errors import DataError
from debgcd.infer.infer import features, infer, probabilities
from debgcd.novelty.base import DETECTOR
from debgcd.run import predictions
from debgcd.run.model_folder import Model
from debgcd.run.predictions import Inference, Table, prediction_table
from debgcd.system import distributed
from debgcd.system.files import UNREADABLE, named_errors, read_json, replacing, write_bytes, write_json
from debgcd.system.progress import Report, progress, say
from debgcd.tokens.sources import FreshTokens

STATE = "state.json"
# Images per rank in a part: the most that is in memory, and that a kill can lose. So many in a row are also judged together, so
# that the answers do not depend on the number of ranks.
UNIT = 8192


@dataclass(frozen=True)
class Part:
    """What a model says of some images of a list."""

    start: int
    end: int
    stamps: str  # of the images' files, before they were read
    tables: list[bytes]  # its rows, one text or file per rank
    rows: int
    skipped: list[Skipped]
    answers: dict[str, int]  # see `predictions.tally`


def csv_part(table: Table) -> bytes:
    """Rows as bytes of a part of a CSV file."""
    return predictions.to_csv(table, header=False).encode("utf-8", "backslashreplace")


def predict(
    model: Model,
    manifest: Manifest,
    workers: int | None = None,
    todo: Sequence[tuple[int, int]] | None = None,
    form: Callable[[Table], bytes] = csv_part,
) -> Iterator[Part]:
    """Categories, confidence and novelty of the images of a list in parts of bounded size.

    todo: the ranges of images to do, all by default. Each rank computes rows of its own, and `form` makes bytes of them; only
    rank 0 gets those of all.
    """
    usable, total = 0, len(manifest)
    ranges = [(0, total)] if todo is None else [(start, end) for start, end in todo]
    several = sum(end - start for start, end in ranges) > UNIT * distributed.count()
    with progress("predicting") if several else nullcontext() as report:  # of one part, its own steps are reported
        for done, last in ranges:
            while done < last:
                unit = min(UNIT, -(-(last - done) // distributed.count()))
                end = min(last, done + distributed.count() * unit)
                stamps = stamps_of(manifest, done, end)
                start = min(last, done + distributed.rank() * unit)
                given = replace(manifest, skipped=()).select(np.arange(start, min(last, start + unit)))
                own = usable_images(given, workers)
                inference = ask(model, own, workers) if len(own) else None
                none_p = judged(model, inference, start + _kept(given, own))
                table = None
                if inference is not None:
                    table = prediction_table(own.paths, inference, model.categories, model.novel, none_p)
                tables = distributed.blobs(b"" if table is None else form(table))
                counts = {} if table is None else predictions.tally(table)
                named = [[entry.file, entry.reason] for entry in own.skipped]
                facts = distributed.all_gather([len(own), named, counts])
                rows = sum(count for count, _, _ in facts)
                skipped = [Skipped(*entry) for _, some, _ in facts for entry in some]
                answers = dict(sum((Counter(counts) for _, _, counts in facts), Counter()))
                usable += rows
                if ranges == [(0, total)] and not usable and end == total:
                    raise _unusable(skipped, total)
                yield Part(done, end, stamps, tables, rows, skipped, answers)
                done = end
                if report is not None:
                    report(done, total)


def _kept(given: Manifest, usable: Manifest) -> NDArray[np.int64]:
    """The rows of `given` that are left in `usable`, which has them in the same order."""
    left = iter(enumerate(given.paths))
    return np.array([next(i for i, path in left if path == kept) for kept in usable.paths], dtype=np.int64)


def judged(model: Model, inference: Inference | None, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """The probability that an image is of none of the model's categories; None if the model has no voters to tell.

    rows: where in the whole list the images are: (N,). UNIT images in a row are judged together. All ranks must call it.
    """
    if model.so_far is None:
        return None
    own = np.empty((0, model.so_far.axes.shape[1]), np.float16) if inference is None else inference.points
    points, places = distributed.collect(torch.from_numpy(own)), distributed.collect(torch.from_numpy(rows)).numpy()
    none_p = np.zeros(len(rows), np.float32)
    for block in np.unique(rows // UNIT):
        together = np.flatnonzero(places // UNIT == block)
        found = model.so_far.judge(points[together].to(model.so_far.axes)).none_p.cpu().numpy()
        mine = rows // UNIT == block
        none_p[mine] = found[np.isin(places[together], rows[mine])]
    return none_p


def stamps_of(manifest: Manifest, start: int, end: int) -> str:
    """A hash of the sizes and times of these images' files; another one after a change of any of them."""
    found = hashlib.sha256()
    for path in manifest.paths[start:end]:
        try:
            found.update(json.dumps(file_stamp(path)).encode())
        except DataError:
            found.update(b"gone")
    return found.hexdigest()


class Parts:
    """The table in `out`, CSV or Parquet, written part by part: a command that was stopped continues with what is missing.

    .OUT.partial/{state.json, 000000008192-0, ...} lie beside OUT. The state lists the parts, the hashes of their files and those
    of their images' sizes and times; what does not agree with it any more is computed again. form: makes a part's bytes.
    """

    def __init__(self, out: Path, model: Model, manifest: Manifest):
        self._out = Path(os.path.realpath(out))
        self._folder = self._out.with_name(f".{self._out.name}.partial")
        self._manifest = manifest
        parquet = predictions.is_parquet(out)
        if parquet:
            predictions.pyarrow()  # refused now rather than after the first part
        self.form: Callable[[Table], bytes] = predictions.to_parquet if parquet else csv_part
        self._join = predictions.join_parquet if parquet else predictions.join_csv
        names = hashlib.sha256("\0".join(map(str, manifest.paths)).encode("utf-8", "surrogateescape")).hexdigest()
        said = [category.to_json() for category in model.categories]  # a review may have changed names
        self._facts = {"debgcd": __version__, "model": model.sha256, "images": names, "parquet": parquet}
        parts = b"" if model.parts is None else model.parts.means.numpy().tobytes()
        self._facts["parts"] = hashlib.sha256(parts).hexdigest()
        self._facts["categories"] = hashlib.sha256(json.dumps(said).encode()).hexdigest()
        self._parts: list[KeptPart] = []

    def begin(self) -> list[tuple[int, int]]:
        """The ranges of images that are still to be done."""
        try:
            state = read_json(self._folder / STATE)
            kept = [KeptPart(**part) for part in state["parts"]] if state["facts"] == self._facts else []
        except UNREADABLE:
            kept = []
        self._parts = [part for part in kept if self._is_whole(part) and self._is_current(part)]
        done = sum(part.end - part.start for part in self._parts)
        if len(self._parts) < len(kept):
            say("some of the images, or what was computed for them, have changed since: these are done again")
        if done:
            say(f"{done} images are done already: going on")
        else:
            with named_errors(self._folder):
                shutil.rmtree(self._folder, ignore_errors=True)
                self._out.parent.mkdir(parents=True, exist_ok=True)
        edges = [0, *(edge for part in self._parts for edge in (part.start, part.end)), len(self._manifest)]
        return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]

    def add(self, part: Part) -> None:
        """Keep a part; the state is written last, so that all that it lists is there."""
        self._folder.mkdir(exist_ok=True)
        files = {f"{part.end:012d}-{i}": content for i, content in enumerate(part.tables) if content}
        skipped = json.dumps([asdict(entry) for entry in part.skipped]).encode()
        files[f"{part.end:012d}.skipped.json"] = skipped
        for name, content in files.items():
            write_bytes(self._folder / name, content)
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        self._parts.append(KeptPart(part.start, part.end, part.rows, part.stamps, hashes, part.answers))
        self._parts.sort(key=lambda kept: kept.start)
        write_json(self._folder / STATE, {"facts": self._facts, "parts": [asdict(kept) for kept in self._parts]})

    def finish(self) -> tuple[Counter[str], list[Skipped]]:
        """Join the parts; returns the `tally` of all rows, and what was skipped."""
        damaged = [part for part in self._parts if not self._is_whole(part)]
        if damaged:
            raise DataError(f"{self._folder} was changed while it was in use; repeat the command")
        names = [name for part in self._parts for name in part.files]
        lists = [read_json(self._folder / name) for name in names if name.endswith(".json")]
        with replacing(self._out) as file:
            self._join((self._folder / name for name in names if not name.endswith(".json")), file)
        shutil.rmtree(self._folder, ignore_errors=True)
        answers = sum((Counter(part.answers) for part in self._parts), Counter[str]())
        return answers, [Skipped(**entry) for found in lists for entry in found]

    def _is_whole(self, part: KeptPart) -> bool:
        try:
            found = {name: hashlib.sha256((self._folder / name).read_bytes()).hexdigest() for name in part.files}
        except OSError:
            return False
        return found == part.files

    def _is_current(self, part: KeptPart) -> bool:
        return stamps_of(self._manifest, part.start, part.end) == part.stamps


@dataclass(frozen=True)
class KeptPart:
    """A part on disk, as state.json lists it."""

    start: int
    end: int
    rows: int
    stamps: str
    files: dict[str, str]  # sha256 by name
    answers: dict[str, int]


def _unusable(skipped: Sequence[Skipped], total: int) -> DataError:
    return DataError(f"none of the {total} images can be used, e.g. {skipped[-1].file}: {skipped[-1].reason}")


def tabulate(model: Model, usable: Manifest, workers: int | None = None) -> Table:
    """The columns of predictions.csv of images that are known to be usable; refused if there are none."""
    if not len(usable):
        raise _unusable(usable.skipped, len(usable.skipped))
    inference = ask(model, usable, workers)
    none_p = judged(model, inference, np.arange(len(usable)))
    return prediction_table(usable.paths, inference, model.categories, model.novel, none_p)


def ask(model: Model, usable: Manifest, workers: int | None = None) -> Inference:
    """What the model says of images that are known to be usable."""
    with progress("predicting") as report:
        heads = (*model.method.final_answers, DETECTOR)
        tokens = _tokens(model, usable, workers, report)
        return infer(model.network, model.method, tokens, heads, model.parts, model.so_far)


def ask_all(model: Model, usable: Manifest, workers: int | None = None) -> NDArray[np.float32]:
    """The probability of every category for images that are known to be usable: (N, K)."""
    with progress("predicting") as report:
        return probabilities(model.network, model.method, _tokens(model, usable, workers, report), model.parts)


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
