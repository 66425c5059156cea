"""The run directory: its files, creating it, and opening it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.fingerprints import Contents, unusable_now
from debgcd.data.image.crop import Picture
from debgcd.data.manifest import Manifest, write_manifest, write_skipped
from debgcd.data.sources import read_manifest
from debgcd.errors import DataError, UsageError
from debgcd.methods import origin
from debgcd.review.log import added_batches, carry
from debgcd.run.added import Batch, joined
from debgcd.system import distributed
from debgcd.system.files import lock, read_json, readable, write_json, write_text
from debgcd.system.machine import environment

IMAGES = "images.sha256"  # one line per image, as sha256sum writes them
BEFORE = "before.json"
# The files that `create_run` writes before config.yaml. A folder with only these and the lock counts as new: a run in it was
# refused, or killed before config.yaml was written.
WRITTEN_FIRST = ("manifest.csv", "skipped.csv", "environment.json", IMAGES, BEFORE)
LEFT_OVER = {name for file in WRITTEN_FIRST for name in (file, f".{file}.tmp")} | {".lock"}


@dataclass(frozen=True)
class Run:
    """A run directory with a complete configuration and manifest."""

    folder: Path
    config: Config
    manifest: Manifest
    added: tuple[Batch, ...] = ()  # batches whose images come last in the manifest

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def predictions(self) -> Path:
        return self.folder / "predictions.csv"

    @property
    def start(self) -> Path:
        """Predictions of the frozen answer, written before the first step of a run whose answer is settled."""
        return self.folder / "start.csv"

    @property
    def evaluation(self) -> Path:
        return self.folder / "evaluation.json"

    @property
    def health(self) -> Path:
        return self.folder / "health.json"

    @property
    def estimate(self) -> Path:
        """The estimate of K; not there where K was given."""
        return self.folder / "estimate.json"

    @property
    def before(self) -> Path:
        """Categories and decisions of the reviewed run that this run continues; only such a run has this file."""
        return self.folder / BEFORE

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def digest(self) -> str:
        """A hash of all that a result depends on, to notice an edited config.yaml or manifest.csv; truth is not in it."""
        settings = configuration.to_dict(self.config)
        run_settings = settings.pop("run")
        settings["precision"] = run_settings["precision"]
        if self.config.model_kept == "best-old":
            # decides which epochs can be the best
            settings["eval_every"] = run_settings["eval_every"]
        rows = [[str(path) for path in self.manifest.paths], self.manifest.labels, self.manifest.splits]
        rows += [self.manifest.groups] if any(self.manifest.groups) else []
        rows += [self.before.read_text("utf-8")] if self.before.exists() else []
        return hashlib.sha256(json.dumps([settings, rows]).encode()).hexdigest()

    @property
    def images_digest(self) -> str:
        """A hash of the contents of all images, with those that were added."""
        added = ("\n".join(batch.digests).encode() for batch in self.added)
        parts = ((self.folder / IMAGES).read_bytes(), *added)
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    @property
    def finished(self) -> bool:
        """Whether the run is complete: predictions.csv is the last file that it writes."""
        return self.predictions.exists() and self.model.is_dir()


def require_new(folder: Path) -> None:
    """Refuse a run directory that is not empty, before any work is done, and leave it unchanged.

    `new_run` checks again under a lock: without it another process may start a run in the same folder.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"the run directory {folder} is a file; choose another run directory", setting="out")
    if folder.is_dir():
        _require_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def new_run(folder: Path) -> Iterator[None]:
    """Hold the lock of a new run directory: if several processes start a run in it at once, only one continues.

    The folder is checked under the lock, because before that another process may start or even finish a run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        _require_empty(folder)
        yield


def _require_empty(folder: Path) -> None:
    """Refuse a folder that holds more than LEFT_OVER."""
    if {entry.name for entry in folder.iterdir()} - LEFT_OVER:
        hint = f"; to continue the run in it: debgcd resume {folder}" if (folder / "config.yaml").exists() else ""
        raise UsageError(
            f"the run directory {folder} is not empty; choose another run directory", setting="out", then=hint
        )


def begun_by_launcher(folder: Path) -> bool:
    """Whether an earlier attempt of the same launch began this run: torchrun restarts its processes after a failure."""
    with suppress(OSError, ValueError, AttributeError):
        launch = read_json(folder / "environment.json").get("launch")
        return launch == distributed.launch() is not None and (folder / "config.yaml").is_file()
    return False


def require_apart(folder: Path, source: Path) -> None:
    """Refuse a run directory inside the images' folder: the next run would read its files as images."""
    if source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise UsageError(
            f"the run directory {folder} lies inside the images' folder {source}; choose another run directory",
            setting="out",
        )


def create_run(
    folder: Path, config: Config, manifest: Manifest, contents: Contents, before: dict[str, Any] | None = None
) -> Run:
    """Write the initial files of a run; config.yaml comes last, so a folder that has it has them all.

    before: the content of before.json, for a run that continues a reviewed one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(manifest, folder / "manifest.csv")
    write_skipped(manifest.skipped, folder / "skipped.csv")
    package = origin(config.method)
    write_json(folder / "environment.json", environment() | ({} if package is None else {"method": package}))
    write_text(folder / IMAGES, digest_lines(contents))
    (folder / BEFORE).unlink(missing_ok=True)
    if before is not None:
        write_json(folder / BEFORE, before)
    write_text(folder / "config.yaml", configuration.dump(config))
    return Run(folder, config, manifest)


def digest_lines(contents: Contents) -> str:
    """The content of images.sha256."""
    lines = zip(contents.paths, contents.digests, strict=True)
    return "".join(f"{sha256.hex()}  {_one_line(path)}\n" for path, sha256 in lines)


def open_run(folder: Path) -> Run:
    """Read an existing run directory, without what was added to it."""
    if not (folder / "config.yaml").is_file():
        raise UsageError(f"{folder} is not a run directory: it has no config.yaml; start one with debgcd train")
    try:
        config = configuration.load(folder / "config.yaml")
    except UsageError as error:
        raise DataError(
            f"{error}; the run was made by another version of debgcd, or its config.yaml was edited: train again, or use "
            "the version in environment.json"
        ) from error
    if None in (config.backbone.name, config.backbone.tuned_blocks) or "auto" in (
        config.run.precision,
        config.views.bank,
    ):
        raise DataError(f"{folder / 'config.yaml'} is not complete, as a run writes it; restore it or train again")
    return Run(folder, config, read_manifest(folder / "manifest.csv"))


def finished_run(folder: Path) -> Run:
    """Read a run with what was added to it, refused unless it has finished; its categories.json is brought to what the log says."""
    run = open_run(folder)
    distributed.set_timeout(run.config.run.timeout)
    if not run.finished:
        raise UsageError(f"the run in {folder} has not finished; first: debgcd resume {folder}")
    carry(folder)
    batches = added_batches(folder)
    return replace(run, manifest=joined(run.manifest, batches), added=tuple(batches)) if batches else run


def require_same_images(run: Run, contents: Contents) -> None:
    """Refuse images of a run if their content has changed since it began; their times may have."""
    digests = dict(zip(map(str, run.manifest.paths), read_digests(run), strict=True))
    contents.require_same([digests[str(path)] for path in contents.paths], run.folder / IMAGES)


def unusable_images(run: Run, rows: Iterable[int], cache: Path) -> list[str]:
    """For each of these rows of the manifest why its image cannot be used any more; empty if it is what it was."""
    digests, rows = read_digests(run), list(rows)
    return unusable_now([run.manifest.paths[row] for row in rows], [digests[row] for row in rows], cache)


def read_digests(run: Run) -> list[str]:
    """The sha256 of the file of each image in the manifest, recorded when the run began."""
    path = run.folder / IMAGES
    with readable(path, "restore it, or train in a new run directory"):
        own = path.read_text("utf-8").split("\n")[:-1]
        lines = [line.partition("  ") for line in (*own, *(line for batch in run.added for line in batch.digests))]
    if [name for _, _, name in lines] != [_one_line(image) for image in run.manifest.paths]:
        raise DataError(
            f"{run.folder / 'manifest.csv'} is not what it was when the run began: {path.name} lists other images; restore "
            "it, or train in a new run directory"
        )
    return [sha256 for sha256, _, _ in lines]


def _one_line(path: Picture) -> str:
    """The path as a line of images.sha256; line breaks in it are escaped."""
    return str(path).encode("unicode_escape").decode("ascii") if "\n" in str(path) or "\r" in str(path) else str(path)
