"""How a run begins, how it goes on, and how it is measured again."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from torch.utils import deterministic

from debgcd import config as configuration
from debgcd.config.schema import Config
from debgcd.data.fingerprints import Contents, forget_contents, read_contents
from debgcd.data.manifest import Manifest, lost_classes, require_trainable, write_skipped
from debgcd.data.scan import scan
from debgcd.errors import DataError, UsageError
from debgcd.methods import METHODS, clashes, require_method, require_package
from debgcd.methods.base import FirstStage
from debgcd.model.backbone import Backbone, pick_device
from debgcd.run.directory import IMAGES, Run, finished_run, new_run, open_run, require_same_images
from debgcd.run.directory import create as create_run
from debgcd.run.model_folder import Model, load_model
from debgcd.system import distributed
from debgcd.system.files import lock, read_json, write_text
from debgcd.system.machine import cache_folder
from debgcd.system.progress import progress, say
from debgcd.train.continue_run import Before
from debgcd.train.decide import decide, decide_k, run_backbone
from debgcd.train.disk_space import require_room
from debgcd.train.evaluation import evaluate, reviewed, unlabelled
from debgcd.train.finish import finish, write_evaluation
from debgcd.train.loop import fit
from debgcd.train.quality import Cost, decides, expected, levels, told
from debgcd.train.setup import Setup, StartFeatures, centre_tokens, open_tokens, prepare

FINISHED = "finished"
SEEN = 60.0  # seconds until a file of another machine must be seen


def begin(manifest: Manifest, config: Config, folder: Path, verify: bool = False, before: Before | None = None) -> Run:
    """Decide what is open, write the run directory (new, see `require_new` and `new_run`), train to the end.

    verify: hash every image, also those whose size, times and inode say that they are as they were.
    before: the reviewed run that this one goes on from.
    """
    distributed.set_timeout(config.run.timeout)
    require_ready(manifest, config)
    if distributed.rank():
        return _follow(folder)
    with new_run(folder):
        return begin_locked(manifest, config, folder, verify, before)


def begin_locked(
    manifest: Manifest, config: Config, folder: Path, verify: bool = False, before: Before | None = None
) -> Run:
    """As `begin` without ranks, for a caller that has called `require_ready` and holds the run directory's lock (`new_run`)."""
    if verify:
        forget_contents(manifest.paths, cache_folder(config.run.cache))
    listed = manifest
    with progress("reading images") as report:
        manifest = scan(manifest, config.run.workers, report)
    if manifest.skipped:
        write_skipped(manifest.skipped, folder / "skipped.csv")  # now, because what is left may be refused
        say(f"files that cannot be used: {len(manifest.skipped)}; {folder / 'skipped.csv'} says why")
    require_ready(manifest, config)
    if config.method in (found := clashes()):
        say(found[config.method])
    for line in lost_classes(listed, manifest):
        say(f"known classes: {line}")
    asked = config
    config, backbone = decide(asked, manifest)
    require_room(config, manifest, backbone, folder)
    _tell_quality(asked, config, backbone, manifest)
    known = None if before is None else before.to_json(manifest)
    return _lead(create_run(folder, config, manifest, _contents(manifest, config), known), backbone)


def _tell_quality(asked: Config, config: Config, backbone: Backbone, manifest: Manifest) -> None:
    """Say what the quality chose and what the others would cost; nothing is measured where it chose nothing."""
    if asked.quality is not None and decides(asked):
        cost, _ = whole_cost(config, backbone, manifest)
        say(told(asked.quality, levels(asked, config, manifest.training_paths, cost)))


def whole_cost(config: Config, backbone: Backbone, manifest: Manifest) -> tuple[Cost, tuple[Config, Backbone] | None]:
    """What a run would take, its first stage included; and that one's configuration and backbone, None where there is none."""
    cost, first = expected(config, backbone, manifest), METHODS[config.method].first
    if first is None or config.start is not None:
        return cost, None
    with redirect_stderr(StringIO()):  # it says what it decides when it begins
        own, plain = decide(first_config(config, first), manifest)
    return replace(cost, before=expected(own, plain, manifest).seconds), (own, plain)


def require_ready(manifest: Manifest, config: Config) -> None:
    """Refuse what cannot be trained, before any work is done."""
    require_method(config.method)
    require_package(config.method)
    pick_device(config.run.device)
    require_trainable(manifest, config.k)


def resume(folder: Path, verify: bool = False) -> Run:
    """Go on where the run stands; a finished run stays as it is. verify: as for `begin`."""
    run = open_run(folder)
    distributed.set_timeout(run.config.run.timeout)
    if distributed.from_rank0(lambda: run.finished):
        return run
    if distributed.rank():
        return _follow(folder)
    with lock(folder):
        run = open_run(folder)  # another process may have gone on with it, even to its end
        if run.finished:
            distributed.from_rank0(lambda: FINISHED)
            return run
        if verify:
            forget_contents(run.manifest.paths, cache_folder(run.config.run.cache))
        require_same_images(run, _contents(run.manifest, run.config))
        _say_ranks(run)
        backbone = run_backbone(run)
        require_room(run.config, run.manifest, backbone, folder)
        return _lead(run, backbone)


def _say_ranks(run: Run) -> None:
    """Another number of ranks than the run began with is fine; what changes is said."""
    with suppress(OSError, ValueError, AttributeError):
        began = read_json(run.folder / "environment.json").get("ranks", 1)
        if began != distributed.count():
            say(
                f"ranks: {distributed.count()}, were {began} when the run began; results agree to rounding, not to the byte"
            )


def _lead(run: Run, backbone: Backbone) -> Run:
    """Rank 0 has written or opened the run directory; tell the others, and train."""
    distributed.from_rank0(lambda: _digest(run.folder))
    return _to_the_end(run, backbone)


def _follow(folder: Path) -> Run:
    """Other ranks read from the run directory what rank 0 decided, and look whether they see the same images."""
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
    return _to_the_end(run, run_backbone(run))


def _digest(folder: Path) -> str:
    """Of what a run begins with; of nothing if it is not there."""
    with suppress(FileNotFoundError):
        return hashlib.sha256(b"".join((folder / name).read_bytes() for name in ("config.yaml", IMAGES))).hexdigest()
    return ""


def _contents(manifest: Manifest, config: Config) -> Contents:
    with progress("hashing images") as report:
        return read_contents(manifest.paths, cache_folder(config.run.cache), report)


def measure(folder: Path) -> dict[str, object]:
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


def _to_the_end(run: Run, backbone: Backbone) -> Run:
    """Train; the caller holds the run directory's lock. It cannot be taken twice: leaving the inner one would free both."""
    distributed.barrier()  # all have read the run directory, which rank 0 may change from here on
    with _repeatable():
        tokens = open_tokens(run.config, run.manifest, backbone, cache_folder(run.config.run.cache))
        start = StartFeatures(backbone, tokens, run.manifest.training_paths)
        if run.config.k is None:
            try:
                run = decide_k(run, backbone, start)
            except (UsageError, DataError):
                if distributed.rank() == 0:
                    (run.folder / "config.yaml").unlink()  # not begun: the folder is free for a try with a given K
                raise
        run = _after_first_stage(run)
        setup = prepare(run, backbone, tokens, start)
        finish(run, setup, fit(run, setup))
    return run


def _after_first_stage(run: Run) -> Run:
    """The run with its start decided: of a method with two stages, the first one runs in the folder `first`."""
    config, first = run.config, METHODS[run.config.method].first
    if first is None or config.start is not None:
        return run
    folder = run.folder / "first"
    say(f"first stage: {first}, in {folder} (start from another run with --start)")
    if distributed.from_rank0((folder / "config.yaml").exists):
        done = resume(folder)
    else:
        if distributed.rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)  # killed before it began
        done = begin(run.manifest, first_config(config, first), folder)
    cache = cache_folder(config.run.cache)
    sha256 = distributed.from_rank0(lambda: load_model(done.model, backbone=None, cache=cache, device="cpu").sha256)
    config = replace(config, start=str(done.model.absolute()), start_sha256=sha256)
    if distributed.rank() == 0:
        write_text(run.folder / "config.yaml", configuration.dump(config))
    return replace(run, config=config)


def first_config(config: Config, first: str) -> Config:
    """The first stage's configuration: that of the second, but for what belongs to one of the two methods alone.

    Values that the package sets for either method, such as its published rate, stay with that method; so do the extras.
    """
    dropped = configuration.own_keys(config.method) | configuration.own_keys(first)
    dropped |= {"method", "preset", "model_kept", "start", "start_sha256", "extras"}
    values = configuration.without(configuration.to_dict(config), dropped)
    given: FirstStage = config.options.first
    alike = given.steps is None and given.epochs is None
    steps = config.schedule.steps if alike else given.steps
    if alike and isinstance(steps, int):
        steps = max(1, round(given.times * steps))
    values["schedule"] |= {"steps": steps, "epochs": given.epochs or config.schedule.epochs}
    values["prune"] = False  # the second stage goes on with all categories
    if METHODS[config.method].cut.early:  # the second stage cannot have a bank, the first one can
        del values["views"]["bank"], values["run"]["image_cache"]
        values["views"] |= {} if given.bank is None else {"bank": given.bank}
    own_config = configuration.compose(config.preset, method=first)
    return configuration.override(own_config, configuration.fitted(own_config, values, "first stage"), "first stage")


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
