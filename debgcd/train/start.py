"""How a run begins, how it goes on, and how it is measured again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch.utils import deterministic

from debgcd import config as configuration
from debgcd.data.contents import Contents, forget_contents, read_contents
from debgcd.data.manifest import Manifest, lost_classes, require_trainable, scan, write_skipped
from debgcd.errors import DataError, DebgcdError, UsageError
from debgcd.files import lock
from debgcd.inference.model import Model, load_model
from debgcd.machine import cache_folder
from debgcd.methods import require_method
from debgcd.model.backbone import Backbone
from debgcd.model.precision import pick_device
from debgcd.options import Config
from debgcd.progress import progress, say
from debgcd.train.decide import decide, decide_k, run_backbone
from debgcd.train.finish import evaluate, unlabelled, write_evaluation
from debgcd.train.loop import train
from debgcd.train.room import require_room
from debgcd.train.run import Run, new_run, open_run, require_same_images
from debgcd.train.run import create as create_run
from debgcd.train.setup import Setup, centre_tokens, open_tokens, prepare


def begin(manifest: Manifest, config: Config, folder: Path, verify: bool = False) -> Run:
    """Decide what is open, write the run directory (new, see `require_new` and `new_run`), train to the end.

    verify: hash every image, also those whose size, times and inode say that they are as they were.
    """
    require_ready(manifest, config)
    with new_run(folder):
        return _begin(manifest, config, folder, verify)


def _begin(manifest: Manifest, config: Config, folder: Path, verify: bool) -> Run:
    if verify:
        forget_contents(manifest.paths, cache_folder(config.run.cache))
    listed = manifest
    with progress("reading images") as report:
        manifest = scan(manifest, config.run.workers, report)
    if manifest.skipped:
        write_skipped(manifest.skipped, folder / "skipped.csv")  # now, because what is left may be refused
        say(f"files that cannot be used: {len(manifest.skipped)}; {folder / 'skipped.csv'} says why")
    require_ready(manifest, config)
    for line in lost_classes(listed, manifest):
        say(f"known classes: {line}")
    config, backbone = decide(config, manifest)
    require_room(config, manifest, backbone, folder)
    return _to_the_end(create_run(folder, config, manifest, _contents(manifest, config)), backbone)


def require_ready(manifest: Manifest, config: Config) -> None:
    """Refuse what cannot be trained, before any work is done."""
    require_method(config.method)
    pick_device(config.run.device)
    require_trainable(manifest, config.k)


def resume(folder: Path, verify: bool = False) -> Run:
    """Go on where the run stands; a finished run stays as it is. verify: as for `begin`."""
    run = open_run(folder)
    if run.finished:
        return run
    with lock(folder):
        run = open_run(folder)  # another process may have gone on with it, even to its end
        if run.finished:
            return run
        if verify:
            forget_contents(run.manifest.paths, cache_folder(run.config.run.cache))
        require_same_images(run, _contents(run.manifest, run.config))
        return _to_the_end(run, run_backbone(run))


def _contents(manifest: Manifest, config: Config) -> Contents:
    with progress("hashing images") as report:
        return read_contents(manifest.paths, cache_folder(config.run.cache), report)


def measure(folder: Path) -> dict[str, object]:
    """`debgcd evaluate RUN`: the run's final model against the truth in its manifest, also into evaluation.json."""
    run = finished_run(folder)
    setup = open_setup(run, run.manifest, cache_folder(run.config.run.cache))
    return write_evaluation(run, evaluate(run, setup, unlabelled(setup)), setup.method.sizes.k)


def finished_run(folder: Path) -> Run:
    """The run in a folder, refused unless it has finished."""
    run = open_run(folder)
    if not run.finished:
        raise UsageError(f"the run in {folder} has not finished; first: debgcd resume {folder}")
    return run


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
    with _repeatable():
        tokens = open_tokens(run.config, run.manifest, backbone, cache_folder(run.config.run.cache))
        if run.config.k is None:
            try:
                run = decide_k(run, backbone, tokens)
            except DebgcdError:
                (run.folder / "config.yaml").unlink()  # not begun: the folder is free for a try with a K that is given
                raise
        train(run, prepare(run, backbone, tokens))
    return run


@contextmanager
def _repeatable() -> Iterator[None]:
    """Algorithms whose results do not depend on timing; the caller's choice comes back afterwards."""
    chosen = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # finds mistakes; a tenth of a step's time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(chosen[0], warn_only=chosen[1])
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
