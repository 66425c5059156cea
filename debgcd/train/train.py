"""Start, resume and re-evaluate a run."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils import deterministic

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.fingerprints import Contents, forget_contents, read_contents
from debgcd.data.manifest import Manifest, lost_classes, write_skipped
from debgcd.data.scan import scan
from debgcd.errors import DataError, UsageError
from debgcd.methods import METHODS, clashes
from debgcd.run.directory import IMAGES, Run, create_run, finished_run, new_run, open_run, require_same_images
from debgcd.run.model_folder import Model, load_model
from debgcd.system import distributed
from debgcd.system.files import lock, read_json, write_text
from debgcd.system.machine import cache_folder
from debgcd.system.progress import progress, say
from debgcd.train.continue_run import ReviewedRun
from debgcd.train.cost import alternatives, describe, expected_cost, quality_decides
from debgcd.train.disk_space import require_disk_space
from debgcd.train.evaluation import evaluate, evaluate_reviewed, infer_unlabelled
from debgcd.train.finish import finish, write_evaluation
from debgcd.train.loop import fit
from debgcd.train.plan import Plan, first_stage, make_plan, plan_of, require_ready, set_k
from debgcd.train.setup import Setup, StartFeatures, centre_tokens, open_tokens, prepare, standardised

FINISHED = "finished"  # sent to the other ranks instead of a digest when a run is complete
VISIBLE_WITHIN = 60.0  # seconds after which a file that rank 0 wrote must be visible to all ranks


def train(
    manifest: Manifest, config: Config, folder: Path, verify: bool = False, reviewed_run: ReviewedRun | None = None
) -> Run:
    """Train a new run in `folder`, which is new or empty (`require_new`).

    verify: hash every image, also those whose size, times and inode are unchanged.
    reviewed_run: the run that this one continues with its reviewer's decisions.
    """
    distributed.set_timeout(config.run.timeout)
    require_ready(manifest, config)
    if distributed.rank():
        return _follow(folder)
    with new_run(folder):
        return train_locked(manifest, config, folder, verify, reviewed_run)


def train_locked(
    manifest: Manifest, config: Config, folder: Path, verify: bool = False, reviewed_run: ReviewedRun | None = None
) -> Run:
    """`train` on rank 0, for a caller that has called `require_ready` and holds the run directory's lock (`new_run`)."""
    if verify:
        forget_contents(manifest.paths, cache_folder(config.run.cache))
    manifest = _usable(manifest, config, folder)
    plan = make_plan(config, manifest)
    require_disk_space(plan, folder)
    _print_quality(plan)
    before = None if reviewed_run is None else reviewed_run.to_json(manifest)
    return _lead(create_run(folder, plan.config, manifest, _contents(manifest, plan.config), before), plan)


def _usable(manifest: Manifest, config: Config, folder: Path) -> Manifest:
    """The manifest without the files that cannot be used; skipped.csv lists them."""
    with progress("reading images") as report:
        usable = scan(manifest, config.run.workers, report)
    if usable.skipped:
        # written first, because `require_ready` may refuse what is left
        write_skipped(usable.skipped, folder / "skipped.csv")
        say(f"files that cannot be used: {len(usable.skipped)}; {folder / 'skipped.csv'} says why")
    require_ready(usable, config)
    if config.method in (ignored := clashes()):
        say(ignored[config.method])
    for line in lost_classes(manifest, usable):
        say(f"known classes: {line}")
    return usable


def _print_quality(plan: Plan) -> None:
    """Print size, steps and time of each quality; nothing if pixels and steps do not depend on the quality."""
    if plan.asked.quality is not None and quality_decides(plan.asked):
        say(describe(plan.asked.quality, alternatives(plan, expected_cost(plan))))


def resume(folder: Path, verify: bool = False) -> Run:
    """Continue an interrupted run; a finished one is returned unchanged. verify: as for `train`."""
    run = open_run(folder)
    distributed.set_timeout(run.config.run.timeout)
    if distributed.from_rank0(lambda: run.finished):
        return run
    if distributed.rank():
        return _follow(folder)
    with lock(folder):
        # read again under the lock: another process may have continued or finished the run
        run = open_run(folder)
        if run.finished:
            distributed.from_rank0(lambda: FINISHED)
            return run
        if verify:
            forget_contents(run.manifest.paths, cache_folder(run.config.run.cache))
        require_same_images(run, _contents(run.manifest, run.config))
        _print_ranks(run)
        plan = plan_of(run)
        require_disk_space(plan, folder)
        return _lead(run, plan)


def _fit_and_finish(run: Run, plan: Plan) -> Run:
    """All ranks: from the features of the untouched network to predictions.csv. Rank 0 holds the run directory's lock."""
    # rank 0 may change the run directory only after all ranks have read it
    distributed.barrier()
    with _deterministic():
        tokens = open_tokens(run.config, run.manifest, plan.backbone, plan.cache)
        start = StartFeatures(plan.backbone, tokens, run.manifest.training_paths)
        if run.config.k is None:
            run = _with_k(run, plan, start)
        run = _after_first_stage(run)
        setup = prepare(run, plan.backbone, tokens, start)
        hard_labels = fit(run, setup)
        finish(run, setup, hard_labels)
    return run


def _with_k(run: Run, plan: Plan, start: StartFeatures) -> Run:
    """The run with an estimated K. If that fails, config.yaml is deleted, so that the folder can take a new run."""
    try:
        return set_k(run, standardised(plan.backbone, start()))
    except (UsageError, DataError):
        if distributed.rank() == 0:
            (run.folder / "config.yaml").unlink()
        raise


def _after_first_stage(run: Run) -> Run:
    """For a method with two stages, train the first in the folder `first` and return the run set to start from its model."""
    config, method = run.config, METHODS[run.config.method].first
    if method is None or config.start is not None:
        return run
    folder = run.folder / "first"
    say(f"first stage: {method}, in {folder} (start from another run with --start)")
    if distributed.from_rank0((folder / "config.yaml").exists):
        first = resume(folder)
    else:
        if distributed.rank() == 0:
            # a kill before config.yaml was written may have left files
            shutil.rmtree(folder, ignore_errors=True)
        first = train(run.manifest, first_stage(config, method), folder)
    cache = cache_folder(config.run.cache)
    sha256 = distributed.from_rank0(lambda: load_model(first.model, backbone=None, cache=cache, device="cpu").sha256)
    config = replace(config, start=str(first.model.absolute()), start_sha256=sha256)
    if distributed.rank() == 0:
        write_text(run.folder / "config.yaml", configuration.dump(config))
    return replace(run, config=config)


def _print_ranks(run: Run) -> None:
    """Print a note if the number of ranks is not the one the run began with."""
    with suppress(OSError, ValueError, AttributeError):
        ranks = read_json(run.folder / "environment.json").get("ranks", 1)
        if ranks != distributed.count():
            say(
                f"ranks: {distributed.count()}, were {ranks} when the run began; results agree to rounding, not to the byte"
            )


def _lead(run: Run, plan: Plan) -> Run:
    """On rank 0, after it has written or opened the run directory: let the other ranks read it, then train."""
    distributed.from_rank0(lambda: _digest(run.folder))
    return _fit_and_finish(run, plan)


def _follow(folder: Path) -> Run:
    """On the other ranks: read rank 0's decisions from the run directory, check that the images are the same, then train."""
    # a digest from `_lead`, or FINISHED from `resume`
    expected, deadline = distributed.from_rank0(str), time.monotonic() + VISIBLE_WITHIN
    if expected == FINISHED:
        return open_run(folder)
    while _digest(folder) != expected:
        # a network file system shows new files with a delay
        if time.monotonic() > deadline:
            raise DataError(
                f"the files that rank 0 writes to {folder} are not seen here; choose another run directory",
                setting="out",
                then=", on a disk that all ranks share",
            )
        time.sleep(0.1)
    run = open_run(folder)
    distributed.set_timeout(run.config.run.timeout)
    require_same_images(run, _contents(run.manifest, run.config))
    return _fit_and_finish(run, plan_of(run))


def _digest(folder: Path) -> str:
    """A hash of config.yaml and the list of images; empty if one of them does not exist yet."""
    with suppress(FileNotFoundError):
        return hashlib.sha256(b"".join((folder / name).read_bytes() for name in ("config.yaml", IMAGES))).hexdigest()
    return ""


def _contents(manifest: Manifest, config: Config) -> Contents:
    """The content hashes of the images, with a progress bar."""
    with progress("hashing images") as report:
        return read_contents(manifest.paths, cache_folder(config.run.cache), report)


def evaluate_run(folder: Path) -> dict[str, object]:
    """Evaluate a finished run's model against the truth in its manifest; writes and returns evaluation.json.

    Images that were added count only in what a reviewer made of the run: the model of evaluation.json is that before them.
    """
    grown, run = finished_run(folder), open_run(folder)
    setup = open_setup(run, run.manifest, cache_folder(run.config.run.cache))
    scores = evaluate(run, setup, infer_unlabelled(setup)) | evaluate_reviewed(grown)
    return write_evaluation(run, scores, setup.method.sizes.k)


def open_setup(run: Run, manifest: Manifest, cache: Path) -> Setup:
    """A finished run's network, with the tokens of the training images of `manifest`, which is the run's or a part of it."""
    model = load_model(run.model, backbone=None, cache=cache, device=run.config.run.device)
    _require_same_settings(run, model)
    require_same_images(run, read_contents(manifest.paths, cache))
    tokens = centre_tokens(run.config, manifest, model.network.backbone, cache)
    known, label = len(run.manifest.classes), manifest.training_labels
    held_out = np.zeros(len(label), dtype=bool)
    return Setup(model.network, model.method, tokens, label, held_out, known, manifest.training_paths)


def _require_same_settings(run: Run, model: Model) -> None:
    """Refuse a config.yaml that is not what the model was trained with; only K may differ, because pruning lowers it."""
    current, trained = (configuration.leaves(configuration.to_dict(config)) for config in (run.config, model.config))
    changed = [key for key in current if key != "k" and not key.startswith("run.") and current[key] != trained.get(key)]
    if changed:
        raise DataError(
            f"{run.folder / 'config.yaml'} is not what the model was trained with: {changed[0]} is {current[changed[0]]}, was "
            f"{trained.get(changed[0])}; restore it"
        )


@contextmanager
def _deterministic() -> Iterator[None]:
    """Use torch's deterministic algorithms in this context; the caller's setting is restored afterwards."""
    mode = torch.get_deterministic_debug_mode()
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    # the same as use_deterministic_algorithms, which would also load torch's compiler
    torch.set_deterministic_debug_mode("warn")
    # filling memory only helps to find mistakes, and takes a tenth of a step's time
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
