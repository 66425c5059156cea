"""The story of a run: train, resume, evaluate again."""

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
from debgcd.train.evaluation import evaluate, reviewed, unlabelled
from debgcd.train.finish import finish, write_evaluation
from debgcd.train.loop import fit
from debgcd.train.plan import Plan, first_stage, make_plan, plan_of, require_ready, set_k
from debgcd.train.setup import Setup, StartFeatures, centre_tokens, open_tokens, prepare, standardised

FINISHED = "finished"
SEEN = 60.0  # seconds until a file of another machine must be seen


def train(
    manifest: Manifest, config: Config, folder: Path, verify: bool = False, before: ReviewedRun | None = None
) -> Run:
    """Train a new run in `folder`, which is new or empty (`require_new`).

    verify: hash every image, also those whose size, times and inode are unchanged.
    before: the reviewed run that this one continues.
    """
    distributed.set_timeout(config.run.timeout)
    require_ready(manifest, config)
    if distributed.rank():
        return _follow(folder)
    with new_run(folder):
        return train_locked(manifest, config, folder, verify, before)


def train_locked(
    manifest: Manifest, config: Config, folder: Path, verify: bool = False, before: ReviewedRun | None = None
) -> Run:
    """`train` on rank 0, for a caller that has called `require_ready` and holds the run directory's lock (`new_run`)."""
    if verify:
        forget_contents(manifest.paths, cache_folder(config.run.cache))
    manifest = _usable(manifest, config, folder)
    plan = make_plan(config, manifest)
    require_disk_space(plan, folder)
    _print_quality(plan)
    known = None if before is None else before.to_json(manifest)
    return _lead(create_run(folder, plan.config, manifest, _contents(manifest, plan.config), known), plan)


def _usable(manifest: Manifest, config: Config, folder: Path) -> Manifest:
    """The manifest without files that cannot be used, which skipped.csv lists."""
    with progress("reading images") as report:
        usable = scan(manifest, config.run.workers, report)
    if usable.skipped:
        write_skipped(usable.skipped, folder / "skipped.csv")  # now, because what is left may be refused
        say(f"files that cannot be used: {len(usable.skipped)}; {folder / 'skipped.csv'} says why")
    require_ready(usable, config)
    if config.method in (ignored := clashes()):
        say(ignored[config.method])
    for line in lost_classes(manifest, usable):
        say(f"known classes: {line}")
    return usable


def _print_quality(plan: Plan) -> None:
    """Print what the quality chose and what the others would cost; nothing is measured where it chose nothing."""
    if plan.asked.quality is not None and quality_decides(plan.asked):
        say(describe(plan.asked.quality, alternatives(plan, expected_cost(plan))))


def resume(folder: Path, verify: bool = False) -> Run:
    """Continue an interrupted run; a finished one stays as it is. verify: as for `train`."""
    run = open_run(folder)
    distributed.set_timeout(run.config.run.timeout)
    if distributed.from_rank0(lambda: run.finished):
        return run
    if distributed.rank():
        return _follow(folder)
    with lock(folder):
        run = open_run(folder)  # another process may have continued it, even to its end
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
    """Every rank, from the features of the untouched network to predictions.csv. The caller holds the directory's lock."""
    distributed.barrier()  # all have read the run directory, which rank 0 may change from here on
    with _repeatable():
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
    try:
        return set_k(run, standardised(plan.backbone, start()))
    except (UsageError, DataError):
        if distributed.rank() == 0:
            (run.folder / "config.yaml").unlink()  # not begun: the folder is free for a try with a given K
        raise


def _after_first_stage(run: Run) -> Run:
    """The run with its start set: for a method with two stages, the first one runs in the folder `first`."""
    config, method = run.config, METHODS[run.config.method].first
    if method is None or config.start is not None:
        return run
    folder = run.folder / "first"
    say(f"first stage: {method}, in {folder} (start from another run with --start)")
    if distributed.from_rank0((folder / "config.yaml").exists):
        first = resume(folder)
    else:
        if distributed.rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)  # killed before it began
        first = train(run.manifest, first_stage(config, method), folder)
    cache = cache_folder(config.run.cache)
    sha256 = distributed.from_rank0(lambda: load_model(first.model, backbone=None, cache=cache, device="cpu").sha256)
    config = replace(config, start=str(first.model.absolute()), start_sha256=sha256)
    if distributed.rank() == 0:
        write_text(run.folder / "config.yaml", configuration.dump(config))
    return replace(run, config=config)


def _print_ranks(run: Run) -> None:
    """Another number of ranks than the run began with is fine; what changes is printed."""
    with suppress(OSError, ValueError, AttributeError):
        began = read_json(run.folder / "environment.json").get("ranks", 1)
        if began != distributed.count():
            say(
                f"ranks: {distributed.count()}, were {began} when the run began; results agree to rounding, not to the byte"
            )


def _lead(run: Run, plan: Plan) -> Run:
    """Rank 0 has written or opened the run directory; tell the others, and train."""
    distributed.from_rank0(lambda: _digest(run.folder))
    return _fit_and_finish(run, plan)


def _follow(folder: Path) -> Run:
    """Other ranks read rank 0's decisions from the run directory, and check that they see the same images."""
    expected, end = distributed.from_rank0(str), time.monotonic() + SEEN
    if expected == FINISHED:
        return open_run(folder)
    while _digest(folder) != expected:  # a network's disk may take its time
        if time.monotonic() > end:
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
    """A hash of what a run begins with; empty if it is not there."""
    with suppress(FileNotFoundError):
        return hashlib.sha256(b"".join((folder / name).read_bytes() for name in ("config.yaml", IMAGES))).hexdigest()
    return ""


def _contents(manifest: Manifest, config: Config) -> Contents:
    with progress("hashing images") as report:
        return read_contents(manifest.paths, cache_folder(config.run.cache), report)


def evaluate_run(folder: Path) -> dict[str, object]:
    """`debgcd evaluate RUN`: the run's final model against the truth in its manifest, also into evaluation.json."""
    run = finished_run(folder)
    setup = open_setup(run, run.manifest, cache_folder(run.config.run.cache))
    scores = evaluate(run, setup, unlabelled(setup)) | reviewed(run)
    return write_evaluation(run, scores, setup.method.sizes.k)


def open_setup(run: Run, manifest: Manifest, cache: Path) -> Setup:
    """A finished run's network, and the tokens of the training images of `manifest`: the run's, or some of them."""
    model = load_model(run.model, backbone=None, cache=cache, device=run.config.run.device)
    _require_same_settings(run, model)
    tokens = centre_tokens(run.config, manifest, model.network.backbone, cache)
    known, label = len(run.manifest.classes), manifest.training_labels
    held = np.zeros(len(label), dtype=bool)
    return Setup(model.network, model.method, tokens, label, held, known, manifest.training_paths)


def _require_same_settings(run: Run, model: Model) -> None:
    """Refuse a config.yaml that is not what the model was trained with; K may differ, where categories were pruned."""
    mine, other = (configuration.leaves(configuration.to_dict(config)) for config in (run.config, model.config))
    changed = [key for key in mine if key != "k" and not key.startswith("run.") and mine[key] != other.get(key)]
    if changed:
        raise DataError(
            f"{run.folder / 'config.yaml'} is not what the model was trained with: {changed[0]} is {mine[changed[0]]}, was "
            f"{other.get(changed[0])}; restore it"
        )


@contextmanager
def _repeatable() -> Iterator[None]:
    """Algorithms whose results do not depend on timing; the caller's choice comes back afterwards."""
    chosen = torch.get_deterministic_debug_mode()
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode("warn")  # as use_deterministic_algorithms, which also loads torch's compiler
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # finds mistakes; a tenth of a step's time
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(chosen)
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
